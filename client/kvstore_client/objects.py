"""The verbs on a set of objects: put, get, exists, remove, one key or a batch. Nothing here raises for
what happens at run time.
"""

import math
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvstore_client import _native
from kvstore_client import keys as keymod
from kvstore_client._native import PageClient, Pieces
from kvstore_client.config import clamp_deadline_ms
from kvstore_client.entries import BAD_ENTRY, runs_without_fault
from kvstore_client.intent import Keep
from kvstore_client.memory import BorrowedMemory
from kvstore_client.protocol import ENTRIES_MAX, KEYS_MAX, REPLICAS_MAX, Status
from kvstore_client.signal_handlers import is_from_signal_handler

if TYPE_CHECKING:
    from kvstore_client.client import Client

FETCH_BYTES_MAX = 1 << 30
UINT32_MAX = (1 << 32) - 1
DEPTH_MAX = (1 << 31) - 1  # of the first key: those of its batch count on from it

# Translation tables: entry status -> 1 where the verb has done what was asked.
DONE_FOUND = bytes(status == Status.OK for status in range(256))
DONE_STORED = bytes(status in (Status.OK, Status.EXISTS) for status in range(256))


class Objects(ABC):
    """Objects of one namespace that share a pool and a list of shards.

    Lists of truth values have one item a *key*: with several shards a key counts only if all of its shards
    do. Lists of bytes, and the memory given to put and get, have one item an *entry*, key-major: shard s of
    key k is item `k * shard_count + s`. Any thread may call.

    A value has 1 byte to 1 GiB; an empty one can't be stored. A key or a value that can't be one is logged, counted
    (`bad_arguments`) and answered like a miss, and the rest of its batch is done.
    """

    def __init__(self, client: "Client", handle: int, pool: int, shards: Sequence[keymod.Shard]) -> None:
        self._client = client
        self._handle = handle
        self._pool = pool
        self._shards = keymod.pack_shards(shards)
        self.shard_count = len(shards)

    @property
    def _native(self) -> PageClient:
        return self._client._native  # a forked child has another one

    @abstractmethod
    def _hashes(self, keys: Sequence[Any]) -> bytes:
        """32 bytes a key, concatenated. TypeError or ValueError for what can't be a key."""

    def _texts(self, keys: Sequence[Any]) -> list[str] | None:
        """What is stored beside each object so that people can read it."""
        return None

    # ---- one key ----

    def put(
        self,
        key: Any,
        value: Any,
        *,
        deadline_ms: float | None = None,
        keep: Keep = Keep.NORMAL,
        ttl_ms: int | None = None,
        replicas: int | None = None,
    ) -> bool:
        """Stores `value` if the key is absent. True when the key is readable now, whoever wrote it. `keep`, `ttl_ms`
        and `replicas` as for batch_put.
        """
        return self.batch_put(
            [key], [value], deadline_ms=deadline_ms, keep=keep, ttl_ms=ttl_ms, replicas=replicas
        )[0]

    def get(self, key: Any, *, deadline_ms: float | None = None) -> bytes | None:
        """The object's bytes, or None."""
        return self.batch_get([key], deadline_ms=deadline_ms)[0]

    def get_into(self, key: Any, memory: Any, *, deadline_ms: float | None = None) -> bool:
        """Fills `memory`, whose size must be the object's. On False it may hold anything."""
        return self.batch_get_into([key], [memory], deadline_ms=deadline_ms)[0]

    def exists(self, key: Any, *, pin_ms: int | None = None, deadline_ms: float | None = None) -> bool:
        """Whether a get would find it."""
        return self.batch_exists([key], pin_ms=pin_ms, deadline_ms=deadline_ms)[0]

    def remove(self, key: Any, *, deadline_ms: float | None = None) -> bool:
        """Removes every copy that can be reached. True when there was one."""
        return self.batch_remove([key], deadline_ms=deadline_ms)[0]

    def keep(
        self, key: Any, intent: Keep, *, ttl_ms: int | None = None, deadline_ms: float | None = None
    ) -> bool:
        """As batch_keep."""
        return self.batch_keep([key], intent, ttl_ms=ttl_ms, deadline_ms=deadline_ms)[0]

    # ---- batches ----

    def batch_put(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        *,
        deadline_ms: float | None = None,
        depth: int = 0,
        ack_committed: bool = True,
        keep: Keep = Keep.NORMAL,
        ttl_ms: int | None = None,
        replicas: int | None = None,
    ) -> list[bool]:
        """Stores what is absent. `depth`: position of the first key in its prefix chain, a hint for eviction.

        With `ack_committed` (the default) True means that the object outlives a crash of the master; without,
        that a segment has it. `keep`: what is to become of all of them, those that were there already included,
        when space runs short; a hint as well, see batch_keep.

        `replicas` (None: the client's setting; 4 at most): so many copies of each, on different hosts where there are
        such; of what is there in fewer, the others. They are written at the same time, and one that is stored is
        enough for True: those that the deadline cuts off, or nobody takes, are counted (`put_copies_short`).
        """

        first_depth = self._number("put", "depth", depth, DEPTH_MAX)
        wish = self._wish("put", keep, ttl_ms)
        copies = self._copies(replicas)
        if first_depth is None or wish is None or copies is None:
            return self._nothing_done("put", keys)

        def chunk(hashes: bytes, at: slice, left_ms: int) -> bytes:
            with BorrowedMemory(values[self._entries(at)], writable=False) as pieces:
                return self._native.put(
                    self._handle,
                    self._pool,
                    self._shards,
                    hashes,
                    pieces,
                    left_ms,
                    ack_committed,
                    first_depth + at.start,
                    self._texts(keys[at]),
                    *wish,
                    replicas=copies,
                )

        return self._truths("put", keys, chunk, DONE_STORED, deadline_ms, memory=values)

    def batch_get(self, keys: Sequence[Any], *, deadline_ms: float | None = None) -> list[bytes | None]:
        """The bytes of each entry, or None; at most 1 GiB of them a call."""
        if not self._is_key_list("get", keys):
            return []
        found: list[bytes | None] = [None] * (len(keys) * self.shard_count)

        def chunk(hashes: bytes, at: slice, left_ms: int) -> None:
            values = self._native.fetch(
                self._handle, self._pool, self._shards, hashes, left_ms, FETCH_BYTES_MAX
            )
            entries = self._entries(at)
            if len(values) == entries.stop - entries.start:
                found[entries] = values

        self._each_chunk("get", keys, chunk, deadline_ms)
        return found

    def batch_get_into(
        self, keys: Sequence[Any], memory: Sequence[Any], *, deadline_ms: float | None = None
    ) -> list[bool]:
        """Fills the memory of each entry; only what is answered True holds the object's bytes."""

        def chunk(hashes: bytes, at: slice, left_ms: int) -> bytes:
            with BorrowedMemory(memory[self._entries(at)], writable=True) as pieces:
                return self._native.get(self._handle, self._pool, self._shards, hashes, pieces, left_ms)

        return self._truths("get_into", keys, chunk, DONE_FOUND, deadline_ms, memory=memory)

    def batch_exists(
        self, keys: Sequence[Any], *, pin_ms: int | None = None, deadline_ms: float | None = None
    ) -> list[bool]:
        """Whether each key is there; with `pin_ms` it stays there for that long."""

        pin = self._pin_ms(pin_ms)
        if pin is None:
            return self._nothing_done("exists", keys)

        def chunk(hashes: bytes, at: slice, left_ms: int) -> bytes:
            return self._probe(hashes, pin, left_ms)

        return self._truths("exists", keys, chunk, DONE_FOUND, deadline_ms)

    def prefix_exists(
        self, keys: Sequence[Any], *, pin_ms: int | None = None, deadline_ms: float | None = None
    ) -> int:
        """How many keys from the first one on are there without a gap."""
        if not self._is_key_list("exists", keys):
            return 0
        try:
            hashes = self._hashes(keys)
        except BAD_ENTRY as error:
            if is_from_signal_handler(error):
                raise
            hashes = self._hashes_before_a_fault("exists", keys)
        return self.prefix_exists_hashes(hashes, pin_ms=pin_ms, deadline_ms=deadline_ms)

    def _hashes_before_a_fault(self, verb: str, keys: Sequence[Any]) -> bytes:
        hashes = []
        for key in keys:
            try:
                hashes.append(self._hashes([key]))
            except BAD_ENTRY as error:
                if is_from_signal_handler(error):
                    raise
                self._client._bad_argument(verb, error)
                break
        return b"".join(hashes)

    def batch_remove(self, keys: Sequence[Any], *, deadline_ms: float | None = None) -> list[bool]:
        """Removes every reachable copy of each key."""

        def chunk(hashes: bytes, at: slice, left_ms: int) -> bytes:
            return self._native.remove(self._handle, self._pool, self._shards, hashes, left_ms)

        return self._truths("remove", keys, chunk, DONE_FOUND, deadline_ms)

    def batch_keep(
        self,
        keys: Sequence[Any],
        intent: Keep,
        *,
        ttl_ms: int | None = None,
        deadline_ms: float | None = None,
    ) -> list[bool]:
        """Says what is to become of pages that are stored when space runs short, for a whole chain: its keys in
        order, the head of the prefix first.

        RETAIN: they go last, for `ttl_ms` (None: half an hour; a day at most), within the budget of each segment.
        Where that is too small the first keys of the batch are retained, and the others stay as they were. DEMOTE:
        they go first; one that is used again is as any other from then on. NORMAL takes back either. True where a
        segment has the page and does so; a hint, so that False is nothing that anything else depends on.
        """
        wish = self._wish("keep", intent, ttl_ms)
        if wish is None:
            return self._nothing_done("keep", keys)

        def chunk(hashes: bytes, at: slice, left_ms: int) -> bytes:
            return self._native.keep(self._handle, self._pool, self._shards, hashes, *wish, left_ms)

        return self._truths("keep", keys, chunk, DONE_FOUND, deadline_ms)

    # ---- the same for callers that have hashes (32 bytes a key, concatenated) and describe memory by Pieces
    # ----

    def prefix_exists_hashes(
        self, hashes: bytes, *, pin_ms: int | None = None, deadline_ms: float | None = None
    ) -> int:
        """How many keys from the first one on are there without a gap."""
        run = 0
        pin = self._pin_ms(pin_ms)
        if pin is None:
            return 0

        def chunk(part: bytes, at: slice, left_ms: int) -> bool:
            nonlocal run
            statuses = self._probe(part, pin, left_ms)
            hole = statuses.translate(DONE_FOUND).find(0)
            run += (len(statuses) if hole < 0 else hole) // self.shard_count
            return hole >= 0

        self._each_chunk("exists", _HashList(hashes), chunk, deadline_ms)
        return run

    def present_hashes(
        self, hashes: bytes, *, pin_ms: int | None = None, deadline_ms: float | None = None
    ) -> bytes:
        """One byte a key: 1 where it is there, 0 where it is not or the deadline came first."""
        present = bytearray(len(hashes) // keymod.HASH_BYTES)
        pin = self._pin_ms(pin_ms)
        if pin is None:
            return bytes(present)

        def chunk(part: bytes, at: slice, left_ms: int) -> None:
            flags = key_flags(self._probe(part, pin, left_ms), DONE_FOUND, self.shard_count)
            if len(flags) == at.stop - at.start:  # anything else would shift the answers of other keys
                present[at] = flags

        self._each_chunk("exists", _HashList(hashes), chunk, deadline_ms)
        return bytes(present)

    def put_pieces(
        self,
        hashes: bytes,
        memory: Pieces,
        *,
        deadline_ms: int,
        depth: int = 0,
        keep: Keep = Keep.NORMAL,
        ttl_ms: int = 0,
        stall_ms: int = 0,
    ) -> bytes:
        """One status an entry (docs/protocol.md section 2). At most 65,536 keys and 131,072 entries. `ttl_ms` 0: half
        an hour. Ends at the deadline, or after `stall_ms` in which nothing has moved; 0: however long that is.
        """
        statuses = self._native.put(
            self._handle,
            self._pool,
            self._shards,
            hashes,
            memory,
            deadline_ms,
            True,
            depth,
            None,
            keep,
            ttl_ms,
            stall_ms,
            self._client.config.replicas,
        )
        self._client._say_troubles()
        return statuses

    def keep_hashes(self, hashes: bytes, intent: Keep, *, deadline_ms: int, ttl_ms: int = 0) -> bytes:
        """batch_keep with one status an entry: OK, MISS, NO_SPACE where the budget does not allow it. At most 65,536
        keys and 131,072 entries.
        """
        statuses = self._native.keep(
            self._handle, self._pool, self._shards, hashes, intent, ttl_ms, deadline_ms
        )
        self._client._say_troubles()
        return statuses

    def get_pieces(self, hashes: bytes, memory: Pieces, *, deadline_ms: int, stall_ms: int = 0) -> bytes:
        """One status an entry; only those answered OK hold the object's bytes. `stall_ms` as for put_pieces."""
        statuses = self._native.get(
            self._handle, self._pool, self._shards, hashes, memory, deadline_ms, stall_ms
        )
        self._client._say_troubles()
        return statuses

    # ---- how a batch runs ----

    def _probe(self, hashes: bytes, pin_ms: int, left_ms: int) -> bytes:
        return self._native.exists(self._handle, self._pool, self._shards, hashes, pin_ms, left_ms)

    def _pin_ms(self, pin_ms: int | None) -> int | None:
        return self._number("exists", "pin_ms", self._client.config.pin_ms if pin_ms is None else pin_ms)

    def _number(self, verb: str, name: str, value: Any, maximum: int = UINT32_MAX) -> int | None:
        """A number that a whole batch shares; None, and said once, when it can't be one: no key is to blame."""
        try:
            number = operator.index(value)
        except TypeError:
            number = -1
        if 0 <= number <= maximum:
            return number
        problem = f"{name} is a whole number from 0 to {maximum}, not {value!r:.80}"
        self._client._bad_argument(verb, ValueError(problem))
        return None

    def _wish(self, verb: str, keep: Any, ttl_ms: Any) -> tuple[int, int] | None:
        intent = self._number(verb, "keep", keep, max(Keep))
        ttl = self._number(verb, "ttl_ms", 0 if ttl_ms is None else ttl_ms)
        return None if intent is None or ttl is None else (intent, ttl)

    def _copies(self, replicas: Any) -> int | None:
        if replicas is None:
            return self._client.config.replicas
        copies = self._number("put", "replicas", replicas, REPLICAS_MAX)
        if copies == 0:
            self._client._bad_argument("put", ValueError("replicas is at least 1"))
            return None
        return copies

    def _nothing_done(self, verb: str, keys: Sequence[Any]) -> list[bool]:
        return [False] * len(keys) if self._is_key_list(verb, keys) else []

    def _truths(
        self,
        verb: str,
        keys: Sequence[Any],
        chunk: Callable[[bytes, slice, int], bytes],
        done: bytes,
        deadline_ms: float | None,
        memory: Sequence[Any] | None = None,
    ) -> list[bool]:
        if not self._is_key_list(verb, keys):
            return []
        answers = [False] * len(keys)

        def run(hashes: bytes, at: slice, left_ms: int) -> None:
            truths = key_truths(chunk(hashes, at, left_ms), done, self.shard_count)
            if len(truths) == at.stop - at.start:  # anything else would shift the answers of other keys
                answers[at] = truths

        if memory is None or self._fits(verb, len(answers), memory):
            self._each_chunk(verb, keys, run, deadline_ms)
        return answers

    def _each_chunk(
        self,
        verb: str,
        keys: Sequence[Any],
        chunk: Callable[[bytes, slice, int], object],
        deadline_ms: float | None,
    ) -> None:
        """Runs `chunk` over parts that fit the protocol's caps, until one answers true or the deadline is over. A part
        with a bad key or value is run in parts of its own that leave it out.
        """
        ends_at = time.monotonic() + clamp_deadline_ms(deadline_ms, self._client.config.deadline_ms) / 1000
        is_done = False

        def run(at: slice) -> None:
            nonlocal is_done
            left_ms = math.ceil((ends_at - time.monotonic()) * 1000)
            if is_done or left_ms <= 0:
                return
            part = keys[at]
            is_done = bool(chunk(part if isinstance(part, bytes) else self._hashes(part), at, left_ms))

        def fault(error: Exception) -> None:
            self._client._bad_argument(verb, error)

        try:
            for at in self._key_slices(len(keys)):
                runs_without_fault(at.start, at.stop, run, fault)
        except Exception as error:
            self._client._surprise(verb, error)
        self._client._say_troubles()

    def _key_slices(self, count: int) -> Iterator[slice]:
        step = min(KEYS_MAX, ENTRIES_MAX // self.shard_count)
        return (slice(at, min(at + step, count)) for at in range(0, count, step))

    def _entries(self, at: slice) -> slice:
        return slice(at.start * self.shard_count, at.stop * self.shard_count)

    def _is_key_list(self, verb: str, keys: Sequence[Any]) -> bool:
        if isinstance(keys, Sequence) and not isinstance(keys, (str, bytes)):
            return True
        self._client._bad_argument(verb, TypeError(f"keys come in a list, not in {type(keys).__name__}"))
        return False

    def _fits(self, verb: str, key_count: int, memory: Sequence[Any]) -> bool:
        entries = key_count * self.shard_count
        if isinstance(memory, (list, tuple)) and len(memory) == entries:
            return True
        problem = f"needs a list of {entries} values ({key_count} keys x {self.shard_count} shards)"
        self._client._bad_argument(verb, ValueError(problem))
        return False


class _HashList(Sequence[Any]):
    """Keys that are hashed already: counts in keys, slices to bytes."""

    def __init__(self, hashes: bytes) -> None:
        self._hashes = hashes

    def __len__(self) -> int:
        return len(self._hashes) // keymod.HASH_BYTES

    def __getitem__(self, at: Any) -> Any:
        return self._hashes[at.start * keymod.HASH_BYTES : at.stop * keymod.HASH_BYTES]


def key_truths(statuses: bytes, done: bytes, shard_count: int) -> list[bool]:
    """One bool a key: whether all of its entries have a status that `done` (DONE_FOUND or DONE_STORED)
    calls done.
    """
    return _native.key_truths(statuses, done, shard_count)


def key_flags(statuses: bytes, done: bytes, shard_count: int) -> bytes:
    """The same as bytes of 0 and 1; a key whose statuses are cut short is left out."""
    flags = statuses.translate(done)
    if shard_count == 1:
        return flags
    return bytes(map(min, *(flags[shard::shard_count] for shard in range(shard_count))))
