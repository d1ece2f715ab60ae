"""A stock BERT from transformers, from a small configuration with random weights: nothing is downloaded.

Nothing goes wrong in it, but not all of it runs on the GPU: the delegate refuses GATHER_ND, and what it cannot take
runs on the CPU. That is a note, not a divergence (`--strict` makes it count).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

LENGTH = 16


def get_model() -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=256,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        return_dict=False,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def get_inputs() -> dict[str, Tensor]:
    return {
        "input_ids": torch.randint(0, 256, (1, LENGTH)),
        "attention_mask": torch.ones(1, LENGTH, dtype=torch.long),
    }
