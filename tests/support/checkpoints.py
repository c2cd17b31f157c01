"""Checkpoints of a model on disk, small enough for a test and written without any library."""

import json
import random
from pathlib import Path

LAYERS = 3
BIG_TENSOR_BYTES = 20_000  # more than one block of what a fingerprint reads


def write_safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    """A file in the safetensors format, each tensor a row of bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, content in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [at, at + len(content)]}
        at += len(content)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(tensors.values()))


def tensors(seed: int, layers: int = LAYERS) -> dict[str, bytes]:
    """Weights, and the scales of an fp8 KV cache. Scales are the same for every seed."""
    random_bytes = random.Random(seed).randbytes
    made = {"model.embed_tokens.weight": random_bytes(BIG_TENSOR_BYTES)}
    for layer in range(layers):
        made[f"model.layers.{layer}.self_attn.q_proj.weight"] = random_bytes(BIG_TENSOR_BYTES)
        made[f"model.layers.{layer}.self_attn.k_scale"] = b"\0\0\x80\x3f"
    return made


def write_checkpoint(directory: Path, seed: int = 1, config: dict[str, object] | None = None) -> Path:
    """Two files of weights with their index, as model hubs lay them out."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "acme"} | (config or {})))
    weights = list(tensors(seed).items())
    index: dict[str, str] = {}
    for number, part in enumerate((weights[:3], weights[3:]), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(directory / name, dict(part))
        index |= {tensor: name for tensor, _ in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return directory


def edit_tensor(directory: Path, tensor: str, content: bytes) -> None:
    """Overwrites a tensor where it lies: sizes, headers and index stay as they are."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    path = directory / index["weight_map"][tensor]
    data = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(data[:8], "little")
    first, end = json.loads(data[8 : 8 + header_bytes])[tensor]["data_offsets"]
    assert len(content) == end - first
    data[8 + header_bytes + first : 8 + header_bytes + end] = content
    path.write_bytes(data)
