"""Pages of one identity, as one rank sees them: hex keys and memory in, truths out."""

import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from itertools import takewhile

from hicache_adapter.deadlines import Deadline
from hicache_adapter.kv_hints import NO_WISH, Wish
from kvstore_client import Client, Identity, Keep, Pieces, Shard, _native
from kvstore_client.entries import BAD_ENTRY, runs_without_fault
from kvstore_client.keys import HASH_BYTES, POOL_KV
from kvstore_client.objects import DONE_FOUND, DONE_STORED
from kvstore_client.protocol import ENTRIES_MAX, KEYS_MAX, Status
from kvstore_client.throttle import ThrottledLog

logger = logging.getLogger("hicache_adapter")

_USUAL = bytes((Status.OK, Status.MISS, Status.EXISTS))
_CLEAR_RETRY_S = 1.0
_REFUSED = frozenset((Status.UNAUTHORIZED, Status.BAD_REQUEST, Status.UNSUPPORTED_VERSION))


class PageStore:
    """Any thread may call. No call outlasts the configured deadline; none raises for what the network
    or a peer does.
    """

    def __init__(
        self,
        client: Client,
        identity: Identity,
        shards: Sequence[Shard],
        log: ThrottledLog,
        pool: int = POOL_KV,
    ) -> None:
        self.identity = identity
        self.identity_digest = hashlib.sha256(identity.canonical()).hexdigest()[:12]
        self.shards = tuple(shards)
        self._shard_count = len(self.shards)
        self._client = client
        self._namespace = client.namespace(identity)
        self._pages = self._namespace.pages(pool, shards)
        self._log = log
        self._lock = threading.Lock()
        self._greeted = False
        self._clear_owed = False
        self._clear_retry_at = 0.0

    def exists(self, keys: Sequence[str], deadline: Deadline, wish: Wish = NO_WISH) -> int:
        """Length of the leading run that is stored completely and pinned; it is kept or demoted by the wish."""
        if not keys or (self._clear_owed and not self._clear_is_done(deadline)):
            return 0
        try:
            hashes = hashes_of(keys)
        except BAD_ENTRY:
            hashes = b"".join(takewhile(bool, map(self._hash_or_nothing, keys)))
        run = self._pages.prefix_exists_hashes(hashes, deadline_ms=deadline.left_ms)
        if run:
            self._greet()
            if wish.keep != Keep.NORMAL:
                self._keep(hashes[: run * HASH_BYTES], wish, deadline)
        return run

    def _keep(self, hashes: bytes, wish: Wish, deadline: Deadline) -> None:
        keys_max = min(KEYS_MAX, ENTRIES_MAX // len(self.shards))
        self._pages.keep_hashes(
            hashes[: keys_max * HASH_BYTES], wish.keep, deadline_ms=deadline.short_left_ms, ttl_ms=wish.ttl_ms
        )

    def present(self, keys: Sequence[str], deadline: Deadline) -> bytes:
        """One byte a key: 1 where the page is stored completely and pinned, else 0."""
        if not keys or (self._clear_owed and not self._clear_is_done(deadline)):
            return bytes(len(keys))
        present = bytearray(len(keys))

        def ask(at: slice) -> None:
            present[at] = self._pages.present_hashes(hashes_of(keys[at]), deadline_ms=deadline.left_ms)

        runs_without_fault(0, len(keys), ask, self._bad_key)
        if 1 in present:
            self._greet()
        return bytes(present)

    def get(self, keys: Sequence[str], memory: Pieces, deadline: Deadline) -> list[bool]:
        """Fills the memory; one truth a key."""
        if not keys or (self._clear_owed and not self._clear_is_done(deadline)):
            return [False] * len(keys)
        statuses = self._pages.get_pieces(
            hashes_of(keys), memory, deadline_ms=deadline.left_ms, stall_ms=deadline.stall_ms
        )
        return self._truths("get", keys, statuses, DONE_FOUND)

    def put(
        self,
        keys: Sequence[str],
        memory: Pieces,
        depth: int,
        deadline: Deadline,
        wish: Wish = NO_WISH,
    ) -> list[bool]:
        """Stores what is absent, and keeps or demotes all of it by the wish; one truth a key."""
        if not keys or (self._clear_owed and not self._clear_is_done(deadline)):
            return [False] * len(keys)
        statuses = self._pages.put_pieces(
            hashes_of(keys),
            memory,
            deadline_ms=deadline.left_ms,
            stall_ms=deadline.stall_ms,
            depth=depth,
            keep=wish.keep,
            ttl_ms=wish.ttl_ms,
        )
        return self._truths("set", keys, statuses, DONE_STORED)

    def _hash_or_nothing(self, key: str) -> bytes:
        try:
            return hashes_of([key])
        except BAD_ENTRY as error:
            self._bad_key(error)
            return b""

    def _bad_key(self, error: Exception) -> None:
        self._log.log(
            logging.ERROR, "bad key", "kvstore: a key that can't be one, answered as a miss: %s", error
        )

    def close(self) -> None:
        """Lets the client forget the namespace."""
        self._namespace.close()

    def clear(self, deadline: Deadline) -> bool:
        """Bumps the epoch. Where no master can be reached the debt is remembered, and until it is paid the
        store answers as empty: pages that were to be cleared must not come back with the network. A master that
        refuses has been reached: nothing is owed, and the pages stay.
        """
        status = self._namespace.try_clear(deadline_ms=deadline.short_left_ms)
        done, refused = status == Status.OK, status in _REFUSED
        with self._lock:
            self._clear_owed = not done and not refused
            self._clear_retry_at = time.monotonic() + _CLEAR_RETRY_S
        if refused:
            self._log.log(
                logging.ERROR,
                "clear refused",
                "kvstore: the master refused to clear (%s), so the pages were NOT cleared and are still loaded; "
                "clear needs a token with the role engine or admin (admin alone before this release): "
                "`kvstore admin clear %s` clears them with one of an admin",
                _status_name(status),
                self._namespace.namespace_id,
            )
        elif done:
            logger.info(
                "kvstore: cleared, namespace %s epoch %d", self._namespace.namespace_id, self._namespace.epoch
            )
        else:
            self._log.log(
                logging.ERROR,
                "clear",
                "kvstore: clear did not reach a master; nothing is loaded until it has",
            )
        return done

    def _clear_is_done(self, deadline: Deadline) -> bool:
        with self._lock:
            if not self._clear_owed:
                return True
            if time.monotonic() < self._clear_retry_at:
                return False
            self._clear_retry_at = float("inf")  # one thread tries
        # Whatever comes of it, this call has had its time; and what has been cleared just now is empty.
        self.clear(deadline)
        return False

    def _truths(self, verb: str, keys: Sequence[str], statuses: bytes, done: bytes) -> list[bool]:
        truths = _native.key_truths(statuses, done, self._shard_count)
        if len(truths) != len(keys):
            raise RuntimeError(f"{len(keys)} keys were answered with {len(statuses)} statuses")
        unusual = statuses.translate(None, _USUAL)
        if unusual:
            kinds = sorted(set(unusual))
            codes = ", ".join(f"{statuses.count(code)} x {_status_name(code)}" for code in kinds)
            self._log.log(
                logging.WARNING,
                f"{verb} {kinds}",
                "kvstore: %s: %s of %d objects",
                verb,
                codes,
                len(statuses),
            )
        elif not self._greeted:
            self._greet()
        return truths

    def _greet(self) -> None:
        """Once, when a master has answered: what the operator compares between two instances that
        should share.
        """
        if self._greeted or not self._namespace.namespace_id:
            return
        self._greeted = True
        segments = self._client.segments()
        logger.info(
            "kvstore: connected; identity %s namespace %s epoch %d; %d segments",
            self.identity_digest,
            self._namespace.namespace_id,
            self._namespace.epoch,
            len(segments),
        )


def _status_name(code: int) -> str:
    try:
        return Status(code).name
    except ValueError:
        return f"status {code}"


hashes_of = _native.hex_hashes
"""The hashes of SGLang's hex keys, concatenated. TypeError or ValueError where one can't be a key."""
