"""What an earlier release has left (tests/fixtures/release_*): its stores, opened where the test says, and its peers."""

from __future__ import annotations

import base64
import functools
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstore_client.protocol import HEADER_BYTES, Header
from support.etcd_server import EtcdMember

FIXTURES = Path(__file__).parent.parent / "fixtures"
RELEASES = sorted(path.name for path in FIXTURES.glob("release_*"))
PREFIX_BYTES = 16


@dataclass(frozen=True)
class Exchange:
    """A request as a peer of that release sends it, and the reply that it was given. `varies`: ranges of the reply that are
    another each time."""

    name: str
    request: bytes
    reply: bytes
    varies: tuple[tuple[int, int], ...]

    @property
    def status(self) -> int:
        return int.from_bytes(self.reply[HEADER_BYTES : HEADER_BYTES + 2], "little")

    def fault(self, reply: bytes) -> str:
        """What such a peer would not understand in `reply`; empty: it reads what it was told then. Replies may have grown at
        their end, and texts are for people."""
        was, now = Header.decode(self.reply[:HEADER_BYTES]), Header.decode(reply[:HEADER_BYTES])
        if (now.op, now.request_id, now.is_reply) != (was.op, was.request_id, True):
            return f"{self.name}: header {now} instead of {was}"
        status = int.from_bytes(reply[HEADER_BYTES : HEADER_BYTES + 2], "little")
        if status != self.status:
            return f"{self.name}: status {status} instead of {self.status}"
        if status != 0:
            return ""
        if now.payload_bytes != was.payload_bytes or now.body_bytes < was.body_bytes:
            return f"{self.name}: header {now} instead of {was}"
        known = reply[: HEADER_BYTES + was.body_bytes] + reply[HEADER_BYTES + now.body_bytes :]
        own = [range(12, 16), *(range(*each) for each in self.varies)]  # body_bytes, compared above
        for at, (got, expected) in enumerate(zip(known, self.reply, strict=True)):
            if got != expected and not any(at in each for each in own):
                return f"{self.name}: byte {at} is {got:#x} instead of {expected:#x}"
        return ""


class EarlierRelease:
    def __init__(self, name: str) -> None:
        self.directory = FIXTURES / name

    @functools.cached_property
    def content(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.directory / "content.json").read_text())
        return loaded

    @functools.cached_property
    def _peers(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.directory / "peers.json").read_text())
        return loaded

    @property
    def to_master(self) -> list[Exchange]:
        return list(map(_exchange, self._peers["master"]))

    @property
    def to_segment(self) -> list[Exchange]:
        return list(map(_exchange, self._peers["segment"]["exchanges"]))

    @property
    def segment_identity(self) -> str:
        """The namespace that `to_segment` speaks of."""
        return str(self._peers["segment"]["identity"])

    def put_rocksdb(self, directory: Path) -> None:
        """Into a directory that is made for it."""
        directory.mkdir(parents=True)
        with tarfile.open(self.directory / "rocksdb.tar.gz") as tar:
            tar.extractall(directory, filter="data")

    def put_etcd(self, member: EtcdMember, prefix: str) -> None:
        for item in json.loads((self.directory / "etcd.json").read_text()):
            key = f"/{prefix}/".encode() + base64.b64decode(item["key"])
            member.put(key, base64.b64decode(item["value"]))


def _exchange(stored: dict[str, Any]) -> Exchange:
    return Exchange(
        stored["name"],
        bytes.fromhex(stored["request"]),
        bytes.fromhex(stored["reply"]),
        tuple((first, end) for first, end in stored["varies"]),
    )
