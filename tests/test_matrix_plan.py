"""What a plan says, and that every mistake in one is named with its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from bisect_litert.matrix import plan_file
from bisect_litert.matrix.plan import Plan, Target
from bisect_litert.matrix.plan_file import PlanError


def read(folder: Path, text: str) -> Plan:
    path = folder / "models.toml"
    path.write_text(textwrap.dedent(text))
    return plan_file.read(path)


def test_a_whole_plan(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        title = "Family"
        targets = ["cpu", "gpu", { name = "old", runtime = "2.1.6" },
                   { name = "phone", runner = "ssh phone", fp32 = true }]

        [defaults]
        seed = 7
        output-limit = 0.02
        targets = ["gpu", "old"]

        [[models]]
        model = "models.py:get_bert"
        blocks = "encoder.*"
        seed = 8

        [[models]]
        name = "vit"
        model = "vit.py"
        blocks = ["a.*", "b.*"]
        targets = ["cpu", "phone"]
        """,
    )
    assert (found.title, found.folder, found.file) == ("Family", tmp_path, "models.toml")
    assert found.targets[2:] == (Target("old", runtime="2.1.6"), Target("phone", runner="ssh phone", fp32=True))
    bert, vit = found.models
    assert (bert.name, bert.blocks, bert.seed, bert.output_limit) == ("bert", ("encoder.*",), 8, 0.02)
    assert (vit.name, vit.blocks, vit.seed) == ("vit", ("a.*", "b.*"), 7)
    cells = [(m.name, t.name) for m, t in found.cells]
    assert cells == [("bert", "gpu"), ("bert", "old"), ("vit", "cpu"), ("vit", "phone")]
    request = vit.request(found.target("cpu"), tmp_path, tmp_path / "out", "")
    assert (request.model, request.no_gpu, request.fp32, request.out) == ("vit.py", True, True, tmp_path / "out")


def test_without_targets_it_is_the_gpu(tmp_path: Path) -> None:
    found = read(tmp_path, '[[models]]\nmodel = "pkg.enc:Net"\n[[models]]\nmodel = "dir/a b.py"\n')
    assert [t.name for t in found.targets] == ["gpu"]
    assert [m.name for m in found.models] == ["Net", "a-b"]


HEAD = '[[models]]\nmodel = "a.py"\n'


@pytest.mark.parametrize(
    ("text", "line", "said", "hint"),
    [
        ('targets = ["cpu"\n', 2, "is no TOML", "quotes"),
        ('title = "x"\n', 1, "no model in it", "[[models]]"),
        (HEAD + 'block = "x"\n', 3, "no key 'block' of model 1", "'blocks'"),
        (HEAD + HEAD.replace("a.py", "b.py") + 'seed = "1"\n', 5, "seed is '1'", "whole number"),
        (HEAD + "seed = true\n", 3, "seed is True", "whole number"),
        (HEAD + "output-limit = 0\n", 3, "output_limit is 0", "above 0"),
        (HEAD + "strict = 1\n", 3, "strict is 1", "true or false"),
        (HEAD + "blocks = [1]\n", 3, "blocks is [1]", "list of texts"),
        (HEAD + 'name = "a b"\n', 3, "'a b' cannot be a name", "folders"),
        (HEAD + 'name = "../a"\n', 3, "'../a' cannot be a name", "folders"),
        (HEAD + 'tap = "never"\n', 3, "tap is 'never'", "auto"),
        (HEAD + HEAD, 3, "two models are called 'a'", "another name"),
        (HEAD + 'targets = ["gpp"]\n', 3, "no target 'gpp'", "'gpu'"),
        ('targets = ["gppu"]\n' + HEAD, 1, "no target 'gppu'", "'gpu'"),
        ('targets = ["gpu", "gpu"]\n' + HEAD, 1, "two targets are called 'gpu'", "another name"),
        ('targets = [{ runtime = "2.1.6" }]\n' + HEAD, 1, "a target has no name", "name ="),
        ('targets = [{ name = "x", runtime = "1", python = "p" }]\n' + HEAD, 1, "more than one place", "one of"),
        ('\n\n[[models]]\nname = "x"\n', 3, "does not say which model", "model ="),
        ('[defaults]\nskip = "no"\n' + HEAD, 2, "skip has no place in [defaults]", "each"),
        ("tiitle = 1\n" + HEAD, 1, "no key 'tiitle'", "'title'"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, line: int, said: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(tmp_path, text)
    message = caught.value.message
    assert said in message
    assert hint in caught.value.hint
    assert f"models.toml:{line}:" in message or "is no TOML" in message


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        plan_file.read(tmp_path / "models.toml")
    (tmp_path / "models.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="not UTF-8"):
        plan_file.read(tmp_path / "models.toml")
