"""What names a person or a machine, cut; what does not, left."""

from __future__ import annotations

import json

import pytest

from bisect_litert.bundles.privacy import Scrubber

scrub = Scrubber(("jdoe", "build-07", "root"))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("File /home/jdoe/secret project/model.py", "File …/secret project/model.py"),
        ("plugin at: /opt/x/lib/libGpu.so).", "plugin at: …/libGpu.so)."),
        ("(/opt/x/lib/libGpu.so)", "(…/libGpu.so)"),
        ("file:///srv/data/x.npz", "…/x.npz"),
        ("~/work/net.py:41", "…/net.py:41"),
        (r"C:\Users\jdoe\net.py", "…\\net.py"),
        ("jdoe@build-07 ran it", "…@… ran it"),
        ("jdoe_net", "…_net"),
    ],
)
def test_paths_and_names_go(text: str, left: str) -> None:
    assert scrub.text(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/google-ai-edge/LiteRT",
        "__main__.M/torch.nn.modules.conv.Conv2d_c1;1",
        "google-ai-edge/LiteRT#8593",
        "square root of 3/4, and/or",
        "ratio = local / expected",
    ],
)
def test_the_rest_stays(text: str) -> None:
    assert scrub.text(text) == text


def test_json_is_cut_in_every_string() -> None:
    text = json.dumps({"a": ["/home/jdoe/x.py", {"b": "build-07"}], "c": 1.5, "/home/jdoe/k": None})
    assert json.loads(scrub.json(text)) == {"a": ["…/x.py", {"b": "…"}], "c": 1.5, "…/k": None}


def test_the_machine_that_ran_the_gpu_jobs_is_cut_too() -> None:
    scrub = Scrubber(("jdoe",), also=("gpu-box.lab.example", "gpu-box"))
    assert scrub.text("device gpu-box.lab.example; gpu-box said jdoe; gpu-boxes") == "device …; … said …; gpu-boxes"
