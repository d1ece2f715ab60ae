"""Culprits are fixed on the real delegate, and nothing is called fixed that is not."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.fix_examples import EXAMPLES, Does, load
from bisect_litert import entrances
from bisect_litert.errors import UsageError
from bisect_litert.fixing import engine, faults, patching, rewrites_file, trial
from bisect_litert.fixing.agreement import Truth, judged
from bisect_litert.fixing.check import check
from bisect_litert.fixing.folder import leave
from bisect_litert.fixing.run import fix_run
from bisect_litert.models import preparation
from bisect_litert.record import Culprit, RunRecord, Verdict
from bisect_litert.records.fix_record import Attempt, CulpritFix, FixRecord, Outcome, Reached
from bisect_litert.reports import fix as report
from bisect_litert.request import BisectRequest
from bisect_litert.rewrites import emission
from bisect_litert.rewrites.catalogue import rewrites
from bisect_litert.rewrites.contract import Change, Replacement, Rewrite
from bisect_litert.vocabulary import Cause

ROOT = Path(__file__).parent.parent


def run(module: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> tuple[engine.Fixed, BisectRequest]:
    loaded = preparation.prepare(module, inputs, label="model")
    request = BisectRequest(model="model", blocks=("blocks.*",), out=folder / "run")
    return engine.fix(loaded, entrances.bisect_loaded(loaded, request), request), request


@pytest.mark.parametrize("name", ["rms-norm", "scale-tracking", "constant-operand"])
def test_an_example_is_fixed_and_the_saved_file_holds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))  # for processes it starts
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    fixed, request = run(*load(name), tmp_path)
    (culprit,) = fixed.record.culprits
    assert culprit.outcome is Outcome.FIXED
    assert culprit.fix is not None
    assert culprit.fix.rewrite == name
    assert fixed.record.diverged_before
    assert not fixed.record.diverged_after
    record = leave(fixed, request, tmp_path / "fix", lambda _: None, tflite=tmp_path / "out.tflite", check=False)
    assert record.costs is not None
    assert record.costs.ops[0] > 0
    assert (tmp_path / "out.tflite").stat().st_size == record.costs.bytes[1]
    assert FixRecord.load(tmp_path / "fix").to_json() == record.to_json()  # nan is not nan
    source = (tmp_path / "fix" / rewrites_file.NAME).read_text(encoding="utf-8")
    module, inputs = load(name)
    found = check(preparation.prepare(module, inputs), source, tmp_path / "check")
    assert found.right(1e-2)
    assert not check(preparation.prepare(module, inputs), "def apply(m):\n    return m\n", tmp_path / "no").right(1e-2)
    assert list(temporary.glob("bisect-litert*")) == []


def test_what_comes_right_with_the_cure_of_another_is_fixed(tmp_path: Path) -> None:
    fixed, _ = run(*load("returned-copies"), tmp_path)
    assert not fixed.record.diverged_after
    assert {c.block: c.outcome for c in fixed.record.culprits} == {
        "blocks.0": Outcome.FIXED,
        "(output)": Outcome.FIXED,
    }
    assert {step.path for step in fixed.steps} == {""}
    first = fixed.record.culprits[0]
    assert [a.reached for a in first.attempts] == [Reached.STILL_WRONG, Reached.STILL_WRONG, Reached.PROVEN]
    assert first.fix is not None
    assert first.fix.region == "(model)"
    assert first.fix.block_error < 1e-3


def test_what_is_alike_is_fixed_in_one_trial(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norms = [nn.Sequential(nn.Linear(64, 64), Does(lambda x, _: x * 2e3), nn.LayerNorm(64)) for _ in range(3)]
            self.blocks = nn.Sequential(*norms)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    torch.manual_seed(0)
    fixed, _ = run(Model().eval(), (torch.randn(1, 16, 64),), tmp_path)
    assert [c.outcome for c in fixed.record.culprits] == [Outcome.FIXED] * 3
    assert not fixed.record.diverged_after
    assert {step.path for step in fixed.steps} == {"blocks.0.2", "blocks.1.2", "blocks.2.2"}


def test_a_value_no_fp16_holds_is_not_fixed_and_says_so(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Does(lambda x, _: x * 2), Does(lambda x, _: x * 1e5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    torch.manual_seed(0)
    fixed, request = run(Model().eval(), (torch.randn(1, 16, 64),), tmp_path)
    (culprit,) = fixed.record.culprits
    assert culprit.outcome is Outcome.UNFIXED
    assert "which fp16 cannot hold" in culprit.why_not
    assert fixed.steps == ()
    record = leave(fixed, request, tmp_path / "fix", lambda _: None, check=False)
    assert not (tmp_path / "fix" / rewrites_file.NAME).exists()
    assert record.culprits[0].kept_off is not None
    assert record.culprits[0].kept_off.right  # the CPU holds it
    assert record.culprits[0].outcome is Outcome.PLACED
    text = (tmp_path / "fix" / "fix.md").read_text(encoding="utf-8")
    assert "0 of 1 culprit fixed" in text
    assert "which fp16 cannot hold" in text


class Sham(nn.Module):
    """A replacement that computes something else, or the same as before."""

    def __init__(self, original: nn.Module, *, factor: float = 1.0) -> None:
        super().__init__()
        self.original, self.factor = original, factor

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.original(*args) * self.factor  # type: ignore[no-any-return]


def test_shams_are_not_called_fixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bisect_litert.rewrites import catalogue
    from bisect_litert.rewrites.sources import source_of

    def propose(_: object) -> list[Replacement]:
        source = source_of(Sham)
        return [
            Replacement("Sham", source, {"factor": 1.01}, (Change("x", "", "y"),), "another result"),
            Replacement("Sham", source, {}, (Change("x", "", "y"),), "the same again"),
            Replacement("Sham", "class Sham(nn.Module):\n    pass\n", {}, (), "does not build"),
        ]

    sham = Rewrite("sham", "sham", (Cause.OVERFLOW,), "a", "b", "c", "d", propose)
    monkeypatch.setattr(catalogue, "rewrites", lambda: (sham,))
    fixed, _ = run(*load("layer-norm"), tmp_path)
    (culprit,) = fixed.record.culprits
    assert culprit.outcome is Outcome.UNFIXED
    reached = {a.title: a.reached for a in culprit.attempts}
    assert reached["another result"] is Reached.TORCH
    assert reached["the same again"] is Reached.STILL_WRONG
    assert reached["does not build"] is Reached.TORCH
    assert fixed.steps == ()
    assert "torch's own result differs by 0.0" in culprit.attempts[0].detail


@pytest.mark.parametrize(
    ("own", "single", "double", "said"),
    [  # what the original's fp32 result is off by, what the changed model's results are off by, and what is said of it
        (0.0, 1e-6, 1e-6, ""),
        (0.0, 1e-4, 0.0, "differs by 0.0001 with it, 1e-05 is allowed"),
        (0.0, 0.0, 1e-3, "in fp64 differs by 0.001 with it, 1e-05 is allowed"),
        (0.0, nan, 0.0, "differs by"),
        (9e-6, 2e-5, 0.0, "differs by"),  # fp32 is near enough to be held to
        (1e-3, 0.0, 0.0, "fp64 decides"),
        (1e-3, -9e-4, 1e-6, "fp64 decides"),
        (1e-3, -2e-3, 1e-6, "off by 0.001 from fp64, and with it by 0.002"),
        (1e-3, 0.0, 1e-4, "in fp64 differs by 0.0001 with it"),
        (1e-3, 1e-3, 5e-4, "fp64 decides"),  # fp32 swallows what fp64 keeps
        (1e-3, 1e-3, 5e-3, "in fp64 differs by 0.005 with it, 0.001 is allowed"),
    ],
)
def test_torch_computes_the_same(own: float, single: float, double: float, said: str) -> None:
    one = np.array([1.0])
    truth = Truth({"a": one, "b": one * (1 + own)}, {"a": one, "b": one})
    found = judged(truth, {"a": one, "b": one * (1 + single)}, {"a": one, "b": one * (1 + double)})
    by_fp64 = said == "fp64 decides"
    assert (found.complaint == "") is (said in ("", "fp64 decides"))
    assert by_fp64 or said in found.complaint
    assert found.own == pytest.approx(own if by_fp64 else nan, nan_ok=True)
    assert found.off == pytest.approx(abs(single) if by_fp64 else nan, nan_ok=True)


def test_one_output_that_fp32_blurs_excuses_no_other() -> None:
    one = np.array([1.0])
    truth = Truth({"a": one, "b": one * 1.001}, {"a": one, "b": one})
    assert "differs" in judged(truth, {"a": one * 1.0001, "b": one}, {"a": one, "b": one}).complaint
    assert judged(truth, {"a": one}, {"a": one}).complaint == "torch returns other outputs with it"


def test_a_rewrite_that_leaves_other_noise_computes_the_same() -> None:
    """The mean of a centred row: fp32 and fp64 give their own rounding, whatever the order of sums."""
    noise = np.random.default_rng(0).standard_normal(8)
    truth = Truth({"z": 1e-7 * noise}, {"z": 1e-17 * noise})
    assert not judged(truth, {"z": -1e-7 * noise}, {"z": -2e-17 * noise}).complaint
    assert judged(truth, {"z": 1e-3 * noise}, {"z": 1e-17 * noise}).complaint
    assert judged(truth, {"z": 1e-7 * noise}, {"z": 1e-3 * noise}).complaint


def test_a_worker_that_dies_in_a_trial_is_given_one_job_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from sample_record import record as sample

    verdict = Verdict(Cause.NONE, False, "In line.", "Nothing.")
    before = sample([], verdict)
    crashed = replace(before, runs=(replace(before.runs[0], name="gpu", status="crashed", detail="signal SIGABRT"),))
    module, inputs = load("layer-norm")
    loaded = preparation.prepare(module, inputs)

    def bisected(last: RunRecord, *answers: RunRecord) -> tuple[RunRecord, str, list[bool]]:
        """Has the bisections answered; returns also whether each was asked for one job at a time."""
        alone, left = [], iter(answers)

        def bisect(_: object, request: BisectRequest) -> RunRecord:
            alone.append(request.alone)
            return next(left)

        monkeypatch.setattr(trial, "bisect_loaded", bisect)
        return (*trial.bisected(loaded, BisectRequest(model="m"), last), alone)

    said = "the worker died in gpu (signal SIGABRT); with a worker for each job it did"
    assert bisected(before, crashed, before) == (before, f"{said} not.", [False, True])
    assert bisected(before, crashed, crashed) == (crashed, f"{said} again.", [False, True])
    assert bisected(crashed, crashed) == (crashed, "", [False])  # it died of the model before, too
    assert bisected(before, before) == (before, "", [False])


def test_regions_go_from_the_owner_of_the_op_outwards() -> None:
    model = nn.Module()
    model.encoder = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.LayerNorm(2)))])
    culprit = Culprit("encoder.0@2", Cause.OVERFLOW, "", (), "", module="encoder.0.1.0")
    assert faults.region_paths(model, culprit) == ("encoder.0.1.0", "encoder.0.1", "encoder.0")
    elsewhere = replace(culprit, module="other")
    assert faults.region_paths(model, elsewhere) == ("encoder.0",)


MODEL = """
import torch
from torch import nn


class Norm(nn.Module):
    \"\"\"Root mean square.\"\"\"

    def forward(self, x):
        \"\"\"Normalises.\"\"\"
        x = x * 1000.0
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(16, 16), *[Norm() for _ in range(COUNT)], nn.Linear(16, 16))

    def forward(self, x):
        return self.blocks(x)


torch.manual_seed(0)
model = Model().eval()
inputs = (torch.randn(2, 4, 16),)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_a_class_of_the_users_gets_a_patch_that_applies(count: int, tmp_path: Path) -> None:
    from bisect_litert.models import model_file
    from bisect_litert.rewrites.region import Region, capture

    path = tmp_path / "mine" / "model.py"
    path.parent.mkdir()
    path.write_text(MODEL.replace("COUNT", str(count)), encoding="utf-8")
    loaded = model_file.load(str(path))
    calls = capture(loaded.module, loaded.args, {}, ["blocks.1"])
    region = Region("blocks.1", loaded.module.get_submodule("blocks.1"), calls["blocks.1"], Cause.OVERFLOW)
    (replacement,) = next(r for r in rewrites() if r.name == "scale-tracking").propose(region)
    steps = [trial.Step("blocks.1", replacement)]
    source = rewrites_file.write("model.py", steps)
    patch = patching.patch_of(loaded, steps, BisectRequest(model=str(path)), source)
    assert ("+++ b/rewrites.py" in patch) is (count == 2)  # another instance would be changed with it
    (tmp_path / "fix.patch").write_text(patch, encoding="utf-8")
    subprocess.run(["git", "apply", "-p1", "../fix.patch"], cwd=path.parent, check=True)
    changed = subprocess.run(
        [sys.executable, "-c", "import model, torch; print(float(model.model(*model.inputs).sum()))"],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    with torch.no_grad():
        assert float(changed.stdout) == pytest.approx(float(loaded.module(*loaded.args).sum()), rel=1e-5)


def test_a_run_folder_is_fixed_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bisect_litert.cli import main

    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL.replace("COUNT", "1"), encoding="utf-8")
    assert main(["model.py", "--blocks", "blocks.*", "--out", "run", "-q"]) == 1
    assert main(["fix", "run", "-q"]) == 0
    found = json.loads(Path("run/fix/fix.json").read_text(encoding="utf-8"))
    assert [c["outcome"] for c in found["culprits"]] == ["fixed"]
    assert "applied in a process of its own" in found["checked"]
    assert not found["diverged_after"]
    # The patched model itself has nothing to fix.
    subprocess.run(["git", "apply", "-p1", "run/fix/fix.patch"], check=True)
    assert main(["model.py", "--blocks", "blocks.*", "--out", "again", "-q"]) == 0


def test_what_cannot_be_fixed_is_refused_in_a_sentence(tmp_path: Path) -> None:
    from sample_record import culprit
    from sample_record import record as sample

    verdict = Verdict(Cause.OVERFLOW, True, "It overflows.", "Scale it.")
    record = sample([], verdict, [culprit()])
    healthy = replace(record, culprits=(), placement=replace(record.placement, refusals=()))
    healthy.save(tmp_path)
    with pytest.raises(UsageError, match="no culprit"):
        fix_run(tmp_path, lambda _: None)
    replace(record, environment={"device": "a phone"}).save(tmp_path)
    with pytest.raises(UsageError, match="that of a phone, and a fix has to be proved there"):
        fix_run(tmp_path, lambda _: None)
    replace(record, settings=replace(record.settings, tflite="shipped.tflite")).save(tmp_path)
    with pytest.raises(UsageError, match=r"of shipped\.tflite, which rewriting the model does not change"):
        fix_run(tmp_path, lambda _: None)
    replace(record, model="gone.py").save(tmp_path)
    with pytest.raises(Exception, match=r"gone\.py, which is not here"):
        fix_run(tmp_path, lambda _: None)
    with pytest.raises(UsageError, match="rewrites are made in PyTorch"):
        fix_run(tmp_path, lambda _: None, model="model.tflite")


def test_every_rewrite_has_an_example_and_the_page_is_up_to_date() -> None:
    from benchmarks.fix_catalogue import NUMBERS, PAGE, page

    numbers = json.loads(NUMBERS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(numbers), "run: python benchmarks/fix_catalogue.py"
    assert [r.name for r in rewrites() if r.name not in EXAMPLES] == []


def test_a_report_without_culprits_says_so() -> None:
    empty = FixRecord("m", "gpu", (), False, False, nan, nan, 0.0, nan, None, "", 1.0, {})
    assert report.text(empty).startswith("Nothing to fix")
    assert "fp64 decides" not in report.markdown(empty)


def test_what_is_not_finite_and_what_was_not_measured_are_told_apart() -> None:
    attempt = Attempt("r", "A rewrite", "b", Reached.PROVEN, "", 0.0, nan, 3.9e-4, nan, 9e-4)
    fixed = CulpritFix("b", Cause.OVERFLOW, "", "EXP in b", False, Outcome.FIXED, "", inf, nan, (attempt,))
    record = FixRecord("m", "gpu", (fixed,), True, False, inf, 9e-4, 0.0, nan, None, "", 1.0, {})
    told = report.text(record)
    assert "  block      not finite before, off by 3.9e-4 after\n" in told
    assert "outputs    not finite before, off by 9.0e-4 after\n" in told
    assert "0 in fp32, it does not run in fp64" in told
    assert "not finite → 3.9e-4" in report.markdown(record)
    still = replace(fixed, outcome=Outcome.UNFIXED, before_error=nan, why_not="it is as it was")
    assert "torch " not in report.text(replace(record, culprits=(still,)))


def test_a_docstring_is_wrapped_once() -> None:
    text = " ".join(["Stored under a power of two, which changes no digit."] * 6)
    doc = "\n".join(textwrap.wrap(text, 116)) + "\n\nWritten otherwise:\n\n- first line\n- second line\n  and on"
    lines = emission._docstring(doc)
    paragraph = lines[: lines.index("")]
    assert " ".join(line.strip().strip('"') for line in paragraph) == text
    assert all(len(line) > 90 for line in paragraph[:-1])
    assert lines[-3:] == ["    - first line", "    - second line and on", '    """']


def test_where_fp64_decides_the_report_says_so_with_both_numbers() -> None:
    attempt = Attempt("r", "A rewrite", "b", Reached.PROVEN, "", 1.4e-3, 1e-9, 3.9e-4, nan, 9e-4)
    fixed = CulpritFix("b", Cause.PRECISION_LOSS, "", "SUB in b", False, Outcome.FIXED, "", 0.1, nan, (attempt,))
    record = FixRecord("m", "gpu", (fixed,), True, False, 0.1, 9e-4, 1.4e-3, 1e-9, None, "", 1.0, {})
    assert "fp64 decides" not in report.text(record)
    decided = replace(record, torch_own=1.4e-3, torch_off=2e-7)
    for told in (report.text(decided), report.markdown(decided)):
        assert "torch's own fp32 result is off by 1.4e-3 from fp64; the fix is off by 2.0e-7 (" in told
