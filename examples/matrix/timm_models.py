"""Stock architectures of timm, small and with random weights: nothing is downloaded.

timm imports torchvision for its data pipeline. The wheels of torchvision are built for CUDA and do not load into a CPU
build of PyTorch, so a stand-in takes its place while timm is imported; no model here uses any of it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import torch
from statistics_of_batches import calibrated
from torch import Tensor, nn

Case = tuple[nn.Module, Tensor]
SIZE = 64


class _Anything(type):
    """A class that has every attribute, each a class of its kind."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Anything(name, (), {})
        setattr(cls, name, value)
        return value


class _StandIn(ModuleType):
    """A module of torchvision that has every name, each a class of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Anything(name, (), {})
        setattr(self, name, value)
        return value


class _Finder:
    """Finds torchvision and all below it."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


def _timm() -> Any:
    try:
        import torchvision  # noqa: F401
    except Exception:  # not there, or built for another PyTorch
        _forget()
        sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
        try:
            return importlib.import_module("timm")
        finally:
            sys.meta_path.remove(_Finder)  # type: ignore[arg-type]
            _forget()
    return importlib.import_module("timm")


def _forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _case(model: nn.Module) -> Case:
    image = torch.randn(1, 3, SIZE, SIZE)
    return calibrated(model, image), image


def _named(name: str, **options: Any) -> Case:
    return _case(_timm().create_model(name, pretrained=False, num_classes=0, **options))


def mobilenet_v3() -> Case:
    return _named("mobilenetv3_small_050")


def efficientnet() -> Case:
    return _named("efficientnet_lite0")


def deit() -> Case:
    return _named("deit_tiny_patch16_224", img_size=SIZE, depth=3, embed_dim=64, num_heads=4)


def mobilevit() -> Case:
    return _named("mobilevit_xxs")


def mixer() -> Case:
    made = _timm().models.mlp_mixer.MlpMixer
    return _case(made(img_size=SIZE, patch_size=16, num_blocks=3, embed_dim=64, num_classes=0))


def poolformer() -> Case:
    made = _timm().models.metaformer.MetaFormer
    return _case(made(depths=(1, 1, 2, 1), dims=(16, 32, 64, 64), num_classes=0))
