"""SGLang HiCache storage backend (`--hicache-storage-backend dynamic`) on top of kvstore_client.

Importing this package needs nothing but kvstore_client; SGLang is imported when `KVStoreHiCache` is asked
for.
"""

from typing import TYPE_CHECKING, Any

from hicache_adapter.config import AdapterConfig
from kvstore_client.errors import ConfigError

if TYPE_CHECKING:
    from hicache_adapter.backend import KVStoreHiCache

__all__ = ["AdapterConfig", "ConfigError", "KVStoreHiCache"]


def __getattr__(name: str) -> Any:
    if name != "KVStoreHiCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from hicache_adapter.backend import KVStoreHiCache
    except ImportError as error:
        raise ImportError(
            f"hicache_adapter.KVStoreHiCache needs SGLang 0.5.6 or newer in the same environment: {error}"
        ) from error
    return KVStoreHiCache
