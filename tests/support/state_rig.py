"""The master's state machine on a real store interface, with commits that happen, fail or wait when a test
says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from kvstore.master.metadata.memory import MemoryStore
from kvstore.master.metadata.store import MetadataStore, Put
from kvstore.master.recovery import recover
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state import layout
from kvstore.master.state.changes import Registration
from kvstore.master.state.directory_state import DirectoryState, StateLimits
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.log_rewrite import LogRewrite, RewriteStep
from kvstore.master.state.segment_table import Segment
from kvstore_client.protocol.journal import JournalGroup, JournalOp, decode_groups, encode_groups

E = TypeVar("E", bound=ef.Effect)
NS = b"namespac"


def fingerprint(number: int) -> bytes:
    return random.Random(number).randbytes(16)


class StateRig:
    """`feed` events, look at `effects`, and let commits through with `commit`."""

    def __init__(self, limits: StateLimits | None = None, store: MetadataStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.limits = limits or StateLimits()
        self.now = 1000.0
        self.effects: list[ef.Effect] = []
        self.pending: deque[ef.Commit] = deque()
        self.corrupt: list[str] = []
        self.sweeps_at_once = True
        self.state: DirectoryState

    async def start(self) -> StateRig:
        await self.store.open()
        await self.restart()
        return self

    async def restart(self) -> None:
        """The master dies, with what was not committed yet, and comes back."""
        self.pending.clear()
        self.effects.clear()
        self.fence = await self.store.acquire()
        recovered = await recover(self.store, self.fence, lambda record: self.corrupt.append(record.kind))
        self.state = DirectoryState(self.now, self.fence.term, recovered, self.limits)

    def feed(self, event: ev.Event, after_s: float = 0.0) -> list[ef.Effect]:
        self.now += after_s
        effects = self.state.handle(self.now, event)
        self.effects += effects
        self.pending += [effect for effect in effects if isinstance(effect, ef.Commit)]
        if self.sweeps_at_once and any(isinstance(effect, ef.SweepIndex) for effect in effects):
            while self.state.index.sweep(1000):
                pass
        return effects

    async def commit(self, count: int | None = None) -> None:
        """Makes the next `count` commits durable (default: until none is left)."""
        while self.pending and (count is None or count > 0):
            commit = self.pending.popleft()
            await self.store.commit(commit.ops, self.fence)
            self.feed(ev.Committed(commit.change))
            count = None if count is None else count - 1

    async def fail_commits(self, applied: bool = False) -> None:
        """Everything queued fails; its outcome is unknown, so `applied` may make it durable all the same."""
        failed = list(self.pending)
        self.pending.clear()
        for commit in failed:
            if applied:
                await self.store.commit(commit.ops, self.fence)
            self.feed(ev.CommitFailed(commit.change, "disk on fire"))

    async def rewrite(self, order: ef.CompactLog) -> None:
        """Does a compaction that was ordered: its steps are fed, and are to be committed."""
        rewrite = LogRewrite(order, self.state.index)
        async for page in self.store.scan(layout.log_prefix(order.segment_id)):
            self._feed_steps(order, rewrite.feed(page))
        self._feed_steps(order, rewrite.finish())
        self.feed(ev.CompactionEnded(order.segment_id, order.run, rewrite.damaged))

    def _feed_steps(self, order: ef.CompactLog, steps: Iterable[RewriteStep]) -> None:
        for step in steps:
            self.feed(
                ev.LogRewritten(
                    order.segment_id, order.run, step.ops, step.entries_before, step.entries_after
                )
            )

    def take(self, kind: type[E]) -> list[E]:
        """The effects of one kind since they were last taken."""
        taken = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken

    def reports(self) -> list[str]:
        return [report.event for report in self.take(ef.Report)]

    def segment(self, segment_id: bytes) -> Segment:
        segment = self.state.segments.get(segment_id)
        assert segment is not None
        return segment

    async def write_raw(self, key: bytes, value: bytes) -> None:
        await self.store.commit((Put(key, value),), self.fence)


class ModelSegment:
    """A segment as the master sees one: numbered journal entries, and what they add up to at any number."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.segment_id = bytes([0xA0, number]) * 8
        self.rng = rng
        self.new_pool()

    def new_pool(self) -> None:
        self.pool_id = self.rng.randbytes(16)
        self.log: list[tuple[JournalOp, bytes, int]] = []
        self.oldest_kept_seq = 1

    @property
    def last_seq(self) -> int:
        return len(self.log)

    def add(self, *numbers: int, length: int = 100) -> None:
        self.log += [(JournalOp.ADD, fingerprint(n), length) for n in numbers]

    def remove(self, *numbers: int) -> None:
        self.log += [(JournalOp.REMOVE, fingerprint(n), 0) for n in numbers]

    def content(self, seq: int | None = None) -> dict[bytes, int]:
        """fingerprint -> length after entry `seq`."""
        held: dict[bytes, int] = {}
        for op, fp, length in self.log[: self.last_seq if seq is None else seq]:
            if op is JournalOp.ADD:
                held[fp] = length
            else:
                held.pop(fp, None)
        return held

    def registration(self, host: str = "10.0.0.1", tcp_port: int = 7450) -> Registration:
        endpoint = Endpoint(self.segment_id, self.pool_id, host, tcp_port, "", 1 << 30)
        return Registration(endpoint, self.last_seq, self.oldest_kept_seq)

    def batch(self, session: int, first_seq: int, last_seq: int | None = None) -> ev.JournalReceived:
        last = self.last_seq if last_seq is None else last_seq
        groups = [JournalGroup(op, NS, fp, (length,)) for op, fp, length in self.log[first_seq - 1 : last]]
        return ev.JournalReceived(session, first_seq, last, encode_groups(groups))

    def inventory(self, session: int, chunk_entries: int = 1000) -> list[ev.InventoryReceived]:
        entries = list(self.content().items())
        chunks = [entries[i : i + chunk_entries] for i in range(0, len(entries), chunk_entries)] or [[]]
        return [
            ev.InventoryReceived(
                session,
                self.last_seq,
                encode_groups(JournalGroup(JournalOp.ADD, NS, fp, (length,)) for fp, length in chunk),
                i == 0,
                i == len(chunks) - 1,
            )
            for i, chunk in enumerate(chunks)
        ]


async def attach(rig: StateRig, model: ModelSegment, session: int) -> ef.AcceptSegment:
    """Attaches and commits; the answer."""
    rig.feed(ev.SegmentAttached(session, model.registration()))
    await rig.commit()
    (accepted,) = rig.take(ef.AcceptSegment)
    assert accepted.session == session
    return accepted


def directory_content(rig: StateRig, model: ModelSegment) -> dict[bytes, int]:
    """fingerprint -> length of what the index holds for the segment."""
    held = {}
    for chunk in rig.state.index.snapshot(rig.segment(model.segment_id).index, 1000):
        for group in decode_groups(chunk):
            for i, length in enumerate(group.lengths):
                held[group.fingerprints[16 * i : 16 * i + 16]] = length
    return held
