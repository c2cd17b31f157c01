"""A fingerprint of a checkpoint: the same on every host for the same files, another one when weights were exchanged
under the same name. Times of files don't count: hosts differ in them.

A checkpoint has up to a terabyte, so its weights are sampled, at places that depend on nothing but names and sizes. Of
every kind of tensor (its name without the numbers of layers and experts) some are read, and of each at most a block:
training changes a kind in all layers, and KV scales are read whole. Not seen is a change of a few rows or elements.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class before Python 3.11
from pathlib import Path
from typing import NamedTuple

READS_MAX = 2048
BLOCK_BYTES = 4096
FILES_MAX = 4096
SMALL_FILE_BYTES_MAX = 32 << 20
HEADER_BYTES_MAX = 16 << 20
DEADLINE_S = 10.0
_BLOCKS_A_FILE_MAX = 64
_THREADS = 16  # a network file system takes a millisecond or more a read

_DIGITS = 32  # hex, 128 bits
_DESCRIPTIONS = (
    "config.json",
    "params.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "adapter_config.json",
)
_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")  # the first that matches, as SGLang does it
_INDEX = "model.safetensors.index.json"
_GGUF_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_NUMBERS = re.compile(r"\d+")


class UnknownWeightsError(Exception):
    """Nothing tells which weights these are. Says why."""


class _Block(NamedTuple):
    """Bytes of a file that count."""

    path: Path
    offset: int
    size_bytes: int


def weights_fingerprint(checkpoint: Path) -> str:
    """32 hex digits for a directory as model hubs lay them out, or a single file (GGUF). Reads at most READS_MAX blocks and
    the headers of the files. UnknownWeightsError for anything else, and when it takes longer than DEADLINE_S.
    """
    ends_at = time.monotonic() + DEADLINE_S
    try:
        descriptions, files = _parts(checkpoint)
        digest = hashlib.sha256(b"kvstore/weights/v1")
        for path in descriptions:
            _add(digest, path.name.encode(), _small_file(path))
        single = checkpoint.is_file()
        tensors: dict[str, list[_Block]] = {}
        plain: list[_Block] = []
        for path in files:
            size = path.stat().st_size
            # A single file may have another name on another host.
            _add(digest, b"" if single else path.name.encode(), str(size).encode())
            if path.suffix == ".safetensors":
                header = _safetensors_header(path, size)
                _add(digest, hashlib.sha256(header).digest())
                _collect(path, size, header, tensors)
            else:
                plain += _spread(path, size, max(1, READS_MAX // len(files)))
            _check(ends_at, checkpoint)
        for block in _read([*_chosen(tensors), *plain], ends_at, checkpoint):
            digest.update(block)
        return digest.hexdigest()[:_DIGITS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownWeightsError(f"{checkpoint} can't be read as a checkpoint ({error!r})") from error


def content_fingerprint(path: Path) -> str:
    """32 hex digits of a small file's content. UnknownWeightsError when it is none, or can't be read."""
    try:
        return hashlib.sha256(_small_file(path)).hexdigest()[:_DIGITS]
    except (OSError, ValueError) as error:
        raise UnknownWeightsError(f"{path} can't be read ({error!r})") from error


def _parts(checkpoint: Path) -> tuple[list[Path], list[Path]]:
    """The small files that say what the model is, and the files that hold its weights."""
    if checkpoint.is_file():
        return [], _gguf_parts(checkpoint)
    descriptions = [checkpoint / name for name in (*_DESCRIPTIONS, _INDEX) if (checkpoint / name).is_file()]
    for pattern in _PATTERNS:
        if files := sorted(checkpoint.glob(pattern)):
            files = _indexed(checkpoint, files)
            if len(files) > FILES_MAX:
                raise ValueError(f"{len(files)} files of weights, more than {FILES_MAX}")
            return descriptions, files
    raise ValueError("it holds no file of weights")


def _gguf_parts(file: Path) -> list[Path]:
    match = _GGUF_PART.search(file.name)
    if match is None:
        return [file]
    return sorted(file.parent.glob(f"{file.name[: match.start()]}-*-of-{match[1]}.gguf"))


def _indexed(checkpoint: Path, files: list[Path]) -> list[Path]:
    """Those that the index names: some checkpoints come in two forms, and not every host has both."""
    try:
        named = set(json.loads(_small_file(checkpoint / _INDEX))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return files
    return [file for file in files if file.name in named] or files


def _small_file(path: Path) -> bytes:
    size = path.stat().st_size
    if size > SMALL_FILE_BYTES_MAX:
        raise ValueError(f"{path.name} has {size} bytes, more than {SMALL_FILE_BYTES_MAX}")
    return path.read_bytes()


def _safetensors_header(path: Path, file_bytes: int) -> bytes:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(HEADER_BYTES_MAX, file_bytes - 8):
            raise ValueError(f"{path.name} has a header of {size} bytes")
        return file.read(size)


def _collect(path: Path, file_bytes: int, header: bytes, tensors: dict[str, list[_Block]]) -> None:
    """Adds a block of each tensor of the file under the tensor's kind."""
    start = 8 + len(header)
    for name, tensor in sorted(json.loads(header).items()):
        if name == "__metadata__":
            continue
        first, end = tensor["data_offsets"]
        if not 0 <= first <= end <= file_bytes - start:
            raise ValueError(f"{path.name}: {name} lies outside of the file")
        size = min(BLOCK_BYTES, end - first)
        middle = first + (end - first - size) // 2
        tensors.setdefault(_NUMBERS.sub("#", name), []).append(_Block(path, start + middle, size))


def _chosen(tensors: dict[str, list[_Block]]) -> list[_Block]:
    """At most READS_MAX: kinds of few tensors in whole (KV scales), of the others as many as are left for each, evenly
    spread.
    """
    left, chosen = READS_MAX, []
    kinds = sorted(tensors.items(), key=lambda kind: (len(kind[1]), kind[0]))
    for number, (_, blocks) in enumerate(kinds):
        share = min(len(blocks), max(1, left // (len(kinds) - number)))
        chosen += [blocks[at * len(blocks) // share] for at in range(share)]
        left = max(0, left - share)
    return chosen[:READS_MAX]


def _spread(path: Path, file_bytes: int, blocks_max: int) -> list[_Block]:
    """Blocks of a file whose inner form isn't looked at: from its first on, evenly spread, the last at its end."""
    size = min(BLOCK_BYTES, file_bytes)
    count = min(blocks_max, _BLOCKS_A_FILE_MAX, -(-file_bytes // BLOCK_BYTES))
    gap = (file_bytes - size) // max(1, count - 1)
    return [_Block(path, at * gap, size) for at in range(count)]


def _read(blocks: Sequence[_Block], ends_at: float, checkpoint: Path) -> Iterable[bytes]:
    """In the order of `blocks`."""

    def read(block: _Block) -> bytes:
        _check(ends_at, checkpoint)
        file = os.open(block.path, os.O_RDONLY)
        try:
            return os.pread(file, block.size_bytes, block.offset)
        finally:
            os.close(file)

    threads = ThreadPoolExecutor(_THREADS, "kvstore-weights")
    try:
        return list(threads.map(read, blocks, timeout=max(0.0, ends_at - time.monotonic())))
    except FutureTimeoutError:
        raise _too_slow(checkpoint) from None
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # a file system may hang


def _check(ends_at: float, checkpoint: Path) -> None:
    if time.monotonic() > ends_at:
        raise _too_slow(checkpoint)


def _too_slow(checkpoint: Path) -> UnknownWeightsError:
    return UnknownWeightsError(f"{checkpoint} takes longer than {DEADLINE_S:.0f} s to look into")


def _add(digest: "hashlib._Hash", *parts: bytes) -> None:
    """Each with its length, so that no two lists of parts have one encoding."""
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
