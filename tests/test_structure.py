from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from bisect_litert.models.structure import leaves, replace

Pair = namedtuple("Pair", "left right")
A, B, C = (torch.full((2,), float(i)) for i in range(3))


@dataclass
class Plain:
    hidden: Any
    extra: Any = None


@dataclass(frozen=True)
class Frozen:
    hidden: Any


@dataclass
class HuggingFaceLike(OrderedDict):
    """The make-up of transformers' ModelOutput: a dataclass whose non-None fields are dict items too."""

    hidden: Any = None
    attentions: Any = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                super().__setitem__(field.name, value)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))


class Registered:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


_pytree.register_pytree_node(
    Registered,
    lambda v: ([v.inner], None),
    lambda children, _: Registered(*children),
    serialized_type_name="t.Registered",
)


class Cache:
    def __init__(self) -> None:
        self.keys = A


CASES = {
    "tensor": (A, [""]),
    "tuple": ((A, B), ["[0]", "[1]"]),
    "list": ([A, (B, C)], ["[0]", "[1][0]", "[1][1]"]),
    "dict": ({"z": A, "a": B, 3: C}, ["['z']", "['a']", "[3]"]),
    "namedtuple": (Pair(A, [B]), [".left", ".right[0]"]),
    "dataclass": (Plain(A, {"k": (B,)}), [".hidden", ".extra['k'][0]"]),
    "frozen dataclass": (Frozen(A), [".hidden"]),
    "hugging face": (HuggingFaceLike(hidden=A, attentions=(B, C)), [".hidden", ".attentions[0]", ".attentions[1]"]),
    "registered": ((Registered(A), B), ["[0][0]", "[1]"]),
    "return type": (torch.max(torch.eye(2), 0), ["[0]", "[1]"]),
    "twice": ((A, A), ["[0]", "[1]"]),
    "none": ((None, A, 3, "x", Cache(), 1.5), ["[1]"]),
    "nothing": (None, []),
}


@pytest.mark.parametrize("name", CASES)
def test_labels(name: str) -> None:
    value, labels = CASES[name]
    assert [label for label, _ in leaves(value)] == labels


@pytest.mark.parametrize(
    "name", [n for n in CASES if n != "none" and not n.startswith(("frozen", "dataclass", "hugging"))]
)
def test_order_is_pytrees(name: str) -> None:
    value, _ = CASES[name]
    assert [id(t) for _, t in leaves(value)] == [id(t) for t in _pytree.tree_leaves(value) if t is not None]


def test_a_none_field_of_a_hugging_face_output_is_skipped() -> None:
    assert [label for label, _ in leaves(HuggingFaceLike(attentions=(B,)))] == [".attentions[0]"]


@pytest.mark.parametrize("name", [n for n in CASES if n != "nothing"])
def test_replace_every_tensor(name: str) -> None:
    value, labels = CASES[name]
    before = [(label, id(t)) for label, t in leaves(value)]
    new = {label: torch.full((3,), float(i + 10)) for i, label in enumerate(labels)}
    result = replace(value, new)
    assert type(result) is type(value)
    assert {label: id(t) for label, t in leaves(result)} == {label: id(t) for label, t in new.items()}
    assert [(label, id(t)) for label, t in leaves(value)] == before, "the original was mutated"


def test_replace_one_keeps_the_rest() -> None:
    cache = Cache()
    value = {"a": [A, B], "ab": (C,), "cache": cache, "n": 3}
    result = replace(value, {"['a'][1]": C})
    assert result["a"][0] is A
    assert result["a"][1] is C
    assert result["ab"] is value["ab"]
    assert result["cache"] is cache
    assert result["n"] == 3


def test_attribute_and_item_of_a_hugging_face_output_stay_in_step() -> None:
    result = replace(HuggingFaceLike(hidden=A), {".hidden": C})
    assert result.hidden is C
    assert result["hidden"] is C


def test_real_model_output() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    value = outputs.BaseModelOutputWithPooling(last_hidden_state=A, hidden_states=(B, C))
    assert [label for label, _ in leaves(value)] == [".last_hidden_state", ".hidden_states[0]", ".hidden_states[1]"]
    result = replace(value, {".hidden_states[1]": A})
    assert result.hidden_states[1] is A
    assert result["hidden_states"][0] is B
    assert value.hidden_states[1] is C
    assert result.pooler_output is None


def test_a_list_that_holds_itself() -> None:
    value: list[Any] = [A]
    value.append(value)
    assert [label for label, _ in leaves(value)] == ["[0]"]
    assert replace(value, {"[0]": B})[0] is B


def test_unknown_label() -> None:
    with pytest.raises(KeyError, match=r"\[7\]"):
        replace((A,), {"[7]": B})
