"""Many segments that add pages and drop older ones, without their processes: journals straight into a directory."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from kvstore.master.directory import Directory
from kvstore.master.state import events as ev
from kvstore.master.state.changes import Registration
from kvstore.master.state.endpoint import Endpoint
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups

NS = b"namespac"
FINGERPRINT_BYTES = 16


@dataclass
class LoadSegment:
    """A SegmentSession that sends again what it was not told is durable, as a segment does."""

    number: int
    rng: random.Random
    live_max: int
    batches: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # not acked: first -> (last, groups)
    last_seq: int = 0
    acked_seq: int = 0
    blocks: list[tuple[int, bytes]] = field(
        default_factory=list
    )  # (last seq of it, fingerprints) that it holds
    dropped: list[tuple[int, bytes]] = field(default_factory=list)  # the same, removed with that entry
    session: int = 0
    directory: Directory | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def segment_id(self) -> bytes:
        return self.number.to_bytes(2, "big") * 8

    @property
    def live(self) -> int:
        return sum(len(block) for _, block in self.blocks) // FINGERPRINT_BYTES

    def attach(self, directory: Directory) -> None:
        self.directory = directory
        self.ready.clear()
        self.session = directory.open_session(self)
        endpoint = Endpoint(self.segment_id, self.segment_id, "10.0.0.1", 7450, "", 1 << 40)
        registration = Registration(endpoint, self.last_seq, self.acked_seq + 1)
        directory.handle(ev.SegmentAttached(self.session, registration))

    def change(self, entries: int) -> None:
        """Adds that many pages, and removes as many of those before, once it holds its most."""
        first = self.last_seq + 1
        added = self.rng.randbytes(entries * FINGERPRINT_BYTES)
        groups = [JournalGroup(JournalOp.ADD, NS, added, (4096,) * entries)]
        self.last_seq += entries
        self.blocks.append((self.last_seq, added))
        while self.live > self.live_max:
            _, block = self.blocks.pop(self.rng.randrange(len(self.blocks) - 1))
            count = len(block) // FINGERPRINT_BYTES
            groups.append(JournalGroup(JournalOp.REMOVE, NS, block, (0,) * count))
            self.last_seq += count
            self.dropped.append((self.last_seq, block))
        self.batches[first] = (self.last_seq, encode_groups(groups))
        if self.ready.is_set():
            self._send(first)

    def _send(self, first: int) -> None:
        assert self.directory is not None
        last, groups = self.batches[first]
        self.directory.handle(ev.JournalReceived(self.session, first, last, groups))

    # ---- SegmentSession ------------------------------------------------------------------------------------

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        assert not need_inventory and durable_seq >= self.acked_seq, "what was acked is durable"
        self.ack(durable_seq)
        self.ready.set()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._send_again, self.session)

    def _send_again(self, session: int) -> None:
        for first in sorted(self.batches):
            if session == self.session:
                self._send(first)

    def ack(self, durable_seq: int) -> None:
        self.acked_seq = max(self.acked_seq, durable_seq)
        for first in [first for first, (last, _) in self.batches.items() if last <= durable_seq]:
            del self.batches[first]

    def close(self, status: Status, reason: str) -> None:
        """Attaches again, a little later."""
        self.ready.clear()
        directory = self.directory
        if directory is not None and status is not Status.NOT_LEADER:
            session, self.session = self.session, 0
            asyncio.get_running_loop().call_later(0.05, self._again, directory, session)

    def _again(self, directory: Directory, session: int) -> None:
        if self.directory is directory:
            directory.end_session(session)
            self.attach(directory)

    def request_inventory(self) -> None:
        raise AssertionError("no entry was lost, and none is asked for again")

    def limit_quotas(self, limits: object) -> None:
        """There are none."""

    def retire_namespaces(self, namespaces: tuple[bytes, ...], barrier: int = 0) -> None:
        return

    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None:
        raise AssertionError(reason)

    # ---- what must be there --------------------------------------------------------------------------------

    def assert_in(self, index: DirectoryIndex, segment_index: int, durable_seq: int, step: int = 37) -> None:
        """Every page (of a sample) that entries up to `durable_seq` leave there, and none of the dropped ones."""
        assert durable_seq >= self.acked_seq

        def sample(block: bytes) -> list[bytes]:
            places = range(0, len(block), step * FINGERPRINT_BYTES)
            return [block[at : at + FINGERPRINT_BYTES] for at in places]

        def held(fingerprint: bytes) -> bool:
            found = index.find(fingerprint)
            return found is not None and segment_index in found[0]

        dropped_later = [(seq, block) for seq, block in self.dropped if seq > durable_seq]
        for last, block in self.blocks:
            if last <= durable_seq:
                assert all(held(f) for f in sample(block)), f"segment {self.number} lost pages"
        if not dropped_later:
            count, _ = index.segment_usage(segment_index)
            wanted = sum(len(block) for last, block in self.blocks if last <= durable_seq)
            assert count >= wanted // FINGERPRINT_BYTES
        for last, block in self.dropped[-50:]:
            if last <= durable_seq:
                assert not any(held(f) for f in sample(block)), (
                    f"segment {self.number}: dropped pages are back"
                )
