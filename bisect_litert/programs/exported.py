"""The model as torch.export sees it: every operator with its module and source line, and its value on demand.

Used for two things: which line of the user's code an op comes from, and what a fp16 device would make of each operator,
from torch alone.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.errors import ExportError
from bisect_litert.graphs.emulation import Rounding
from bisect_litert.models import eager
from bisect_litert.programs import decompositions
from bisect_litert.programs.nodes import Node, describe
from bisect_litert.programs.rounded_graph import Forced, as_array, interpreter, is_float

if TYPE_CHECKING:
    import torch

See = Callable[[Node, Any, tuple[Any, ...], dict[str, Any]], None]


class ExportedModel:
    """A module's operators on one set of inputs.

    Args:
        module: The model, in eval mode; it is left as it is.
        args: Positional inputs.
        kwargs: Keyword inputs.
        decompose: Break the operators down to core ATen, and normalisations into what a .tflite file has for them.
        program: The module as it was exported before; it may know lines that the module itself no longer tells.

    Raises:
        ExportError: torch.export cannot trace the model.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        decompose: bool = True,
        program: Any = None,
    ) -> None:
        self._args, self._kwargs = eager.copy_inputs((tuple(args), dict(kwargs)))
        self.program = program if program is not None else self._export(module, args, kwargs)
        if decompose:
            self.decompose(decompositions.table())
        first: dict[int, str] = {}
        named = list(module.named_modules(remove_duplicate=False))
        self._first_path = {path: first.setdefault(id(part), path) for path, part in named}

    @staticmethod
    def _export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        import torch

        own_args, own_kwargs = eager.copy_inputs((tuple(args), dict(kwargs)))
        with _exporting(), lines_of_helpers():
            return torch.export.export(eager.copy_module(module), own_args, own_kwargs, strict=False)

    def decompose(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        """Takes operators apart and writes nothing in place.

        Args:
            table: What becomes of an operator; those it does not name stay whole.

        Raises:
            ExportError: torch cannot do it.
        """
        with _exporting():
            self.program = self.program.run_decompositions(dict(table))

    def nodes(self) -> tuple[Node, ...]:
        """Returns the operators in execution order."""
        return tuple(self._nodes.values())

    def inputs(self) -> dict[str, torch.Tensor]:
        """Returns the model's float inputs by the names that nodes read them under."""
        return {name: value for name, value in self.given().items() if is_float(value)}

    def given(self) -> dict[str, torch.Tensor]:
        """Returns the tensors among the model's inputs likewise, of any type."""
        import torch

        names = [s.arg.name for s in self.program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        given = zip(names, self._given(), strict=True)
        return {name: value for name, value in given if isinstance(value, torch.Tensor)}

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the nodes the model returns, in pytree order; may name an input or a parameter."""
        specs = self.program.graph_signature.output_specs
        return tuple(spec.arg.name for spec in specs if spec.kind.name == "USER_OUTPUT" and hasattr(spec.arg, "name"))

    def values(
        self, round: Rounding | None = None, keep: Callable[[Node], bool] = lambda _: True
    ) -> dict[str, np.ndarray]:
        """Runs the graph and returns what the operators gave.

        Args:
            round: Applied to every float result, to the inputs, and to parameters and constants where an operator
                that depends on the inputs reads them.
            keep: Which nodes to return; everything else is freed as soon as nothing needs it.

        Returns:
            float32 arrays by node name, float results only, rounded as asked.
        """
        kept: dict[str, np.ndarray] = {}

        def see(node: Node, result: Any, *_: Any) -> None:
            if is_float(result) and keep(node):
                kept[node.name] = as_array(result)

        self.walk(see, rounding=lambda _: round)
        return kept

    def walk(
        self,
        see: See,
        *,
        rounding: Callable[[str], Rounding | None] = lambda _: None,
        force: Mapping[str, np.ndarray] | None = None,
        hand_on: Callable[[str], Rounding | None] | None = None,
        only: Container[str] | None = None,
        exact: Container[str] = (),
    ) -> None:
        """Runs the graph and shows every operator's result together with what it read.

        Args:
            see: Called with the node, its result, and its positional and keyword operands.
            rounding: By node name (inputs of the model included): how its result is rounded, and the parameters,
                constants and numbers it reads.
            force: float32 arrays by node name that its consumers read instead of its result.
            hand_on: How these arrays are rounded, by node name, asked after `see`; like the node's result if None.
            only: Names of the nodes to compute; what they read beside these must be in `force` or be placeholders.
            exact: Names of nodes whose Python numbers are not rounded, though their results are.
        """
        import torch

        def see_result(name: str, result: Any, args: Any, kwargs: Any) -> None:
            if name in self._nodes:
                see(self._nodes[name], result, args, kwargs)

        with torch.no_grad(), torch.random.fork_rng(devices=[]), eager.a_core_spared():
            torch.manual_seed(0)
            forced = Forced(force or {}, hand_on or rounding)
            graph = self.program.graph_module
            runner = interpreter(graph, self._constants, see_result, rounding, forced, only, exact)
            runner.run(*self._bound())

    @cached_property
    def _constants(self) -> frozenset[str]:
        inputs = set(self.program.graph_signature.user_inputs)
        constant: set[str] = set()
        for node in self.program.graph_module.graph.nodes:
            if node.op == "placeholder":
                depends = node.name in inputs
            else:
                depends = node.op == "output" or any(i.name not in constant for i in node.all_input_nodes)
            if not depends:
                constant.add(node.name)
        return frozenset(constant)

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        calls: dict[str, int] = {}
        last: dict[str, int] = {}
        found = {}
        for node in self.program.graph_module.graph.nodes:
            if node.op != "call_function":
                continue
            within = []
            for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
                name = self._first_path.get(path, path)
                if name and key not in calls:  # one key for every call of every alias of a module
                    calls[key] = last[name] = last.get(name, 0) + 1
                if name:
                    within.append(name if calls[key] == 1 else f"{name}@{calls[key]}")
            found[node.name] = describe(node, tuple(within), node.name in self._constants)
        return found

    def _given(self) -> list[Any]:
        from torch.utils import _pytree as pytree

        return list(pytree.tree_leaves((self._args, self._kwargs)))

    def _bound(self) -> list[Any]:
        """Returns a value for every placeholder of the graph, fresh where a graph that is not functional may write."""
        import torch

        given = iter(self._given())
        values = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind.name == "USER_INPUT":
                value = next(given)
            else:
                assert spec.target is not None, "only user inputs have no target"
                known = self.program.state_dict
                value = known[spec.target] if spec.target in known else self.program.constants[spec.target]
            if isinstance(value, torch.Tensor):
                # A copy of every weight only where an operator may write to one.
                value = value.detach().clone() if self._writes else value.detach()
            values.append(value)
        return values

    @cached_property
    def _writes(self) -> bool:
        """Whether any operator writes to what it reads."""
        calls = [n.target for n in self.program.graph_module.graph.nodes if n.op == "call_function"]
        schemas = [getattr(target, "_schema", None) for target in calls if target is not operator.getitem]
        return any(schema is None or schema.is_mutable for schema in schemas)


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """What torch.export is run in; turns what it raises into a sentence."""
    import torch

    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), eager.quiet_stdout(), eager.quiet_logging(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise ExportError(
            f"torch.export cannot trace the model: {_short(error)}.",
            hint="Run without it; source lines and predictions need an exportable model.",
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


@contextlib.contextmanager
def lines_of_helpers() -> Iterator[None]:
    """Lets functions that a forward calls keep their lines, where newer torch records those of forwards only.

    Rests on a private method; where a version of torch lacks it, the line is the forward's that made the call.
    """
    from torch.fx.proxy import TracerBase

    original = getattr(TracerBase, "_filter_traceback_frames", None)
    if original is None:
        yield
        return

    def keep_all(tracer: Any, frames: Any) -> Any:
        tracer._record_forward_stack_traces_only = False
        return original(tracer, frames)

    TracerBase._filter_traceback_frames = keep_all
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = original


def _short(error: Exception, limit: int = 160) -> str:
    text = eager.one_line(error)
    return (text if len(text) <= limit else text[: limit - 1] + "…").rstrip(".")
