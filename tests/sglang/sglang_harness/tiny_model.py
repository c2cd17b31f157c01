"""A Qwen2 model small enough for a test: two layers, fixed random weights, a byte-level tokenizer. No
download.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 320
_HIDDEN, _INTERMEDIATE, _LAYERS, _HEADS, _HEAD_DIM = 64, 128, 2, 4, 16
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_tiny_model(directory: Path, kv_heads: int = 2, seed: int = 20) -> Path:
    """Writes config, weights and tokenizer; the same bytes every time for a seed."""
    return write_model(directory, _config(kv_heads), _weights(kv_heads, seed))


def write_model(directory: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    """A model directory as SGLang loads it, with the tokenizer that all the models here share."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", {"eos_token_id": 0, "do_sample": False})
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": _SPECIAL_TOKENS[0],
            "pad_token": _SPECIAL_TOKENS[0],
            "model_max_length": 4096,
            "clean_up_tokenization_spaces": False,
        },
    )
    _tokenizer().save(str(directory / "tokenizer.json"))
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    return directory


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1))


def _config(kv_heads: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "use_sliding_window": False,
    }


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(
        ["pages of keys and values, written once and read by every instance"], trainer
    )
    return tokenizer


def _weights(kv_heads: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    weights = {
        "model.embed_tokens.weight": random(VOCABULARY, _HIDDEN),
        "model.norm.weight": torch.ones(_HIDDEN),
        "lm_head.weight": random(VOCABULARY, _HIDDEN),
    }
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = torch.ones(_HIDDEN)
        for name, heads in (("q", _HEADS), ("k", kv_heads), ("v", kv_heads)):
            weights[f"{prefix}self_attn.{name}_proj.weight"] = random(heads * _HEAD_DIM, _HIDDEN)
            weights[f"{prefix}self_attn.{name}_proj.bias"] = random(heads * _HEAD_DIM)
        weights[f"{prefix}self_attn.o_proj.weight"] = random(_HIDDEN, _HEADS * _HEAD_DIM)
        for name in ("gate", "up"):
            weights[f"{prefix}mlp.{name}_proj.weight"] = random(_INTERMEDIATE, _HIDDEN)
        weights[f"{prefix}mlp.down_proj.weight"] = random(_HIDDEN, _INTERMEDIATE)
    return weights
