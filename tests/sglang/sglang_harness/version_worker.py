"""A worker of one SGLang version: what it does with pages, and what can be seen of the version itself.

Runs in a fork of `fork_server.py`.
"""

import dataclasses
import hashlib
import importlib
import inspect
import json
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from sglang_harness.case import Case

HASH_EXTENSION = "hicache_hash_cpp"
MEMORY_RESERVE_BYTES = 10 << 30
METRICS_MODULES = ("sglang.srt.metrics.collector", "sglang.srt.observability.metrics_collector")
# What SGLang calls beside its interface's own methods.
CALLED = ("close", "clear", "get_stats", "on_host_pools_registered")


def run(version: str, overlay: str | None, commands: TextIO, replies: TextIO) -> None:
    """Imports that version (from `overlay`, or the installed one), then serves commands until they end."""
    import logging

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    engine = _installed_engine() if overlay is None else _older_engine(Path(overlay))
    seen = importlib.import_module("sglang.version").__version__
    assert seen == version, f"this is SGLang {seen}"
    _reply(replies, {"ready": True})
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "write": write,
        "read": read,
        "facts": facts,
        "misfits": misfits,
        "call_everything": call_everything,
        "threads_after_failures": threads_after_failures,
        "reattach": reattach,
        "metrics": metrics,
        "store_with_lora": store_with_lora,
    }
    for line in commands:
        command = json.loads(line)
        try:
            case = Case.from_json(command["case"])
            answer = verbs[command["verb"]](engine, case, **command["more"])
        except Exception:
            answer = {"error": traceback.format_exc()}
        _reply(replies, answer)


def _reply(replies: TextIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def _installed_engine() -> Any:
    from sglang_harness.engine import Engine

    return Engine


def _older_engine(overlay: Path) -> Any:
    sys.path.insert(0, str(overlay))
    importlib.invalidate_caches()
    _keep_hash_builds(overlay.parent)
    _free_memory_reserve()
    _let_configurations_be_named_twice()
    from sglang_harness.older_engine import OlderEngine

    return OlderEngine


def _keep_hash_builds(folder: Path) -> None:
    """SGLang compiles its hash extension at first use. One build for all versions whose source is the same."""
    from torch.utils import cpp_extension

    load = cpp_extension.load

    def load_kept(name: str, sources: list[str], **options: Any) -> Any:
        if name == HASH_EXTENSION:
            (source,) = map(Path, sources)
            home = folder / HASH_EXTENSION / hashlib.sha256(source.read_bytes()).hexdigest()[:16]
            home.mkdir(parents=True, exist_ok=True)
            kept = home / source.name
            if not kept.exists():
                kept.write_bytes(source.read_bytes())
            sources, options["build_directory"] = [str(kept)], str(home)
        return load(name=name, sources=sources, **options)

    cpp_extension.load = load_kept


def _free_memory_reserve() -> None:
    """SGLang leaves 10 GiB of host memory free for a real engine; these pools have a few MiB."""
    import psutil

    ask = psutil.virtual_memory

    def with_reserve() -> Any:
        memory = ask()
        return memory._replace(available=memory.available + MEMORY_RESERVE_BYTES)

    psutil.virtual_memory = with_reserve


def _let_configurations_be_named_twice() -> None:
    """Models that older versions bring a configuration for have come into transformers since."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    register = CONFIG_MAPPING.register
    CONFIG_MAPPING.register = lambda key, value, exist_ok=False: register(key, value, exist_ok=True)


# ---- pages --------------------------------------------------------------------------------------------------------------


def write(build: Any, case: Case) -> dict[str, Any]:
    """Fills pages and backs them up."""
    from sglang_harness.prompts import write_prompt

    with build(case) as engine:
        written = write_prompt(engine)
        return {
            "hashes": written.hashes,
            "stored_tokens": written.stored_tokens,
            "digests": [_digest(page) for page in engine.page_bytes(written.slots)],
            **_seen_of(engine),
        }


def read(build: Any, case: Case) -> dict[str, Any]:
    """Prefetches the same prompt into other slots of a pool that starts empty."""
    from sglang_harness.prompts import read_prompt

    with build(case) as engine:
        got, _ = read_prompt(engine)
        slots = got.host_indices
        return {
            "hit_tokens": got.hit_tokens,
            "loaded_tokens": got.completed_tokens,
            "digests": [] if slots is None else [_digest(page) for page in engine.page_bytes(slots)],
            **_seen_of(engine),
        }


def _seen_of(engine: Any) -> dict[str, Any]:
    backend = engine.backend
    return {
        "counters": backend.counters(),
        "identity": backend._store(not engine.case.interface_v1).identity_digest,
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- the version --------------------------------------------------------------------------------------------------------


def facts(build: Any, case: Case) -> dict[str, Any]:
    """What this version has."""
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache import hicache_storage, utils
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo

    return {
        "config_fields": [field.name for field in dataclasses.fields(HiCacheStorageConfig)],
        "prefix_keys_default": repr(HiCacheStorageExtraInfo().prefix_keys),
        "attach": hasattr(HiCacheController, "attach_storage_backend"),
        "side_pools": hasattr(hicache_storage, "PoolTransfer"),
        "restorable_prefixes": "restorable_prefix_pages"
        in getattr(getattr(hicache_storage, "PoolTransferResult", None), "__dataclass_fields__", ()),
        "seeded_hashes": hasattr(utils, "storage_namespace_seed"),
        "storage_metrics": [name for name in METRICS_MODULES if _has(name, "StorageMetrics")],
    }


def _has(module_name: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module_name), name)
    except ImportError:
        return False


def misfits(build: Any, case: Case) -> dict[str, Any]:
    """How this version's interface differs from ours where its callers would notice: parameters of ours that are named or
    placed otherwise, methods that are missing.
    """
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    from hicache_adapter import KVStoreHiCache

    declared = {
        name: item
        for name, item in vars(HiCacheStorage).items()
        if callable(item) and not name.startswith("_")
    }
    wrong = [f"{name}: abstract" for name in KVStoreHiCache.__abstractmethods__]
    wrong += [f"{name}: missing" for name in CALLED if not callable(getattr(KVStoreHiCache, name, None))]
    for name, method in declared.items():
        theirs = list(inspect.signature(method).parameters.values())
        ours = inspect.signature(getattr(KVStoreHiCache, name))
        by_position = list(ours.parameters)[: len(theirs)]
        if by_position != [parameter.name for parameter in theirs]:
            wrong.append(f"{name}{inspect.signature(method)}: ours is {ours}")
    return {"declared": sorted(declared), "wrong": wrong}


def call_everything(build: Any, case: Case) -> dict[str, Any]:
    """Each method once with what this version would pass, and once with rubbish; what they answered."""
    from sglang.srt.mem_cache import hicache_storage

    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
    with build(case) as engine:
        backend, page = engine.backend, engine.host_pool.get_dummy_flat_data_page
        slots = engine.host_pool.alloc(len(keys) * case.page_size)
        extra = hicache_storage.HiCacheStorageExtraInfo()
        transfer = getattr(hicache_storage, "PoolTransfer", None)
        transfers = [] if transfer is None else [transfer(name="indexer", host_indices=slots, keys=keys)]
        answers = {}
        for kind, what, where, more, pools in (
            ("right", keys, slots, extra, transfers),
            ("wrong", [None, 3.5, 7, b"0"], slots[:-1], object(), [SimpleNamespace(name="mamba", keys=None)]),
        ):
            flat = [page() for _ in keys]
            answers[kind] = {
                "batch_exists": backend.batch_exists(what, more),
                "batch_set_v1": backend.batch_set_v1(what, where, more),
                "batch_get_v1": backend.batch_get_v1(what, where, extra_info=more),
                "batch_set": backend.batch_set(what, flat),
                "batch_get": [found is not None for found in backend.batch_get(what, flat)],
                "set": backend.set(what[0], flat[0]),
                "get": backend.get(what[0], flat[0]) is not None,
                "exists": backend.exists(what[0]),
                "batch_set_v2": _plain(backend.batch_set_v2(pools, extra_info=more)),
                "batch_get_v2": _plain(backend.batch_get_v2(pools, extra_info=more)),
                "batch_exists_v2": _hit_pages(backend.batch_exists_v2(what, pools, more)),
                "get_stats": repr(backend.get_stats()),
            }
        backend.clear()
        answers["after a clear"] = {"batch_exists": backend.batch_exists(keys, extra)}
        return answers


def _hit_pages(result: Any) -> int:
    return int(result.kv_hit_pages if hasattr(result, "kv_hit_pages") else result.hit_pages)


def _plain(answer: dict[Any, list[bool]]) -> dict[str, list[bool]]:
    return {str(getattr(name, "value", name)): truths for name, truths in answer.items()}


def threads_after_failures(build: Any, case: Case, fault: str, patience_s: float) -> dict[str, Any]:
    """Backs up and prefetches with a store that is not there, or a fault "inside" the adapter, or a "backend" that raises;
    which of SGLang's storage threads are alive afterwards, and what the operations came to.
    """
    with build(case) as engine:
        if fault == "inside":
            engine.backend._store = _raise
        if fault == "backend":
            for name in ("batch_exists", "batch_get_v1", "batch_set_v1"):
                setattr(engine.backend, name, _raise)
        slots = engine.host_pool.alloc(case.pages * case.page_size)
        backup = _outcome(lambda: engine.backup(slots, case.tokens, timeout_s=patience_s)[1])
        prefetch = _outcome(lambda: engine.prefetch(case.tokens, timeout_s=patience_s).hit_tokens)
        threads = {
            name: item for name, item in vars(engine.controller).items() if isinstance(item, threading.Thread)
        }
        return {
            "dead": sorted(name for name, thread in threads.items() if not thread.is_alive()),
            "alive": sorted(name for name, thread in threads.items() if thread.is_alive()),
            "backup": backup,
            "prefetch": prefetch,
        }


def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a storage backend's own fault")


def _outcome(call: Callable[[], int]) -> str:
    try:
        return str(call())
    except Exception as error:
        return f"no answer ({type(error).__name__})"


def reattach(build: Any, case: Case) -> dict[str, Any]:
    """Stores, detaches, attaches and loads."""
    from sglang_harness.prompts import read_prompt, write_prompt

    with build(case) as engine:
        written = write_prompt(engine)
        digests = [_digest(page) for page in engine.page_bytes(written.slots)]
        engine.host_pool.free(written.slots)
        old = engine.backend
        engine.controller.detach_storage_backend()
        engine.controller.attach_storage_backend(
            storage_backend="dynamic",
            prefetch_threshold=case.page_size,
            model_name=case.model_name,
            storage_backend_extra_config=case.extra_config,
        )
        got, _ = read_prompt(engine)
        return {
            "old_is_closed": old._closed,
            "same": [_digest(page) for page in engine.page_bytes(got.host_indices)] == digests,
        }


def metrics(build: Any, case: Case) -> dict[str, Any]:
    """What SGLang's collector would be given after a backup and a prefetch."""
    from sglang_harness.prompts import read_prompt, write_prompt

    with build(case) as engine:
        written = write_prompt(engine)
        engine.host_pool.free(written.slots)
        read_prompt(engine)
        stats = engine.backend.get_stats()
        where = [name for name in METRICS_MODULES if _has(name, "StorageMetrics")]
        (theirs,) = {importlib.import_module(name).StorageMetrics for name in where}
        return {
            "is_storage_metrics": isinstance(stats, theirs),
            "backup_pgs": getattr(stats, "backup_pgs", None),
            "prefetch_pgs": getattr(stats, "prefetch_pgs", None),
        }


def store_with_lora(build: Any, case: Case) -> dict[str, Any]:
    """Backs up and prefetches in a server that serves LoRA adapters."""
    with _lora_settings(), build(case) as engine:
        slots = engine.host_pool.alloc(case.pages * case.page_size)
        stored = engine.backup(slots, case.tokens)[1]
        hit = engine.prefetch(case.tokens).hit_tokens
        return {"stored_tokens": stored, "hit_tokens": hit}


@contextmanager
def _lora_settings() -> Iterator[None]:
    """--enable-lora, in the runtime context or before there was one in the global server args."""
    try:
        from sglang.srt.runtime_context import get_context
    except ImportError:
        from sglang.srt import server_args

        server_args.set_global_server_args_for_scheduler(SimpleNamespace(enable_lora=True, lora_paths=None))
        try:
            yield
        finally:
            server_args.set_global_server_args_for_scheduler(None)
        return
    with get_context().override_server_args(enable_lora=True):
        yield
