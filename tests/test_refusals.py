"""An option that would have no part in what is asked for is refused; none is ignored in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisect_litert import cli
from bisect_litert.cli.run import run
from bisect_litert.devices import machines
from bisect_litert.errors import BlockSelectionError, ExitCode, UsageError, naming
from bisect_litert.matrix import plan_file
from bisect_litert.request import BisectRequest
from bisect_litert.subjects.opening import list_blocks, open_subject

FILE = Path(__file__).parent / "data" / "mlp.tflite"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("m.py --predict --fp32", "--fp32 has no part in it"),
        ("m.py --predict --tap reexport --runner cmd", "--tap and --runner have no part in it"),
        ("m.py --predict --view", "--view has no part in it"),
        ("m.py --predict --runtime 2.3.0", "--runtime has no part in it"),
        ("m.py --runtime 2.3.0 --no-gpu", "--no-gpu leaves none"),
        ("m.py --runtime 2.3.0 --runner cmd", "Leave one of them out"),
        ("m.py --runtime 2.3.0 --runtime 2.1.6 --fix", "--fix takes one"),
        ("m.py --runtime 2.3.0 --runtime 2.1.6 --view --fix", "--view and --fix take one"),
        ("m.py --fix --json", "bisect-litert fix RUN --json"),
        ("m.py --fix --tflite m.tflite", "Bisect the model without --tflite"),
        ("m.tflite --fix", "rewrites PyTorch code"),
        ("m.py --runner-python py", "there is no --runner"),
    ],
)
def test_options_that_would_be_ignored(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == ExitCode.USAGE
    assert said in " ".join(capsys.readouterr().err.split())


def test_every_option_is_known_to_predict_or_refused_by_it() -> None:
    from bisect_litert.cli.refusals import _WITH_PREDICT

    assert {param.name for param in run.params} >= _WITH_PREDICT


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (BisectRequest("m.py", signature="decode"), "--signature chooses one"),
        (BisectRequest("m.py", int_high=5), "--int-high is for"),
        (BisectRequest("m.py", int_high=5, tflite=FILE), "--int-high is for"),
        (BisectRequest("m.py", tap="reexport", tflite=FILE), r"mlp\.tflite is tested as it is"),
        (BisectRequest(str(FILE), tap="reexport"), r"mlp\.tflite is tested as it is"),
    ],
)
def test_what_a_kind_of_model_has_no_use_for(request_: BisectRequest, said: str) -> None:
    for do in (open_subject, list_blocks):
        with pytest.raises(UsageError, match=said):
            do(request_)


def test_a_command_has_no_interpreter_to_choose() -> None:
    machines.check(BisectRequest("m.py", runner="ssh host", runner_python="py"))
    with pytest.raises(UsageError, match="--runner is another command"):
        machines.check(BisectRequest("m.py", runner="./cmd", runner_python="py"))


def test_defaults_of_a_list_are_for_those_they_concern(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(
        '[defaults]\nint-high = 9\nsignature = "s"\ntap = "reexport"\n'
        '[[models]]\nmodel = "m.py"\n[[models]]\nmodel = "m.tflite"\n'
        '[[models]]\nname = "pair"\nmodel = "m.py"\ntflite = "m.tflite"\n',
        encoding="utf-8",
    )
    models = plan_file.read(tmp_path / "models.toml").models
    assert [(m.int_high, m.signature, m.tap) for m in models] == [
        (None, "", "reexport"),
        (9, "s", "auto"),
        (None, "s", "auto"),
    ]


def test_a_pattern_without_a_match_names_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BlockSelectionError) as caught, naming("my models/enc.py"):
        raise BlockSelectionError("No.", hint="List all: bisect-litert blocks MODEL")
    assert caught.value.hint == "List all: bisect-litert blocks 'my models/enc.py'"
    for words in ([str(FILE), "--out", str(tmp_path / "r"), "-q"], ["blocks", str(FILE)]):
        assert cli.main([*words, "--blocks", "nothing.*"]) == ExitCode.USAGE
        assert f"List all: bisect-litert blocks {FILE}" in capsys.readouterr().err
