"""A namespace: string keys directly, page keys through `pages()`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvstore_client import keys as keymod
from kvstore_client.config import clamp_deadline_ms
from kvstore_client.objects import Objects
from kvstore_client.protocol import Status

if TYPE_CHECKING:
    from kvstore_client.client import Client


class Namespace(Objects):
    """The objects whose bytes are interchangeable (one identity). Its own verbs take string keys of at
    most 256 bytes.
    """

    def __init__(self, client: "Client", handle: int, identity: bytes, name: str) -> None:
        super().__init__(client, handle, keymod.POOL_STRING, (keymod.WHOLE,))
        self.name = name
        self._identity = identity

    def _hashes(self, keys: Sequence[Any]) -> bytes:
        return keymod.string_key_hashes(keys)

    def _texts(self, keys: Sequence[Any]) -> list[str] | None:
        return list(keys)

    def pages(self, pool: int = keymod.POOL_KV, shards: Sequence[keymod.Shard] = (keymod.WHOLE,)) -> "Pages":
        """The page objects of one pool and these shards. ValueError when pool or shards are out of range."""
        if not 0 <= pool < keymod.POOL_STRING:
            raise ValueError(f"a pool id lies in 0..{keymod.POOL_STRING - 1}, not {pool}")
        return Pages(self._client, self._handle, pool, shards)

    def open(self, *, deadline_ms: float | None = None) -> bool:
        """Whether a master has answered for this namespace. Calling it is optional: every verb opens what
        it needs.
        """
        wait_ms = clamp_deadline_ms(deadline_ms, self._client.config.deadline_ms)
        try:
            return self._native.open_namespace(self._identity, self.name, wait_ms)[0] == Status.OK
        except Exception as error:
            self._client._surprise("open", error)
            return False
        finally:
            self._client._say_troubles()

    def close(self) -> None:
        """Lets the client forget the namespace, which keeps 4,096 of them; nothing happens to what is stored. All
        objects of this client for the same identity answer like those of an empty store from now on.
        """
        self._client._close_namespace(self._handle)

    def clear(self, *, deadline_ms: float | None = None) -> bool:
        """Makes everything in the namespace unreachable for everyone, in constant time (its epoch goes
        up by one).
        """
        return self.try_clear(deadline_ms=deadline_ms) == Status.OK

    def try_clear(self, *, deadline_ms: float | None = None) -> int:
        """As clear. The `protocol.Status` says what came of it: UNAUTHORIZED where the master that was reached
        does not take it from this client's token.
        """
        wait_ms = clamp_deadline_ms(deadline_ms, self._client.config.deadline_ms)
        try:
            return self._native.bump_namespace(self._handle, wait_ms) if wait_ms > 0 else Status.TIMEOUT
        except Exception as error:
            self._client._surprise("clear", error)
            return Status.INTERNAL
        finally:
            self._client._say_troubles()

    @property
    def namespace_id(self) -> str:
        """Hex id of the current epoch; empty until a master has answered."""
        return self._native.namespace_state(self._handle)[0].hex()

    @property
    def epoch(self) -> int:
        """How often the namespace has been cleared, as far as this client knows."""
        return self._native.namespace_state(self._handle)[1]

    def stats(self) -> dict[str, Any]:
        """What this client knows of the namespace, and the client's counters."""
        return {
            "name": self.name,
            "namespace_id": self.namespace_id,
            "epoch": self.epoch,
            **self._client.stats(),
        }


class Pages(Objects):
    """Objects under page keys: 32 raw bytes or 64 hex digits each."""

    def _hashes(self, keys: Sequence[Any]) -> bytes:
        return keymod.page_key_hashes(keys)
