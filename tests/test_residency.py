"""Which ops ran where: the log's words against graphs written by hand."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bisect_litert.devices.placement import LogFindings, RefusedOp
from bisect_litert.devices.residency import of_block, on_gpu, refused_ops
from bisect_litert.graphs.graph import Op, Tensor
from bisect_litert.vocabulary import Residency


@dataclass
class FakeGraph:
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]


def graph(*ops: tuple[str, tuple[int, ...], int], ranks: dict[int, int] | None = None) -> FakeGraph:
    """Ops as (type, inputs, output); tensor names are t0, t1 ..."""
    count = 1 + max([o for _, _, o in ops] + [i for _, inputs, _ in ops for i in inputs])
    tensors = tuple(Tensor(i, f"t{i}", (1,) * (ranks or {}).get(i, 2), "FLOAT32", False) for i in range(count))
    return FakeGraph(tuple(Op(i, t, inputs, (o,)) for i, (t, inputs, o) in enumerate(ops)), tensors)


def findings(gpu: int | None, cpu: int | None, *refused: RefusedOp) -> LogFindings:
    return LogFindings("", False, gpu, cpu, "", refused, (), (), "", "")


def refused(op: str, reason: str = "No.", tensors: tuple[str, ...] = ()) -> RefusedOp:
    return RefusedOp(op, reason, tensors)


# t0 -> ADD -> GATHER_ND -> ADD -> ADD -> t4, as a chain
CHAIN = graph(("ADD", (0,), 1), ("GATHER_ND", (1,), 2), ("ADD", (2,), 3), ("ADD", (3,), 4))


def test_a_refusal_without_names_means_every_op_of_the_type() -> None:
    ops, by_reason = refused_ops(CHAIN, findings(2, 2, refused("ADD")))
    assert ops == {0, 2, 3}
    assert by_reason == {"ADD: No.": (0, 2, 3)}


def test_a_refusal_that_names_a_tensor_means_the_ops_that_touch_it() -> None:
    ops, _ = refused_ops(CHAIN, findings(3, 1, refused("ADD", tensors=("t3",))))
    assert ops == {2, 3}
    ops, _ = refused_ops(CHAIN, findings(3, 1, refused("ADD", tensors=("elsewhere",))))
    assert ops == {0, 2, 3}


def test_the_number_of_ops_tells_which_shapes_are_meant() -> None:
    # As measured of an attention pooling behind attentions: the delegate takes one kind of product and not the other.
    made = chain("MUL", "MUL", "MUL", "ADD", "ADD", "MUL", "ADD")
    wide = dataclasses.replace(made.tensors[5], shape=(7, 7))
    made = dataclasses.replace(made, tensors=(*made.tensors[:5], wide, *made.tensors[6:]))
    ops, by_reason = refused_ops(made, findings(5, 2, refused("MUL")))
    assert (ops, by_reason) == ({5}, {"MUL: No.": (5,)})
    assert on_gpu(made, findings(5, 2, refused("MUL")), ops) == {0, 1, 2, 3, 4}
    # With all of them refused a run of two ops is the longest; where no way comes to the number all stay.
    assert refused_ops(made, findings(2, 5, refused("MUL")))[0] == {0, 1, 2, 5}
    assert refused_ops(made, findings(1, 6, refused("MUL")))[0] == {0, 1, 2, 5}


def test_a_refusal_that_speaks_of_rank_means_the_ops_of_high_rank() -> None:
    high = graph(("ADD", (0,), 1), ("ADD", (1,), 2), ("ADD", (2,), 3), ranks={3: 5})
    ops, _ = refused_ops(high, findings(2, 1, refused("ADD", "Dimensions above 4 are not supported.")))
    assert ops == {2}
    ops, _ = refused_ops(CHAIN, findings(2, 1, refused("ADD", "Bad rank.")))
    assert ops == {0, 2, 3}


def test_the_largest_run_of_supported_ops_is_what_the_gpu_got() -> None:
    log = findings(2, 2, refused("GATHER_ND"))
    bad, _ = refused_ops(CHAIN, log)
    assert on_gpu(CHAIN, log, bad) == {2, 3}


def test_all_runs_when_the_count_says_so() -> None:
    log = findings(3, 1, refused("GATHER_ND"))
    assert on_gpu(CHAIN, log, frozenset({1})) == {0, 2, 3}


def test_a_count_that_does_not_come_out_is_unknown() -> None:
    assert on_gpu(CHAIN, findings(1, 3, refused("GATHER_ND")), frozenset({1})) is None


def test_without_a_split_everything_or_nothing_ran_there() -> None:
    assert on_gpu(CHAIN, findings(4, 0), frozenset()) == {0, 1, 2, 3}
    assert on_gpu(CHAIN, findings(0, 4), frozenset({0, 1, 2, 3})) == frozenset()
    assert on_gpu(CHAIN, findings(None, None), frozenset()) is None


def test_a_run_takes_every_op_whose_inputs_are_ready() -> None:
    # t0 feeds two branches; the refused op of the first does not cut the second.
    branches = graph(("ADD", (0,), 1), ("BAD", (1,), 2), ("ADD", (0,), 3), ("ADD", (3,), 4), ("ADD", (2, 4), 5))
    log = findings(3, 2, refused("BAD"))
    assert on_gpu(branches, log, frozenset({1})) == {0, 2, 3}


def chain(*kinds: str) -> FakeGraph:
    return graph(*((kind, (i,), i + 1) for i, kind in enumerate(kinds)))


def test_of_several_largest_runs_the_first_is_taken() -> None:
    # As measured of a transformer whose layers are alike: 69 of 311 ops, three runs of 69 between refused ones, and
    # only the first layers had the digits of fp16.
    layers = chain("ADD", "BAD", "ADD", "ADD", "BAD", "ADD", "ADD", "BAD", "ADD")
    assert on_gpu(layers, findings(2, 7, refused("BAD")), frozenset({1, 4, 7})) == {2, 3}


def test_of_very_many_runs_the_largest_is_known_only_when_there_is_one() -> None:
    many = chain(*("ADD", "BAD") * 20)
    bad = frozenset(range(1, 40, 2))
    assert on_gpu(many, findings(1, 39, refused("BAD")), bad) is None
    one = chain("ADD", "ADD", *("BAD", "ADD") * 20)
    assert on_gpu(one, findings(2, 40, refused("BAD")), frozenset(range(2, 42, 2))) == {0, 1}


def test_where_a_block_ran() -> None:
    ops = CHAIN.ops
    assert of_block((), frozenset({0}), frozenset()) is Residency.UNKNOWN
    assert of_block(ops[:2], frozenset({0, 1}), frozenset()) is Residency.GPU
    assert of_block(ops[:2], frozenset({0}), frozenset({1})) is Residency.MIXED
    assert of_block(ops[:2], frozenset({2}), frozenset()) is Residency.CPU
    assert of_block(ops[:2], None, frozenset({1})) is Residency.MIXED
    assert of_block(ops[:2], None, frozenset({3})) is Residency.UNKNOWN


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 8), max_size=3)), min_size=1, max_size=9))
@hypothesis_settings(max_examples=100, deadline=None)
def test_the_gpu_never_gets_a_refused_op(rows: list[tuple[bool, set[int]]]) -> None:
    made = graph(
        *(
            ("BAD" if bad else "ADD", tuple(sorted(i for i in reads if i <= n)), n + 1)
            for n, (bad, reads) in enumerate(rows)
        )
    )
    bad = frozenset(i for i, (b, _) in enumerate(rows) if b)
    good = len(rows) - len(bad)
    log = findings(good, len(bad), refused("BAD"))
    found = on_gpu(made, log, bad)
    if good:
        assert found == frozenset(range(len(rows))) - bad
