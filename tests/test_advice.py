"""Every entry can be reached, says what it should, and the table in the docs is the data's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_litert.devices import placement
from bisect_litert.verdicts import advice
from bisect_litert.verdicts.advice import Entry, Query
from bisect_litert.vocabulary import Cause

ROOT = Path(__file__).parents[1]
ENTRIES = advice.entries()
DATA = Path(__file__).parent / "data"


def id_of(entry: Entry | None) -> str:
    return entry.id if entry is not None else ""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_every_entry_answers_its_example(entry: Entry) -> None:
    assert id_of(advice.ask(entry.example)) == entry.id


def test_an_entry_that_another_hides_does_not_answer_its_example(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Entry("twin", ("overflow",), "Do otherwise.", Query("overflow", op="EXP"), ops=("EXP",))
    monkeypatch.setattr(advice, "entries", lambda: (*ENTRIES, twin))
    assert id_of(advice.ask(twin.example)) == "overflow-exp"


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.NONE])
def test_every_cause_has_one_default(cause: Cause) -> None:
    assert len([e for e in ENTRIES if cause.value in e.causes and e.is_default]) == 1
    found = advice.ask(Query(cause.value, op="NO_SUCH_OP", module_class="NoSuchModule"))
    assert found is not None
    assert found.is_default


def test_nothing_is_advised_where_nothing_is_wrong() -> None:
    assert advice.ask(Query("none", op="EXP", module_class="LayerNorm")) is None


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_is_well_formed(entry: Entry) -> None:
    assert set(entry.causes) <= {cause.value for cause in Cause}
    assert entry.rewrite[0].isupper()
    assert entry.rewrite.endswith(".")
    assert not entry.upstream or re.fullmatch(r"[\w-]+/[\w-]+#\d+", entry.upstream)
    assert entry.seen or not entry.upstream, "an issue needs the versions it was seen in"
    assert entry.min_rank is None or entry.max_rank is None or entry.min_rank <= entry.max_rank
    re.compile(entry.refused_reason)


def test_ids_are_unique() -> None:
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)


def test_the_ops_are_names_that_a_tflite_file_can_hold() -> None:
    from fnmatch import filter as matching

    from ai_edge_litert import schema_py_generated as schema

    known = [name for name in vars(schema.BuiltinOperator) if name.isupper()]
    assert "SQUARED_DIFFERENCE" in known
    named = {op for entry in ENTRIES for op in entry.ops if not op.startswith("aten.")}
    assert [op for op in sorted(named) if not matching(known, op)] == []


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (Query("overflow", op="SQUARED_DIFFERENCE"), "overflow-square"),
        (Query("overflow", op="SQUARED_DIFFERENCE", module_class="LayerNorm2d"), "overflow-norm"),
        (Query("overflow", op="SQUARED_DIFFERENCE", module_class="Block"), "overflow-square"),
        (Query("overflow", "underflow", op="SQUARED_DIFFERENCE", module_class="LayerNorm"), "underflow-norm"),
        (Query("overflow", "underflow", op="MUL"), "underflow"),
        (Query("overflow", op="MUL"), "overflow-square"),
        (Query("overflow", op="MUL", constant_operand=False), "overflow-square"),
        (Query("overflow", op="MUL", constant_operand=True), "overflow-constant"),
        (Query("wrong-kernel", "", "ADD", "", 2, True, constant_rows=True, mixed_ranks=False), "kernel-constant"),
        (Query("wrong-kernel", "", "ADD", "", 3, True, constant_rows=True, mixed_ranks=True), "kernel-constant-ranks"),
        (Query("wrong-kernel", "", "ADD", "", 4, True, constant_rows=False, mixed_ranks=True), "kernel-constant-ranks"),
        # the shapes that the known faults are about are not these
        (Query("wrong-kernel", "", "ADD", "", 3, True, constant_rows=False, mixed_ranks=False), "kernel-constant-any"),
        (Query("wrong-kernel", "", "ADD", "", 4, True, constant_rows=True, mixed_ranks=False), "kernel-constant-any"),
        (Query("wrong-kernel", "", "POW", "", 2, True, constant_rows=True, mixed_ranks=False), "kernel-constant"),
        (Query("wrong-kernel", "", "POW", "", 3, True, constant_rows=False, mixed_ranks=True), "kernel-power"),
        (
            Query("wrong-kernel", "", "LESS_EQUAL", "", 2, True, constant_rows=True, mixed_ranks=False),
            "kernel-constant",
        ),
        (Query("wrong-kernel", op="ADD", rank=3, constant_operand=False), "kernel-low-rank"),
        (Query("wrong-kernel", op="PAD", rank=2), "kernel-low-rank"),
        (Query("wrong-kernel", op="MEAN", rank=4, longest=64), "kernel"),
        (Query("wrong-kernel", op="MEAN", rank=2, longest=300000), "kernel-long-axis"),
        (Query("wrong-kernel", op="ADD", rank=3, constant_operand=True, module_class="SelfAttention"), "kernel-mask"),
        (Query("wrong-kernel", op="ADD", rank=4, constant_operand=False), "kernel"),
        (Query("wrong-kernel", op="ADD"), "kernel"),
        (Query("wrong-kernel", op="PAD", rank=4), "kernel"),
        (Query("wrong-kernel", op="PAD"), "kernel"),
        (Query("wrong-kernel", op="COS", rank=3), "kernel-low-rank"),
        (Query("conversion", op="aten.upsample_nearest2d.vec"), "conversion-nearest"),
        (Query("precision-loss", op="GREATER_EQUAL"), "loss-jump"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.op}-{value.module_class}-{value.rank}",
)
def test_the_most_specific_entry_answers(query: Query, wanted: str) -> None:
    assert id_of(advice.ask(query)) == wanted


def test_a_wrong_kernel_is_laid_to_an_upstream_issue_only_by_what_the_issue_is_about() -> None:
    """Of a fault in general nobody knows that it is a known one: an op, or a shape, has to say so."""
    for entry in ENTRIES:
        if "wrong-kernel" in entry.causes and entry.upstream:
            assert entry.ops, entry.id
            assert entry.specificity[3] or entry.modules, entry.id


@pytest.mark.parametrize(
    ("op", "reason", "wanted"),
    [
        ("RESHAPE", "Tensor dimensions must be less than 5.", "rejected-rank"),
        ("SLICE", "Slicing is unsupported for input with rank > 4", "rejected-rank"),
        ("TRANSPOSE", "Permutation for transpose is invalid.", "rejected-rank"),
        ("RESHAPE", "Tensor has bad input dims size: 5.", "rejected-rank"),
        ("MUL", "Tensor has bad input dims size: 0.", "rejected-scalar"),
        ("GATHER_ND", "Operation is not supported.", "rejected-gather"),
        ("BROADCAST_TO", "Operation is not supported.", "rejected-broadcast"),
        ("RELU_0_TO_1", "Not supported op RELU_0_TO_1", "rejected-relu01"),
        ("DIV", "No support of few identical inputs in the same operation.", "rejected-same-inputs"),
        ("REDUCE_MAX", "Expected 1 const input tensor(s), but node has 2 const input(s).", "rejected-constant-inputs"),
        ("BATCH_MATMUL", "Not supported batched mat mul case: non-constant tensor", "rejected-matmul"),
        ("UNIQUE", "Operation is not supported.", "rejected"),
    ],
)
def test_refusals_in_the_delegates_own_words(op: str, reason: str, wanted: str) -> None:
    assert id_of(advice.for_refusal(op, reason)) == wanted


def test_refusals_of_a_real_log_get_their_advice() -> None:
    found = placement.read((DATA / "refused.log").read_text(encoding="utf-8"), 6)
    assert found.refused
    assert {id_of(advice.for_refusal(r.op, r.reason)) for r in found.refused} == {"rejected-rank"}


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("NotImplementedError: No lowering for aten._fft_r2c.default", "convert-fft"),
        ("RuntimeError: Unsupported dtype complex64", "convert-fft"),
        ("Array boolean indices must be concrete; got bool[1,4,8]", "convert-boolean-index"),
        ("Unsupported dtype: torch.bfloat16", "convert-half"),
        ("No module named foo", "cannot-test"),
    ],
)
def test_messages_of_the_converter(message: str, wanted: str) -> None:
    assert id_of(advice.for_conversion_error(message)) == wanted


def test_text_and_reference_carry_what_is_known() -> None:
    norm = advice.ask(Query("overflow", op="MEAN", module_class="GemmaRMSNorm"))
    assert norm is not None
    assert norm.text.startswith(norm.rewrite)
    assert "patch_rmsnorm" in norm.text
    assert norm.reference == f"{norm.upstream} (seen in {norm.seen})"
    plain = advice.ask(Query("overflow"))
    assert plain is not None
    assert (plain.text, plain.reference) == (plain.rewrite, "")


def test_a_misspelt_key_in_the_data_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    example = '{"cause": "overflow"}'
    entry = f'{{"id": "a", "causes": ["overflow"], "rewrite": "Do.", "op": ["EXP"], "example": {example}}}'
    (tmp_path / "data/advice.json").write_text(f"[{entry}]", encoding="utf-8")
    monkeypatch.setattr(advice, "files", lambda _: tmp_path)
    advice.entries.cache_clear()
    try:
        with pytest.raises(Exception, match="structuring"):
            advice.entries()
    finally:
        advice.entries.cache_clear()


def test_the_table_in_the_docs_is_up_to_date() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "bisect_litert.verdicts.advice"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/advice.md").read_text(encoding="utf-8") == printed, (
        "run: python -m bisect_litert.verdicts.advice > docs/advice.md"
    )
    assert all(entry.rewrite in printed.replace("\\|", "|") for entry in ENTRIES)
