"""Whether SGLang's page hashes tell LoRA adapters and tenants apart. 0.5.20 begins a chain of hashes with the request's
adapter and cache salt; 0.5.18 and older hash tokens alone, so that one adapter is served the pages of another.
"""

import importlib
import logging

from hicache_adapter.model_facts import lora_is_on

_SEED = ("sglang.srt.mem_cache.utils", "storage_namespace_seed")

logger = logging.getLogger("hicache_adapter")


def hashes_are_seeded() -> bool:
    """Whether the page hashes of this SGLang depend on LoRA adapter and cache salt."""
    module, function = _SEED
    try:
        return callable(getattr(importlib.import_module(module), function, None))
    except Exception:
        return False


def adapters_share_pages() -> str | None:
    """Why pages must be neither stored nor loaded: LoRA is on, and pages of all adapters have the same hashes. None where
    nothing is against it.
    """
    if hashes_are_seeded() or not lora_is_on():
        return None
    return (
        "LoRA is on, and this SGLang (0.5.18 or older) gives pages of all adapters the same hashes; "
        "use SGLang 0.5.20 or newer, or serve adapters without a storage backend"
    )


def warn_of_shared_salts() -> None:
    """Requests can't be seen from here, so that one line has to do."""
    if not hashes_are_seeded():
        logger.warning(
            "kvstore: this SGLang (0.5.18 or older) leaves cache_salt and extra_key out of its page hashes: requests "
            "that they are to keep apart share pages; use SGLang 0.5.20 or newer if there are any"
        )
