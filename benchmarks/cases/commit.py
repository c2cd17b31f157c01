"""What durability costs a put: the same batch acknowledged when sealed and when committed."""

from __future__ import annotations

from statistics import median

from benchmarks.cases.base import Bar, Case, Setting, percentile, table
from benchmarks.contestants import Contestant, in_turn
from benchmarks.peers import PeerClient
from benchmarks.peers.kvstore import KvstoreClient

PAGE_BYTES = 4 << 10
CALLS = 40
BAR_US = 400.0


class Commit(Case):
    """Of the peers that have both."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def takes(self, kind: type[PeerClient]) -> bool:
        """Those that have both acknowledgements."""
        return issubclass(kind, KvstoreClient)

    def run(self, peers: list[Contestant]) -> None:
        self.setting.progress(f"commit latency: {self.setting.repetitions} repetitions")
        for repetition in range(self.setting.repetitions + 1):
            for peer in in_turn(peers, repetition):
                for ack in ("sealed", "committed") if repetition % 2 else ("committed", "sealed"):
                    seed = peer.next_seed + 1
                    peer.next_seed += CALLS
                    answer = peer.writer.call(
                        "puts",
                        seed=seed,
                        count=self.setting.batch,
                        size_bytes=PAGE_BYTES,
                        calls=CALLS,
                        committed=ack == "committed",
                    )
                    if repetition:
                        self.seconds.setdefault((peer.name, ack), []).extend(answer["seconds"])

    def report(self) -> str:
        rows = [
            [
                peer,
                f"{median(self.seconds[peer, 'sealed']) * 1e6:.0f}",
                f"{median(self.seconds[peer, 'committed']) * 1e6:.0f}",
                f"{self._commit_us(peer):.0f}",
                f"{percentile(self.seconds[peer, 'committed'], 0.99) * 1e6:.0f}",
            ]
            for peer in sorted({peer for peer, _ in self.seconds})
        ]
        head = ["peer", "sealed us", "committed us", "the commit us", "committed p99 us"]
        what = f"A put of {self.setting.batch} x {PAGE_BYTES >> 10} KiB, acknowledged when sealed or committed (medians):"
        return what + "\n\n" + table(head, rows) if rows else ""

    def bars(self) -> list[Bar]:
        measured = ("kvstore-tcp", "sealed") in self.seconds
        value = self._commit_us("kvstore-tcp") if measured else None
        return [Bar("kvstore-tcp: committed minus sealed, us", BAR_US, value, at_least=False)]

    def _commit_us(self, peer: str) -> float:
        return 1e6 * (median(self.seconds[peer, "committed"]) - median(self.seconds[peer, "sealed"]))
