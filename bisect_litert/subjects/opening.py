"""Which kind of subject a MODEL argument names."""

from __future__ import annotations

from pathlib import Path

from bisect_litert.errors import UsageError
from bisect_litert.files import tflite_file
from bisect_litert.models import blocks as block_stage
from bisect_litert.models import model_file
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.request import BisectRequest, BlockLine
from bisect_litert.subjects import Subject, file_subject
from bisect_litert.subjects.pair_subject import PairSubject
from bisect_litert.subjects.torch_subject import TorchSubject


def open_subject(request: BisectRequest) -> Subject:
    """Reads what is to be bisected.

    Raises:
        BisectError: It is not usable.
    """
    _refuse_unused(request)
    if tflite_file.is_tflite(Path(request.model)):
        if request.tflite is not None:
            raise UsageError(
                f"{request.model} is a .tflite file itself, and --tflite gives another.",
                hint="Give the PyTorch model and --tflite, or one file alone.",
            )
        return file_subject.FileSubject(request)
    return of_module(model_file.load(request.model, inputs_path=request.inputs, seed=request.seed), request)


def of_module(loaded: LoadedModel, request: BisectRequest) -> Subject:
    """Returns a module as a subject: to be converted, or held beside the file that the request names."""
    return PairSubject(loaded, request) if request.tflite is not None else TorchSubject(loaded, request)


def list_blocks(request: BisectRequest) -> tuple[BlockLine, ...]:
    """Lists what `--blocks` can select, without a conversion; a module is run once for it, a .tflite file is not."""
    _refuse_unused(request)
    path = Path(request.model)
    if tflite_file.is_tflite(path):
        return file_subject.list_blocks(path, request.signature, request.blocks)
    loaded = model_file.load(request.model, inputs_path=request.inputs, seed=request.seed)
    return tuple(
        BlockLine(row.name, row.class_name, row.calls, row.shapes, row.selected)
        for row in block_stage.list_blocks(loaded, request.blocks)
    )


def _refuse_unused(request: BisectRequest) -> None:
    """Refuses what the kind of model has no use for, which would else be ignored.

    Raises:
        UsageError: Names the option.
    """
    alone = tflite_file.is_tflite(Path(request.model))
    if request.signature and not alone and request.tflite is None:
        raise UsageError(
            f"--signature chooses one of a .tflite file's signatures, and {request.model} is not one.",
            hint="Leave it out, or name the file with --tflite.",
        )
    if request.int_high is not None and not alone:
        raise UsageError(
            f"--int-high is for the inputs that are drawn for a .tflite file alone, and {request.model} has its own.",
            hint="Leave it out, or change the inputs in the model file or with --inputs.",
        )
    if request.tap == "reexport" and (alone or request.tflite is not None):
        raise UsageError(
            f"--tap reexport converts the model once more, and {request.tflite or request.model} is tested as it is.",
            hint="Leave it out.",
        )
