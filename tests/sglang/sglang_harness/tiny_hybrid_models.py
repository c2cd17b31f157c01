"""Two hybrid models small enough for a test: one with a sliding window, one with short convolutions. Fixed random
weights.
"""

from pathlib import Path
from typing import Any

import torch

from sglang_harness.tiny_model import VOCABULARY, write_model

WINDOW_TOKENS = 48
_HIDDEN, _INTERMEDIATE, _HEADS, _KV_HEADS, _HEAD_DIM = 64, 128, 4, 2, 16
_KERNEL = 3


class _Weights:
    """Random tensors from one seed, in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}

    def random(self, name: str, *shape: int, scale: float = 0.2) -> torch.Tensor:
        self.tensors[f"{name}.weight"] = torch.randn(*shape, generator=self._generator) * scale
        return self.tensors[f"{name}.weight"]

    def ones(self, *names: str, size: int = _HIDDEN) -> None:
        for name in names:
            self.tensors[f"{name}.weight"] = torch.ones(size)

    def attention(self, prefix: str, output: str) -> None:
        for name, heads in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
            self.random(f"{prefix}.{name}_proj", heads * _HEAD_DIM, _HIDDEN)
        self.random(f"{prefix}.{output}", _HIDDEN, _HEADS * _HEAD_DIM)


def make_sliding_window_model(directory: Path) -> Path:
    """A dense Laguna of two layers: the first one looks back WINDOW_TOKENS tokens, the second one at everything."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    config = _common_config() | {
        "architectures": ["LagunaForCausalLM"],
        "model_type": "laguna",
        "num_hidden_layers": 2,
        "head_dim": _HEAD_DIM,
        "sliding_window": WINDOW_TOKENS,
        "layer_types": ["sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "dense"],
        "gating": False,
        "num_experts": 4,  # asked for, though no layer has any
        "num_experts_per_tok": 2,
        "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    weights = _Weights(seed=21)
    weights.random("model.embed_tokens", VOCABULARY, _HIDDEN)
    weights.random("lm_head", VOCABULARY, _HIDDEN)
    weights.ones("model.norm")
    for layer in ("model.layers.0", "model.layers.1"):
        weights.ones(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        weights.attention(f"{layer}.self_attn", "o_proj")
        weights.ones(f"{layer}.self_attn.q_norm", f"{layer}.self_attn.k_norm", size=_HEAD_DIM)
        for name in ("gate", "up"):
            weights.random(f"{layer}.mlp.{name}_proj", _INTERMEDIATE, _HIDDEN)
        weights.random(f"{layer}.mlp.down_proj", _HIDDEN, _INTERMEDIATE)
    return write_model(directory, config, weights.tensors)


def make_short_convolution_model(directory: Path) -> Path:
    """An LFM2 of three layers: convolution, attention, convolution."""
    layer_types = ["conv", "full_attention", "conv"]
    config = _common_config() | {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "conv_L_cache": _KERNEL,
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 16,
        "norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    weights = _Weights(seed=22)
    embedding = weights.random("model.embed_tokens", VOCABULARY, _HIDDEN)
    weights.tensors["lm_head.weight"] = embedding.clone()
    weights.ones("model.embedding_norm")
    for number, kind in enumerate(layer_types):
        layer = f"model.layers.{number}"
        weights.ones(f"{layer}.operator_norm", f"{layer}.ffn_norm")
        for name, shape in (
            ("w1", (_INTERMEDIATE, _HIDDEN)),
            ("w2", (_HIDDEN, _INTERMEDIATE)),
            ("w3", (_INTERMEDIATE, _HIDDEN)),
        ):
            weights.random(f"{layer}.feed_forward.{name}", *shape)
        if kind == "conv":
            weights.random(f"{layer}.conv.in_proj", 3 * _HIDDEN, _HIDDEN)
            weights.random(f"{layer}.conv.out_proj", _HIDDEN, _HIDDEN)
            weights.random(f"{layer}.conv.conv", _HIDDEN, 1, _KERNEL, scale=0.6)
        else:
            weights.attention(f"{layer}.self_attn", "out_proj")
            weights.ones(f"{layer}.self_attn.q_layernorm", f"{layer}.self_attn.k_layernorm", size=_HEAD_DIM)
    return write_model(directory, config, weights.tensors)


def _common_config() -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
