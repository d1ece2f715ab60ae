from __future__ import annotations

from dataclasses import replace

import pytest
import sample_record as sample

from bisect_litert.block_record import RunErrors
from bisect_litert.errors import UsageError
from bisect_litert.record import Culprit, OutputResult, RunRecord, Settings
from bisect_litert.records import rethreshold
from bisect_litert.vocabulary import Cause, Mark, RunName

BASE = Settings()


def with_output(record: RunRecord, level: float) -> RunRecord:
    error = sample.comparison(level)
    return replace(record, outputs=(OutputResult("output_0", error, error, 6e-4),), settings=BASE)


def judged(record: RunRecord, **limits: float) -> rethreshold.Recomputed:
    return rethreshold.recompute(record, replace(record.settings, **limits))


def marks(record: RunRecord) -> str:
    return " ".join(block.mark.value for block in record.blocks)


def test_the_same_tolerances_give_the_same_record() -> None:
    record = sample.overflow()
    assert rethreshold.recompute(record, record.settings) == rethreshold.Recomputed(record, (), ())


def test_a_stored_verdict_comes_out_again_when_the_tolerance_that_moved_does_not_matter() -> None:
    record = sample.overflow()
    again = judged(record, ratio_limit=11.0)
    assert again.record.verdict == record.verdict
    assert again.record.culprits == record.culprits
    assert marks(again.record) == marks(record)
    assert again.changes == ()


def test_a_tolerance_above_the_fault_clears_it_and_what_followed() -> None:
    # The block's local error is 0.85 where 2.9e-4 is expected, and the output is off by 0.85.
    again = judged(sample.overflow(), ratio_limit=4000.0, output_limit=1.0)
    assert again.record.verdict.cause is Cause.NONE
    assert not again.record.verdict.diverged
    assert marks(again.record) == "ok ok ok ok ok ok"
    assert "enc.b3 is no culprit any more." in again.changes


def test_a_lax_ratio_alone_leaves_an_output_out_of_line() -> None:
    again = judged(with_output(sample.overflow(), 0.85), ratio_limit=4000.0)
    # amplification is 1.1 everywhere in the sample, so no block answers for it
    assert again.record.verdict.cause is Cause.PRECISION_COMPOUNDING
    assert again.record.culprits == ()
    assert marks(again.record).startswith("ok ok ok note")


def test_a_strict_ratio_makes_a_block_a_culprit_with_the_cause_its_numbers_give() -> None:
    blocks = [sample.block(f"b{i}", i, cumulative=sample.comparison(2e-3 if i == 1 else 3e-4)) for i in range(3)]
    blocks[1].errors[RunName.GPU_FP32] = RunErrors(sample.comparison(2e-3), sample.comparison(2e-3))
    record = with_output(sample.record(blocks, sample.healthy().verdict), 2e-3)
    assert judged(record, ratio_limit=3.0).record.culprits[0].block == "b1"
    assert judged(record, ratio_limit=3.0).record.culprits[0].cause is Cause.WRONG_KERNEL
    assert judged(record, ratio_limit=5.0).record.culprits == ()


def test_lost_digits_count_only_where_an_output_suffers() -> None:
    blocks = [sample.block(f"b{i}", i, cumulative=sample.comparison(2e-3 if i == 1 else 3e-4)) for i in range(3)]
    record = with_output(sample.record(blocks, sample.healthy().verdict), 2e-3)
    fine = judged(record, ratio_limit=3.0).record
    assert fine.verdict.cause is Cause.NONE
    assert marks(fine) == "ok note ok"
    off = judged(record, ratio_limit=3.0, output_limit=1e-3).record
    assert off.verdict.cause is Cause.PRECISION_LOSS
    assert marks(off) == "ok culprit ok"


def test_a_note_becomes_a_culprit_when_the_outputs_are_out_of_line() -> None:
    rows = [sample.block("a", 0, cumulative=sample.comparison(3e-4))]
    rows.append(sample.block("b", 1, cumulative=sample.comparison(5e-3), mark=Mark.NOTE, cause=Cause.PRECISION_LOSS))
    record = with_output(sample.record(rows, sample.healthy().verdict), 5e-3)
    assert marks(judged(record, ratio_limit=9.0).record) == "ok note"
    assert marks(judged(record, output_limit=1e-3).record) == "ok culprit"


def test_a_jump_is_found_by_its_growth() -> None:
    rows = [sample.block(f"b{i}", i, cumulative=sample.comparison(3e-4), local=sample.comparison(3e-4)) for i in (0, 1)]
    rows.append(sample.block("b2", 2, cumulative=sample.comparison(0.05), local=sample.comparison(3e-4)))
    rows[2] = replace(rows[2], amplification=8.0)
    record = with_output(sample.record(rows, sample.healthy().verdict), 0.05)
    assert judged(record, ratio_limit=11.0).record.verdict.cause is Cause.PRECISION_COMPOUNDING
    loss = judged(record, jump_limit=5.0).record
    assert [c.block for c in loss.culprits] == ["b2"]
    assert loss.verdict.cause is Cause.PRECISION_LOSS


def test_conversion_is_judged_by_the_cpu_run() -> None:
    rows = [sample.block("a", 0, cumulative=sample.comparison(3e-4), cpu=5e-5)]
    record = with_output(sample.record(rows, sample.healthy().verdict), 3e-4)
    found = judged(record, conversion_limit=1e-5).record.culprits
    assert [(c.block, c.cause) for c in found] == [("a", Cause.CONVERSION)]
    assert judged(record, conversion_limit=2e-4).record.culprits == ()


def test_something_not_finite_is_a_fault_whatever_the_tolerances() -> None:
    rows = [sample.block("a", 0, cumulative=sample.comparison(3e-4, nonfinite=3), mark=Mark.CULPRIT)]
    record = replace(with_output(sample.record(rows, sample.overflow().verdict), 3e-4), culprits=(sample.culprit("a"),))
    assert [c.block for c in judged(record, ratio_limit=1e6, output_limit=1e6).record.culprits] == ["a"]


def test_what_healing_found_stays_and_is_said() -> None:
    record = sample.overflow()
    hidden = Culprit("enc.b5", Cause.OVERFLOW, "", ("x",), "y", hidden=True)
    record = replace(record, culprits=(*record.culprits, hidden))
    again = judged(record, ratio_limit=11.0)
    assert [c.block for c in again.record.culprits] == ["enc.b3", "enc.b5"]
    assert any("enc.b5" in said and "not kept" in said for said in again.undecided)


def test_a_block_behind_a_culprit_is_left_open() -> None:
    record = sample.overflow()
    slightly_off = RunErrors(sample.comparison(0.85), sample.comparison(2e-3))
    rows = [
        replace(b, errors={**b.errors, RunName.GPU: slightly_off}) if b.order in (1, 4) else b for b in record.blocks
    ]
    again = judged(with_output(replace(record, blocks=tuple(rows)), 0.85), ratio_limit=3.0)
    # Twice 2e-3 where 4.9e-4 is expected: before the culprit it is a note, behind it only healing could tell.
    assert marks(again.record) == "ok note ok culprit after after"
    assert "What the outputs are off by once the other culprits are healed is not kept." in again.undecided
    assert {c.block for c in again.record.culprits} >= {"enc.b3"}
    assert "enc.b4" not in {c.block for c in again.record.culprits}
    assert any(said.startswith("enc.b4 is out of line now") for said in again.undecided)


@pytest.mark.parametrize("cause", [Cause.CRASH, Cause.CANNOT_TEST, Cause.CPU_FALLBACK, Cause.REFERENCE])
def test_some_verdicts_rest_on_no_tolerance(cause: Cause) -> None:
    record = sample.cannot_test()
    record = replace(record, verdict=replace(record.verdict, cause=cause))
    again = judged(record, ratio_limit=2.0)
    assert again.record.verdict == record.verdict
    assert again.undecided == (f"The verdict ({cause}) rests on no tolerance.",)


def test_a_refusal_stays_a_divergence_under_strict() -> None:
    record = sample.healthy()
    record = replace(record, verdict=replace(record.verdict, cause=Cause.REJECTED, diverged=True))
    assert judged(record, ratio_limit=11.0).record.verdict == record.verdict


def test_tolerances_are_parsed_by_name() -> None:
    settings = rethreshold.parse(["ratio=20", "output=5e-2"], BASE)
    assert settings == replace(BASE, ratio_limit=20.0, output_limit=0.05)
    assert rethreshold.differences(BASE, settings) == ["ratio 20 (the run used 10)", "output 0.05 (the run used 0.01)"]


@pytest.mark.parametrize(
    "word", ["ratio", "rate=3", "ratio=", "ratio=x", "ratio=0.5", "output=0", "output=nan", "jump=inf"]
)
def test_nonsense_is_a_usage_error_that_says_what_to_write(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        rethreshold.parse([word], BASE)
    assert caught.value.hint


def test_the_report_says_that_it_was_judged_again() -> None:
    noted = rethreshold.with_notes(sample.overflow(), replace(BASE, blocks=("enc.*",), ratio_limit=20.0))
    assert noted.verdict.notes[0] == "Judged again from the stored numbers, with ratio 20 (the run used 10)."
    assert noted.verdict.notes[1] == "Nothing changes with these tolerances."
