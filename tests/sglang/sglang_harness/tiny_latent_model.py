"""A model with latent attention (MLA) small enough for a test: a dense DeepSeek V2 of two layers, fixed random weights."""

from pathlib import Path
from typing import Any

import torch

from sglang_harness.tiny_model import VOCABULARY, write_model

LAYERS = 2
_HIDDEN, _INTERMEDIATE, _HEADS = 64, 128, 4
_LATENT, _NO_ROPE, _ROPE, _VALUE = 32, 16, 16, 16


def make_latent_model(directory: Path) -> Path:
    """Writes it; the same bytes every time."""
    generator = torch.Generator().manual_seed(23)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    weights = {
        "model.embed_tokens.weight": random(VOCABULARY, _HIDDEN),
        "model.norm.weight": torch.ones(_HIDDEN),
        "lm_head.weight": random(VOCABULARY, _HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = torch.ones(_HIDDEN)
        attention = f"{prefix}self_attn."
        weights[f"{attention}q_proj.weight"] = random(_HEADS * (_NO_ROPE + _ROPE), _HIDDEN)
        weights[f"{attention}kv_a_proj_with_mqa.weight"] = random(_LATENT + _ROPE, _HIDDEN)
        weights[f"{attention}kv_a_layernorm.weight"] = torch.ones(_LATENT)
        weights[f"{attention}kv_b_proj.weight"] = random(_HEADS * (_NO_ROPE + _VALUE), _LATENT)
        weights[f"{attention}o_proj.weight"] = random(_HIDDEN, _HEADS * _VALUE)
        for name in ("gate", "up"):
            weights[f"{prefix}mlp.{name}_proj.weight"] = random(_INTERMEDIATE, _HIDDEN)
        weights[f"{prefix}mlp.down_proj.weight"] = random(_HIDDEN, _INTERMEDIATE)
    return write_model(directory, _config(), weights)


def _config() -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "moe_intermediate_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "kv_lora_rank": _LATENT,
        "q_lora_rank": None,
        "qk_nope_head_dim": _NO_ROPE,
        "qk_rope_head_dim": _ROPE,
        "v_head_dim": _VALUE,
        "first_k_dense_replace": LAYERS,  # all are dense; experts are asked for all the same
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_layer_freq": 1,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "attention_bias": False,
        # SGLang's CPU path wants one to be there.
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
