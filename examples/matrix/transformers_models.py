"""Stock architectures of transformers, with small configurations and random weights: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from statistics_of_batches import calibrated
from torch import Tensor, nn

Case = tuple[nn.Module, dict[str, Tensor]]
WIDTH, HEADS, LAYERS, TOKENS, VOCABULARY = 64, 4, 3, 24, 200
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 2 * WIDTH,
}


class First(nn.Module):
    """A model that returns its first tensor instead of a ModelOutput."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        result: Tensor = self.model(**inputs, return_dict=False)[0]
        return result


def _case(model: nn.Module, **inputs: Tensor) -> Case:
    return First(model.eval()), inputs


def _ids() -> Tensor:
    return torch.randint(0, VOCABULARY, (1, TOKENS))


def _image(size: int) -> Tensor:
    return torch.randn(1, 3, size, size)


def bert() -> Case:
    from transformers import BertConfig, BertModel

    ids = _ids()
    return _case(
        BertModel(BertConfig(vocab_size=VOCABULARY, **SIZES)), input_ids=ids, attention_mask=torch.ones_like(ids)
    )


def distilbert() -> Case:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(vocab_size=VOCABULARY, dim=WIDTH, n_heads=HEADS, n_layers=LAYERS, hidden_dim=2 * WIDTH)
    return _case(DistilBertModel(config), input_ids=_ids())


def albert() -> Case:
    from transformers import AlbertConfig, AlbertModel

    return _case(AlbertModel(AlbertConfig(vocab_size=VOCABULARY, embedding_size=32, **SIZES)), input_ids=_ids())


def electra() -> Case:
    from transformers import ElectraConfig, ElectraModel

    return _case(ElectraModel(ElectraConfig(vocab_size=VOCABULARY, embedding_size=32, **SIZES)), input_ids=_ids())


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, n_positions=64, use_cache=False
    )
    return _case(GPT2Model(config), input_ids=_ids())


def llama() -> Case:
    """Fewer key heads than query heads, as in all recent ones."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, use_cache=False, **SIZES)
    return _case(LlamaModel(config), input_ids=_ids())


def t5_encoder() -> Case:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=16,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        use_cache=False,
    )
    return _case(T5EncoderModel(config), input_ids=_ids())


def whisper_encoder() -> Case:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        num_mel_bins=16, d_model=WIDTH, encoder_layers=LAYERS, encoder_attention_heads=HEADS, encoder_ffn_dim=128,
        max_source_positions=32,
    )  # fmt: skip
    return _case(WhisperEncoder(config), input_features=torch.randn(1, 16, 64))


def vit() -> Case:
    from transformers import ViTConfig, ViTModel

    return _case(ViTModel(ViTConfig(image_size=32, patch_size=8, **SIZES)), pixel_values=_image(32))


def swin() -> Case:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return _case(SwinModel(config), pixel_values=_image(32))


def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextModel

    return _case(
        ConvNextModel(ConvNextConfig(hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 2, 1])), pixel_values=_image(64)
    )


def resnet() -> Case:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], layer_type="basic")
    return _case(calibrated(ResNetModel(config), _image(64)), pixel_values=_image(64))


def mobilenet_v2() -> Case:
    from transformers import MobileNetV2Config, MobileNetV2Model

    model = MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.35, image_size=64))
    return _case(calibrated(model, _image(64)), pixel_values=_image(64))


def segformer() -> Case:
    from transformers import SegformerConfig, SegformerModel

    config = SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 32, 64], num_attention_heads=[1, 2, 2, 4], sr_ratios=[4, 2, 1, 1]
    )
    return _case(SegformerModel(config), pixel_values=_image(64))
