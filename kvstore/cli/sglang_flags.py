"""The SGLang flags that attach a server to this store, ready to paste."""

from __future__ import annotations

import json
import shlex

ADAPTER_CONFIG: dict[str, object] = {
    "backend_name": "kvstore",
    "module_path": "hicache_adapter",
    "class_name": "KVStoreHiCache",
    "interface_v1": 1,
    # Says how deep in its prefix a page lies, so that tails are evicted before the heads that they hang on.
    "hicache_storage_pass_prefix_keys": True,
}
# Suggested, not required: with page_first a page is one contiguous piece of the engine's host pool.
LAYOUT_FLAGS = ("--hicache-mem-layout", "page_first", "--hicache-io-backend", "kernel")


def adapter_config(masters: str, token_file: str = "") -> str:
    """The JSON of --hicache-storage-backend-extra-config. `masters`: directory ports, host:port[,host:port].

    A secret goes in as the path of its file: flags are visible to every user of the machine.
    """
    config: dict[str, object] = {**ADAPTER_CONFIG, "masters": masters}
    if token_file:
        config["token_file"] = token_file
    return json.dumps(config, separators=(",", ":"))


def sglang_flags(masters: str, token_file: str = "") -> list[str]:
    """The flags, one list item a word."""
    return [
        "--enable-hierarchical-cache",
        "--hicache-storage-backend",
        "dynamic",
        "--hicache-storage-backend-extra-config",
        adapter_config(masters, token_file),
    ]


def as_shell(words: list[str]) -> str:
    """The words as one shell line."""
    return " ".join(map(shlex.quote, words))
