"""Which weights a model path of SGLang's stands for, told by content, so that hosts with other paths agree and a path
whose content was exchanged is noticed.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from hicache_adapter.weights_fingerprint import UnknownWeightsError, weights_fingerprint

# Formats whose weights come from the files of the model path; others fetch them from elsewhere.
_FROM_FILES = frozenset(
    (
        "auto",
        "bitsandbytes",
        "fastsafetensors",
        "flash_rl",
        "gguf",
        "instanttensor",
        "layered",
        "mistral",
        "npcache",
        "presharded",
        "pt",
        "runai_streamer",
        "safetensors",
        "sharded_state",
    )
)
_NO_MODEL = ("", "dummy", "none")  # SGLang's own words for none
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Checkpoint(NamedTuple):
    """What SGLang was told to load."""

    path: str
    """A directory, a file, a repository of a model hub, or a URL."""
    revision: str = ""
    download_dir: str = ""
    load_format: str = "auto"

    @property
    def is_none(self) -> bool:
        """Whether no model is loaded at all, as in tests of SGLang's."""
        return self.path.lower() in _NO_MODEL

    @property
    def is_dummy(self) -> bool:
        """Whether the weights are made up."""
        return self.load_format == "dummy"

    @property
    def has_commit(self) -> bool:
        """Whether the revision alone tells the weights: a commit of a repository never changes."""
        is_local = "://" in self.path or Path(self.path).exists()
        return not is_local and _COMMIT.fullmatch(self.revision) is not None

    def weights(self) -> str:
        """Text that is the same exactly for the same weights. UnknownWeightsError with the reason."""
        if self.is_dummy:
            return dummy_weights()
        if self.load_format not in _FROM_FILES:
            raise UnknownWeightsError(
                f"--load-format {self.load_format} does not say where its weights come from"
            )
        return weights_fingerprint(self.located())

    def located(self) -> Path:
        """Where its files are on this host; never asks the network. UnknownWeightsError."""
        if "://" in self.path:
            raise UnknownWeightsError(f"{self.path} is not on this host")
        path = Path(self.path).expanduser()
        if path.exists():
            return path
        try:
            from huggingface_hub import snapshot_download

            return Path(
                snapshot_download(
                    self.path,
                    revision=self.revision or None,
                    cache_dir=self.download_dir or None,
                    local_files_only=True,
                )
            )
        except Exception as error:
            raise UnknownWeightsError(
                f"{self.path} is neither a path nor in the hub's cache on this host ({type(error).__name__})"
            ) from error

    def descriptions(self) -> Iterable[Mapping[str, Any]]:
        """What its JSON files say of the model; nothing where it can't be read."""
        try:
            directory = self.located()
        except UnknownWeightsError:
            return
        for name in ("config.json", "hf_quant_config.json"):
            try:
                said = json.loads((directory / name).read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(said, dict):
                yield said


def dummy_weights() -> str:
    """SGLang draws made-up weights from a seed of its own, whatever --random-seed says."""
    loader = sys.modules.get("sglang.srt.model_loader.weight_utils")
    try:
        seed = inspect.signature(loader.initialize_dummy_weights).parameters["seed"].default  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError, ValueError):
        seed = ""
    return f"dummy/{seed}"


def adapters_fingerprint(adapters: Mapping[str, str], download_dir: str = "") -> str:
    """Of the LoRA adapters that an engine starts with, name -> path; empty for none. UnknownWeightsError.

    SGLang puts an adapter's name and path into the page hashes, which stay the same when it is trained anew.
    """
    if not adapters:
        return ""
    told = sorted((name, Checkpoint(path, "", download_dir).weights()) for name, path in adapters.items())
    return sha256(json.dumps(told).encode()).hexdigest()[:32]
