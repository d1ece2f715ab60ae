"""A model in float64, as exact as PyTorch can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bisect_litert.models import eager, structure

if TYPE_CHECKING:
    import torch


def in_float64(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Returns a copy of a model in float64, and its inputs."""
    import torch

    wide_parameters = {
        id(p): torch.nn.Parameter(p.detach().double(), p.requires_grad)
        for p in module.parameters()
        if type(p) is torch.nn.Parameter and p.is_floating_point()
    }
    module = eager.copy_module(module, share_parameters=False, known=wide_parameters).double()
    for part in module.modules():  # tensors kept as plain attributes, which .double() does not see
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                part.__dict__[name] = value.double()
    inputs = (args, kwargs)
    wide = {k: t.double() for k, t in structure.leaves(inputs) if t.is_floating_point()}
    wide_args, wide_kwargs = structure.replace(inputs, wide)
    return module, wide_args, wide_kwargs


class Float64:
    """While active, float32 asked for by name in the model's code means float64, and so does the default dtype.

    Models that upcast inside ("x.float()" in an RMSNorm) would else throw away the digits the float64 run is for.
    """

    def __enter__(self) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        class Mode(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function is torch.Tensor.float:
                    function = torch.Tensor.double
                return function(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})

        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        self._mode = Mode()
        self._mode.__enter__()

    def __exit__(self, *exception: Any) -> None:
        import torch

        self._mode.__exit__(*exception)
        torch.set_default_dtype(self._default)
