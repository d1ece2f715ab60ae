"""Makes litert_torch.tflite beside it: `python tests/data/shipped/make_litert_torch.py`.

Committed as litert-torch 0.10.0 and torch 2.13.0 made it.
"""

from __future__ import annotations

from pathlib import Path

import litert_torch
import torch
from litert_torch_model import Net, inputs

if __name__ == "__main__":
    torch.manual_seed(0)
    litert_torch.convert(Net().eval(), inputs()).export(str(Path(__file__).with_name("litert_torch.tflite")))
