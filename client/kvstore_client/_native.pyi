"""The native core as Python sees it. Every blocking call releases the GIL once for the whole batch."""

import enum
from collections.abc import Buffer, Sequence  # type: ignore[attr-defined]
from typing import Any

# ---- digest, keys (bind_keys.cpp) -------------------------------------------------------------------------------------

def crc32c(data: Buffer) -> int: ...
def crc32c_implementation() -> str:
    """'vpclmulqdq', 'sse4.2', 'armv8' or 'table': what the running CPU got."""

def string_hashes(texts: list[str]) -> bytes:
    """32-byte page hashes of string keys, concatenated. ValueError over 256 bytes of UTF-8."""

def hex_hashes(keys: Sequence[str]) -> bytes:
    """The page hashes of 64-digit hex keys, concatenated; a key of any other form is hashed as a string key."""

def page_hashes(keys: Sequence[str | Buffer]) -> bytes:
    """The hashes that page keys are, concatenated: 64 hex digits or 32 raw bytes each. TypeError or ValueError for
    anything else."""

def key_truths(statuses: bytes, done: bytes, shard_count: int) -> list[bool]:
    """One bool a key: whether all of its entries have a status that `done`, 256 flags, calls done. A key whose statuses
    are cut short is left out."""

def fingerprints(ns: bytes, pool: int, shards: bytes, hashes: bytes) -> bytes:
    """16 bytes an entry, key-major (docs/protocol.md section 3)."""

def namespace_id(identity: bytes, epoch: int) -> bytes: ...

# ---- segment (bind_segment.cpp) ---------------------------------------------------------------------------------------

class PoolPlaceError(RuntimeError):
    """A path that can't hold a pool: no memory file system, too small, or not writable."""

class PoolRefusedError(RuntimeError):
    """A pool that is there and must not be used: locked, somebody else's, of another size or version. It is untouched."""

def pool_file_capacity_bytes(path: str) -> int:
    """The capacity of the pool at `path`, as far as its first page is whole; 0 for anything else, and where nothing is."""

class PoolProgress:
    """How far the making of a SegmentStore is, for another thread."""

    def __init__(self) -> None: ...
    @property
    def touched_bytes(self) -> int: ...
    @property
    def locked_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int:
        """What both come to; 0 until it is known."""
    @property
    def scanned_bytes(self) -> int:
        """Of the objects that an earlier process has left: how much was compared with their digests."""
    @property
    def adopted_objects(self) -> int:
        """Of those objects: how many can be found again."""
    def cancel(self) -> None:
        """Ends it within the time of touching 64 MiB a thread."""

class SegmentStore:
    """Memory pool, slot table, index, allocator, eviction and journal of one segment. Thread-safe."""

    def __init__(
        self,
        *,
        capacity_bytes: int,
        pool_id: bytes,
        free_ahead_bytes: int | None = None,
        eviction_policy: str = "adaptive",
        pinned_fraction_max: float = 0.5,
        journal_entries_max: int = 4_194_304,
        lock_memory: bool = False,
        pool_path: str = "",
        huge_pages: str = "thp",
        numa_nodes: Sequence[int] = (),
        retained_fraction_max: float = 0.10,
        retained_namespace_fraction_max: float = 0.05,
        segment_id: bytes = b"",
        empty_pool: bool = False,
        verify_pool: bool = True,
        progress: PoolProgress | None = None,
        writing_bytes_max: int = 0,
        held_bytes_max: int = 0,
        registered_bytes_max: int = 0,
        registered_buffers_max: int = 4096,
        body_bytes_max: int = 268_435_456,
        session_share_max: float = 0.5,
        disk_path: str = "",
        disk_capacity_bytes: int = 0,
        disk_threads: int = 4,
        disk_admit_uses: int = 2,
        disk_promote_hits: int = 2,
        disk_wait_ms: int = 1000,
        disk_slow_ms: int = 1000,
        disk_buffer_bytes_max: int = 268_435_456,
        tell_all: bool = False,
    ) -> None:
        """Allocates and touches the whole pool: the file at `pool_path`, which outlives the process, or without one memory that
        does not. The evictor keeps `free_ahead_bytes` free ahead of need, without it a 512th of the capacity, at most 32 MiB.
        `huge_pages`: off, thp, 2MiB or 1GiB. OSError (ECANCELED) when `progress` was cancelled. MemoryError names the limit
        that was hit and how to raise it. PoolPlaceError when no pool can be at that path; PoolRefusedError when one is there that
        must not be used: one of another size, release or `segment_id`, or that another process has. A pool that an earlier process of
        this segment has left is taken over, unless `empty_pool`; its objects are compared with their digests if `verify_pool`, and
        nothing of it is served before set_namespaces. Limits of what peers can have are by the size of the pool where they are 0.
        With a `disk_path` pages that were seen `disk_admit_uses` times are written to that file as well, and read from it when memory
        has them no more; OSError when it can't be opened. `tell_all`: the directory may believe more of this segment than the pool's
        journal knows, so the whole content is announced."""
    @property
    def pool_adopted(self) -> bool:
        """Whether the pool is one that an earlier process has left."""
    @property
    def pool_id(self) -> bytes:
        """That of the pool that was kept, or the one that was given."""
    def pool_content(self) -> dict[str, Any]:
        """What it began with: `warm`, `fresh_reason` of one that is not, `objects`, `object_bytes`, `scanned_bytes`, `scan_seconds`,
        `dropped` {reason: objects}, and `needs_inventory`, where something has gone that nobody can name."""
    @property
    def cluster_id(self) -> bytes:
        """That the pages belong to; empty: none yet."""
    def set_cluster_id(self, cluster_id: bytes) -> None: ...
    @property
    def pool_page_bytes(self) -> int:
        """Of the huge pages set aside that the pool lies on; 0 when on others."""
    @property
    def journal_fd(self) -> int:
        """A descriptor that is readable when entries are due: somebody waits for one, many have piled up, or the
        oldest has lain for 3 ms. Owned by the store."""
    @property
    def last_seq(self) -> int: ...
    @property
    def oldest_kept_seq(self) -> int:
        """The oldest entry journal_rewind can still reach; last_seq + 1 when nothing is kept."""
    def journal_drain(self, entries_max: int) -> tuple[int, int, bytes] | None:
        """(first_seq, last_seq, groups) of the next entries not handed out yet, or None. Clears journal_fd when empty."""
    def journal_ack(self, seq: int) -> None:
        """Everything up to seq is durable: waiting puts are answered, kept entries are dropped."""
    def journal_rewind(self, seq: int) -> bool:
        """Hand out again from seq + 1. False when that is no longer kept: send the inventory."""
    def inventory(self, entries_max: int) -> tuple[int, list[bytes]]:
        """(last_seq, chunks): the sealed objects as ADD groups, and the number they stand for. Taken in slices, between which the
        store changes: entries after last_seq say how. Entries up to last_seq count as handed out."""
    def hottest(
        self, after: tuple[int, int, int] | None, entries_max: int
    ) -> tuple[bytes, tuple[int, int, int], bool]:
        """(the next objects of a walk through all, hottest first, as ADD groups; where it is then; whether none is left). `after`: where it
        was, None at its beginning. What is used while it lasts may be left out."""
    def namespaces(self) -> list[bytes]:
        """Ids of the namespaces that hold objects."""
    def set_namespaces(self, current: list[bytes], known: list[bytes]) -> None:
        """Those of `known` that are not in `current` are retired: their objects are gone for readers at once and are
        evicted first. `known` is what namespaces() said before `current` was made: one opened since is in neither."""
    def retire_namespace(self, ns: bytes) -> None: ...
    def set_quotas(self, limits: list[tuple[int, list[bytes]]]) -> None:
        """(bytes, ids of namespaces) each: what they may have here together, in place of what was set before. A namespace that has
        more evicts its own, and a put that it has no room for ends as NO_SPACE."""
    def evict_bytes(self, wanted_bytes: int) -> int: ...
    def keep_objects(self, ns: bytes, fingerprints: bytes, intent: int, ttl_ms: int) -> tuple[int, int, int]:
        """(objects that are kept so, those that are here and are as any other all the same, those that are not here).
        `intent` and `ttl_ms` as for PageClient.put."""
    def keep_namespace(self, ns: bytes, intent: int, ttl_ms: int) -> tuple[int, int, int]:
        """The same for all objects that are here now."""
    def drop_objects(self, ns: bytes, fingerprints: bytes) -> bytes:
        """A status an object: OK (dropped), MISS, or UNAVAILABLE where it is pinned or being read."""
    def retention(self) -> tuple[int, list[tuple[bytes, int, int, int, int, bool]]]:
        """(bytes that a namespace may have retained, [(namespace id, bytes and objects retained, objects demoted, retentions
        refused since the start, whether demotions are heeded)] of those that want something)."""
    def budget_usage(self) -> list[tuple[str, int, int, int, int]]:
        """(name, used, limit, limit of one connection, refused) of each limit of what peers can have."""
    def stats(self) -> dict[str, int]:
        """Gauges: capacity_bytes, used_bytes, object_count, pinned_bytes, retained_bytes, retained_objects, demoted_objects, slots_free, quarantined_slots, journal_backlog.
        Counters: puts, put_bytes, gets, get_bytes, misses, exists_hits, evicted_objects, evicted_bytes, digest_mismatches,
        conflicts, no_space, not_committed, journal_overflows, evictor_errors, retentions_refused, retentions_expired,
        demotions_ignored, demotions_contradicted."""
    def close(self) -> None: ...

class JournalProtocolError(Exception):
    """The master, or the journal, said something that can't be: the stream must be torn down and begun again."""

class PumpState(enum.Enum):
    """Where the conversation with the master stands."""

    DETACHED = 0
    INVENTORY = 1
    STREAMING = 2

class JournalBatch:
    """Journal entries `first_seq` to `last_seq`, as groups of docs/protocol.md section 8."""

    def __init__(self, first_seq: int, last_seq: int, groups: bytes) -> None: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def groups(self) -> bytes: ...

class InventoryChunk:
    """A part of the segment's whole content, which stands for every entry up to `last_seq`."""

    def __init__(self, last_seq: int, groups: bytes, first: bool, last: bool) -> None: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def groups(self) -> bytes: ...
    @property
    def first(self) -> bool: ...
    @property
    def last(self) -> bool: ...

class JournalPump:
    """Decides the next message of one attached stream (native/segment/journal_pump.hpp). One thread at a time drives it: a
    JournalLink while there is one."""

    def __init__(
        self, source: object, *, batch_entries_max: int = 16_384, batches_in_flight_max: int = 4
    ) -> None:
        """`source`: a SegmentStore, or a `JournalSource` of kvstore.segment.journal_pump. Batches hold at most
        `batch_entries_max` entries (20 bytes each); so many of them wait for an ack at most. ValueError when one is 0."""
    @property
    def state(self) -> PumpState: ...
    @property
    def sent_seq(self) -> int:
        """The last entry handed out on this stream."""
    @property
    def durable_seq(self) -> int:
        """The last entry that a master has confirmed on this stream."""
    @property
    def window_full(self) -> bool:
        """True while next_message must wait for an ack, however much there is to send. For who drives the pump."""
    @property
    def inventories_sent(self) -> int: ...
    @property
    def gaps(self) -> int: ...
    entries_refused: int
    """That a master has left out, because they say what can't be."""
    def attached(self, durable_seq: int, need_inventory: bool) -> None:
        """A master has taken us in and holds our entries up to `durable_seq`."""
    def detached(self) -> None:
        """The stream is gone; what was on its way on it is sent again after the next attach."""
    def inventory_requested(self) -> None:
        """The master wants the whole content, in the middle of the stream."""
    def next_message(self) -> JournalBatch | InventoryChunk | None:
        """The next thing to send, or None: nothing to say, or the window is full. JournalProtocolError."""
    def acked(self, durable_seq: int) -> None:
        """The master has made everything up to `durable_seq` durable. JournalProtocolError, and nothing is taken, when this
        stream has not carried that."""

class CopyCancellation:
    """Ends a copy on another thread."""

    def __init__(self) -> None: ...

class ObjectCopier:
    """Copies objects from other segments into a store. Thread-safe: orders run on their callers' threads."""

    def __init__(self, store: SegmentStore, *, token: str = "") -> None:
        """`token`: what a client presents to segments."""
    def copy(
        self,
        cancellation: CopyCancellation,
        *,
        host: str,
        port: int,
        unix_path: str,
        pool_id: bytes,
        ns: bytes,
        fingerprints: bytes,
        may_evict: bool = False,
        bytes_per_s: int = 0,
        timeout_ms: int = 60_000,
    ) -> tuple[bytes, int, str]:
        """(a status of docs/protocol.md an object, bytes copied, what was wrong with the other segment). Returns within its timeout and 5 s
        for the commit, or moments after the cancellation. ValueError: an order that can't be."""
    def cancel(self, cancellation: CopyCancellation) -> None: ...

class JournalLink:
    """The connection that carries journal, inventory and heartbeats of a segment to the master that has registered it. A thread
    of its own, which never touches Python."""

    def __init__(
        self,
        pump: JournalPump,
        *,
        host: str,
        port: int,
        token: str,
        name: str,
        cluster_id: bytes,
        link_token: bytes,
        durable_seq: int,
        need_inventory: bool,
        heartbeat_interval_ms: int,
        connect_timeout_ms: int = 3000,
        silence_timeout_ms: int = 4000,
        stall_timeout_ms: int = 4000,
    ) -> None:
        """Starts to connect and returns. `pump` is that of a SegmentStore. `cluster_id`, `link_token` (16 bytes each) to
        `heartbeat_interval_ms` are what the master has answered to the registration. ValueError, OSError."""
    @property
    def event_fd(self) -> int:
        """Readable when one of the next three has something new, until events_seen(). Owned by the link."""
    def events_seen(self) -> None: ...
    @property
    def linked(self) -> bool:
        """The master has answered: what is journalled is being sent."""
    @property
    def ended(self) -> tuple[str, str] | None:
        """(kind, why) it is over; None while it is not. Kinds: stopped, unreachable, refused, silent, stalled, lost, protocol,
        failed."""
    def take_refusals(self) -> list[tuple[int, int, str]]:
        """(last_seq, entries, reason) of entries that the master has left out since the last call; at most the newest 16."""
    @property
    def heartbeats_sent(self) -> int: ...
    def stop(self) -> None:
        """Ends it within 100 ms. Idempotent."""

class DataServer:
    """Serves the data port of a SegmentStore: TCP and a unix socket. Its threads never touch Python."""

    def __init__(
        self,
        store: SegmentStore,
        *,
        tcp_host: str,
        tcp_port: int = 0,
        unix_path: str = "",
        tokens: Sequence[str] = (),
        connections_max: int = 1024,
        ungreeted_max: int = 256,
        idle_timeout_ms: int = 600_000,
        stall_timeout_ms: int = 2000,
        **transport_options: str | int | bool,
    ) -> None:
        """Binds and starts; peers need one of `tokens`, or where there is none an empty one. OSError names the address. The options are those of `data_port_options()`; RuntimeError when what
        one of them requires can't be had: "<option>: <why>"."""
    @property
    def tcp_port(self) -> int: ...
    @property
    def extensions(self) -> list[str]:
        """Names of the transports that add to the data port and are on."""
    @property
    def transport_refusals(self) -> dict[str, str]:
        """By its name, why a transport is not offered although it is wanted."""
    def stats(self) -> dict[str, int]:
        """connections, connections_total, requests, bad_requests, refused_connections, unauthorized,
        internal_errors, and those of `data_port_stats()`."""
    def remake_unix_socket(self) -> None:
        """Listens on the unix path anew, after somebody has removed the socket file. OSError."""
    def stop(self) -> None:
        """Closes every connection and joins every thread. Idempotent."""

def data_port_options() -> list[tuple[str, str, str]]:
    """What transports let a DataServer choose: (name, value where none is given, help)."""

def data_port_stats() -> list[tuple[str, str, bool]]:
    """What transports add to DataServer.stats(): (name, help, whether it can fall)."""

# ---- directory index (bind_directory.cpp) ------------------------------------------------------------------------------

class WireError(ValueError):
    """Malformed input; `status` is what to answer a peer (docs/protocol.md section 2)."""

    status: int

class DirectoryIndex:
    """fingerprint -> (segments, length). Thread-safe. Malformed input raises WireError, and then nothing was changed."""

    def __init__(self) -> None: ...
    @staticmethod
    def check(groups: bytes) -> int:
        """Entries in encoded groups. WireError for what `apply` would refuse."""
    def apply(self, segment: int, groups: bytes) -> tuple[int, int]:
        """(added, removed) of one journal batch. ValueError when it is malformed: then nothing was applied."""
    def begin_inventory(self, segment: int) -> None:
        """From here to end_inventory each ADD confirms its entry. O(1)."""
    def end_inventory(self, segment: int) -> None:
        """Dooms the segment's entries that no ADD has confirmed since begin_inventory. O(1)."""
    def drop_segment(self, segment: int) -> None:
        """Dooms the entries of a segment. O(1)."""
    def sweep(self, entries_max: int) -> int:
        """Removes doomed entries, at most entries_max; how many. Until then they are there as before, and an ADD saves one."""
    def clear(self) -> None:
        """Gives all memory back, of an index that nobody asks any more. Takes a while for gigabytes: not on an event loop."""
    def set_serving(self, segment: int, serving: bool) -> None:
        """Entries of a segment that does not serve are kept but not found. Segments serve until told otherwise."""
    def set_vouched(self, segment: int, vouched: bool) -> None:
        """Whether PLACE counts what a segment that serves holds as there. Segments are vouched for until told otherwise."""
    def set_host(self, segment: int, host: int) -> None:
        """Copies are kept apart by it: a number that the segments of one host share; 0: a host of its own."""
    def exists(self, body: bytes) -> bytes:
        """EXISTS request body -> the reply's own fields (after the prefix). ValueError when malformed."""
    def lookup(self, body: bytes) -> bytes: ...
    def place(self, body: bytes, segments: list[int], run_bytes: int) -> bytes:
        """PLACE: absent entries go to `segments` in turn, in runs of about run_bytes; an empty list refuses them."""
    def place_copies(
        self, body: bytes, replicas: int, stripes: list[list[int]], run_bytes: int
    ) -> tuple[bytes, int, int]:
        """PLACE of `replicas` (2 to 4) copies each, where `stripes` name the segments for first and further copies:
        (reply, copies on a host that has one already, copies for which there was no segment)."""
    def place_demand(self, body: bytes, replicas: int = 1) -> tuple[int, int]:
        """(missing copies, their bytes): what the placement policy needs to know first."""
    def snapshot(self, segment: int, entries_max: int) -> DirectorySnapshot:
        """The segment's entries as ADD groups, in chunks of at most entries_max. The index may change meanwhile: what is
        there from the first chunk to the last is in one of them."""
    def segment_usage(self, segment: int) -> tuple[int, int]:
        """(entries, bytes)"""
    def namespace_usage(self) -> dict[bytes, tuple[int, int]]:
        """namespace id -> (entries, bytes), replicas counted."""
    def namespace_parts(self, ns: bytes) -> dict[int, int]:
        """segment -> bytes that it has of the namespace; those that have none are left out."""
    def usage_of_namespace(self, ns: bytes) -> tuple[int, int]:
        """(entries, bytes)"""
    def track_duplicates(self, pages_max: int) -> None:
        """Notes pages of which a further copy is added, at most so many until they are taken; 0: none."""
    def take_duplicates(self, pages_max: int) -> bytes:
        """Fingerprints of some of them, 16 bytes each, the newest first."""
    def vouched_holders(self, fingerprint: bytes) -> tuple[bytes, list[int]]:
        """(namespace id, segments that PLACE would count as having it, 4 at most); no segments: nobody has."""
    def find(self, fingerprint: bytes) -> tuple[list[int], int] | None:
        """(segments, length), serving or not: for `stat`."""
    @property
    def entry_count(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

class DirectorySnapshot:
    """A chunk at a time. RuntimeError from `next` when the segment was dropped meanwhile, or an inventory of it began or ended."""

    def __iter__(self) -> DirectorySnapshot: ...
    def __next__(self) -> bytes: ...

class LiveEntries:
    """What of a segment's log is still alive, for rewriting that log from its oldest record on. One thread at a time."""

    def __init__(self, index: DirectoryIndex, segment: int) -> None: ...
    def keep(self, groups: bytes) -> int:
        """Keeps what is alive of one record's groups, each object once over all calls; how many entries. WireError
        when they are malformed."""
    def take(self) -> bytes:
        """What was kept since the last call, as ADD groups, one a namespace."""

# ---- what the master makes durable (bind_metadata.cpp) -----------------------------------------------------------------

class CommitLog:
    """Commits in files of a fixed size, written and synced by a thread of its own (native/master/commit_log.hpp). OSError has the
    errno; EWOULDBLOCK: another process has the directory, which the text names."""

    def __init__(self, directory: str, file_bytes: int, files_max: int) -> None: ...
    def read(self, released: int) -> tuple[list[tuple[int, bytes]], int, str]:
        """((sequence, payload) after `released`, commits lost among them, why a file could not be read or ""). Once, before all
        that follows."""
    def fd(self) -> int:
        """Readable while `finished` has something to say."""
    def commit(self, ticket: int, payloads: list[bytes]) -> None:
        """Queues them; what is queued together is one write. Durable when `finished` says so."""
    def finished(self) -> list[tuple[int, int, str]]:
        """(ticket, the sequence of its first payload, or 0 and why it is not durable). Does not wait."""
    def release(self, sequence: int) -> None:
        """Commits up to that one are needed no more."""
    def close(self, timeout_ms: int) -> bool:
        """Finishes what is queued; whether that was done in time. If not, the thread is left behind with the disk that it waits
        for. Idempotent."""

def stage_journal(
    groups: bytes, first_seq: int, accepted_seq: int, entries_max: int
) -> tuple[int, int, bool, list[tuple[int, bytes, bytes]]]:
    """(entries of the input, those refused, whether there are removes, [(entries, groups, record)]) without the entries up to
    accepted_seq. WireError unless they are groups."""

def stage_inventory(
    groups: bytes, seq: int, entries_max: int
) -> tuple[int, int, bool, list[tuple[int, bytes, bytes]]]:
    """The same for a part of a snapshot that stands for the journal up to `seq`."""

# ---- client (bind_client.cpp) -------------------------------------------------------------------------------------------

class SharedBuffer:
    """Memory in a memfd sealed against shrinking: same-host segments copy puts straight out of it. Buffer protocol, writable.

    It belongs to the process that made it: a forked child gets a BufferError, and a SIGSEGV at the address."""

    def __init__(self, size_bytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def fd(self) -> int: ...

def trouble_kinds() -> list[str]:
    """What PageClient.troubles() can tell."""

def transport_options() -> list[tuple[str, str, str]]:
    """What transports let a PageClient choose: (name, value where none is given, help)."""

def transport_counters() -> list[tuple[str, str]]:
    """What transports add to PageClient.counters(): (name, help)."""

def end_other_threads_calls(timeout_ms: int) -> bool:
    """For the exit of the process: the calls of all threads but this one end as if their deadlines had passed, now and from now
    on. Waits for them; True when none is left."""

class PageClient:
    """Directory and data-port client. Any thread may call; after close() every call answers as an empty store does.

    Entry statuses are the codes of docs/protocol.md section 2, one byte an entry, key-major. No call raises for anything that the
    network or a peer does, none outlasts its deadline by more than 100 ms, none writes to caller memory after it returned. What a
    signal handler raises meanwhile ends a call of the main thread, within about 100 ms, and is raised.
    """

    def __init__(
        self,
        masters: list[tuple[str, int]],
        *,
        token: str = "",
        name: str = "",
        connections_per_peer: int = 2,
        copy_threads: int = 2,
        connect_timeout_ms: int = 250,
        backoff_ms_min: int = 50,
        backoff_ms_max: int = 1000,
        run_bytes: int = 4_194_304,
        location_cache_entries: int = 262_144,
        **transport_options: str | int | bool,
    ) -> None:
        """Connects to nothing yet. The options are those of `transport_options()`; RuntimeError when what one of them requires
        can't be had in this process: "<option>: <why>"."""
    @property
    def transport_refusals(self) -> dict[str, str]:
        """By its name, why this process can't have a transport although it is wanted."""
    def open_namespace(self, identity: bytes, name: str, deadline_ms: int) -> tuple[int, int]:
        """(status, handle). The handle is usable whatever the status: it is opened (again) when a call needs it, and follows
        epoch bumps by itself."""
    def bump_namespace(self, handle: int, deadline_ms: int) -> int: ...
    def restore_namespace(self, handle: int, identity: bytes, name: str) -> None:
        """For a forked child's client: `handle` is what its parent's gave out for the identity."""
    def close_namespace(self, handle: int) -> None:
        """Makes room for another: a client keeps 4,096 of them. The handle is never valid again."""
    def namespace_state(self, handle: int) -> tuple[bytes, int]:
        """(namespace id or b'' when not open, epoch)"""
    def exists(
        self, handle: int, pool: int, shards: bytes, hashes: bytes, pin_ms: int, deadline_ms: int
    ) -> bytes:
        """OK where the object is there (and, with pin_ms > 0, pinned at its segment), MISS otherwise."""
    def get(
        self,
        handle: int,
        pool: int,
        shards: bytes,
        hashes: bytes,
        memory: Pieces,
        deadline_ms: int,
        stall_ms: int = 0,
    ) -> bytes:
        """Fills the pieces of each entry. Only entries answered OK hold the object's bytes; others may hold anything. Ends
        at the deadline, or after `stall_ms` in which nothing has moved; 0: however long that is."""
    def put(
        self,
        handle: int,
        pool: int,
        shards: bytes,
        hashes: bytes,
        memory: Pieces,
        deadline_ms: int,
        ack_committed: bool = True,
        depth: int = 0,
        texts: list[str] | None = None,
        intent: int = 0,
        ttl_ms: int = 0,
        stall_ms: int = 0,
        replicas: int = 1,
    ) -> bytes:
        """OK (written) or EXISTS (was there) are success. `replicas`: copies of each, 1 to 4; one is enough. `depth`: position of the first key in its prefix. `intent`: 0 normal,
        1 retain (for `ttl_ms`; 0: the default of half an hour), 2 demote; a hint, which no answer depends on. `stall_ms` as for get."""
    def fetch(
        self, handle: int, pool: int, shards: bytes, hashes: bytes, deadline_ms: int, bytes_max: int
    ) -> list[bytes | None]:
        """get() into fresh bytes, for objects of unknown length."""
    def remove(self, handle: int, pool: int, shards: bytes, hashes: bytes, deadline_ms: int) -> bytes: ...
    def keep(
        self,
        handle: int,
        pool: int,
        shards: bytes,
        hashes: bytes,
        intent: int,
        ttl_ms: int,
        deadline_ms: int,
    ) -> bytes:
        """What is to become of pages when space runs short; `intent` and `ttl_ms` as for put. OK: a segment that has the page
        does so. MISS; NO_SPACE: over the budget of what may be retained; UNSUPPORTED_VERSION: a segment of an earlier release."""
    def register_fd(self, address: int, size_bytes: int, fd: int) -> bool:
        """Memory [address, +size) is the file `fd` from offset 0 (SGLang's shm pool): puts from it go by server-side copy.
        The descriptor is duplicated. Registering the same range again is nothing; SharedBuffers register themselves."""
    def register_memory(self, address: int, size_bytes: int) -> bool:
        """Memory [address, +size) stays in place until unregister: the RDMA device may read and write it directly. It is registered
        with the device in the background; until that is done, and where RDMA is off, nothing changes."""
    def unregister(self, address: int) -> None: ...
    def counters(self) -> dict[str, int]:
        """Calls, keys, bytes, hits, misses, timeouts, reconnects, digest_mismatches, breaker_open, per transport where it matters
        (names are listed in docs/metrics.md)."""
    def troubles(self) -> list[tuple[str, str, str, int]]:
        """(subject, kind, what the peer said, failures since it began) of each peer that something is wrong with."""
    @property
    def trouble_changes(self) -> int:
        """Grows whenever troubles() becomes another, counts aside."""
    def segment_map(self) -> list[dict[str, Any]]: ...
    def close(self) -> None:
        """Closes connections, joins threads, unmaps. Idempotent; waits at most for calls in flight."""

class PagePlan:
    """Where the pages of a host pool lie: piece j of shard s of page number p at base[s][j] + stride[s][j] * p, size[s][j] bytes
    long. Describes memory as Pieces do. Any thread may call."""

    def __init__(
        self, plan: Sequence[Sequence[tuple[int, int, int]]], page_size: int, slot_count: int
    ) -> None:
        """plan[s] = [(base, stride, size_bytes), ...]; with an empty one only check() can be called. ValueError."""
    def check(self, address: int, count: int, key_count: int) -> None:
        """ValueError unless the `count` int64 slots that lie at an address are key_count whole, aligned pages of the pool."""
    def pieces(self, address: int, count: int, key_count: int) -> Pieces:
        """The memory of those pages. ValueError as check()."""

class Pieces:
    """Where the bytes of a batch lie: entry i of shard s is the concatenation of that shard's pieces.

    ValueError when the whole is no batch: numbers that don't fit each other, or over a cap. An entry that can't
    be (no bytes, more than 1 GiB, an address outside of the address space) is no reason to refuse the others: a
    call answers it with BAD_REQUEST or TOO_LARGE.

    Piece j of shard s for key k lies at base[s][j] + stride[s][j] * index[k] and is size[s][j] bytes long. Only describes memory: the
    caller keeps it alive and in place until the call returns.
    """

    @staticmethod
    def affine(plan: Sequence[Sequence[tuple[int, int, int]]], indices: Buffer) -> Pieces:
        """plan[s] = [(base, stride, size_bytes), ...]; indices: int64, one a key."""
    @staticmethod
    def from_pointers(pointers: Buffer, sizes: Buffer, pieces_per_entry: int) -> Pieces:
        """pointers: uint64, sizes: uint64, both entry-major with pieces_per_entry items an entry."""
    @staticmethod
    def from_tuples(values: Sequence[object]) -> Pieces | None:
        """One (address, size_bytes) an entry; None where any of them is something else, or what no object can be."""
    @property
    def entry_count(self) -> int: ...
    @property
    def total_bytes(self) -> int:
        """Of the entries that can be."""
