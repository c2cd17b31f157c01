"""Metadata stores by URI scheme. A new store is a file of its own and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kvstore.common.errors import StoreError
from kvstore.master.metadata.store import MetadataStore

# scheme -> "module:factory"; imported on use, so that a store's dependency is needed only where it is chosen.
_FACTORIES = {
    "etcd": "kvstore.master.metadata.etcd:open_uri",
    "rocksdb": "kvstore.master.metadata.rocksdb:open_uri",
    "memory": "kvstore.master.metadata.memory:open_uri",
}


def metadata_schemes() -> tuple[str, ...]:
    """The kinds of stores there are."""
    return tuple(_FACTORIES)


def scheme_of(uri: str) -> str:
    """What kind of store it names."""
    return uri.partition(":")[0]


def metadata_store(uri: str) -> MetadataStore:
    """A store, not opened yet. StoreError names the schemes there are."""
    scheme = scheme_of(uri)
    if scheme not in _FACTORIES:
        raise StoreError(
            f"no metadata store for {uri!r}: use one of {', '.join(s + ':' for s in sorted(_FACTORIES))}"
        )
    module, _, name = _FACTORIES[scheme].partition(":")
    factory: Callable[[str], MetadataStore] = getattr(import_module(module), name)
    return factory(uri)
