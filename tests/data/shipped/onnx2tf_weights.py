"""The weights of onnx2tf.tflite, for whoever builds the same model again."""

from __future__ import annotations

import numpy as np


def weights() -> dict[str, np.ndarray]:
    """Returns them by name, NCHW."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for i in range(2):
        found[f"stage.{i}.conv.weight"] = rng.normal(size=(8, 8 if i else 3, 3, 3)) * 0.2
        found[f"stage.{i}.conv.bias"] = rng.normal(size=8) * 0.1
    found["norm.gain"] = np.array(300.0)
    found["norm.eps"] = np.array(1e-6)
    found["head.weight"] = rng.normal(size=(4, 8)) * 0.3
    found["head.bias"] = rng.normal(size=4)
    return {name: value.astype(np.float32) for name, value in found.items()}
