"""Put and get of one batch at a time, by page size: rates, and CPU seconds a GB on both sides."""

from __future__ import annotations

from statistics import median

from benchmarks.cases.base import Bar, Case, Setting, over, shown, table
from benchmarks.contestants import Contestant, Sample, in_turn
from benchmarks.peers import PeerClient

# (peer, verb, page bytes, against, at least)
RATE_BARS = (
    *(
        ("kvstore-tcp", "put", size_bytes, against, bound)
        for size_bytes, bound_mooncake in ((16 << 10, 3.0), (64 << 10, 3.0), (1 << 20, 1.7))
        for against, bound in (("sockets", 0.85), ("mooncake", bound_mooncake))
    ),
    ("kvstore-tcp", "get", 64 << 10, "mooncake", 1.5),
    ("kvstore-tcp", "get", 1 << 20, "mooncake", 1.2),
    ("kvstore-same-host", "put", 64 << 10, "memcpy", 0.7),
    ("kvstore-same-host-private", "put", 64 << 10, "memcpy", 0.5),
    ("kvstore-same-host", "get", 64 << 10, "memcpy", 0.7),
    ("kvstore-same-host", "get", 1 << 20, "memcpy", 0.7),
)
CPU_BAR = 0.5  # client and server together, against mooncake, at 64 KiB


class Transfers(Case):
    """Repetitions in turn, each with fresh keys; the first is not counted: connections and code are cold."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.samples: dict[tuple[str, str, int], list[Sample]] = {}

    def takes(self, kind: type[PeerClient]) -> bool:
        """The limits of the machine too."""
        return not kind.durability_only

    def run(self, peers: list[Contestant]) -> None:
        for size_bytes in self.setting.sizes_bytes:
            self.setting.progress(f"pages of {size_bytes >> 10} KiB: {self.setting.repetitions} repetitions")
            self._run_size(peers, size_bytes)

    def _run_size(self, peers: list[Contestant], size_bytes: int) -> None:
        batch = self.setting.batch
        written: list[tuple[Contestant, int]] = []
        for repetition in range(self.setting.repetitions + 1):
            for peer in in_turn(peers, repetition):
                seed = peer.fresh_seed()
                written.append((peer, seed))
                put, _ = peer.timed(peer.writer, "put", seed, batch, size_bytes)
                peer.probe("hit", seed, batch, batches=1, calls=1)  # as HiCache does before each get
                got, wrong = peer.timed(peer.reader, "get", seed, batch, size_bytes)
                self.wrong_pages += wrong
                if repetition:
                    self.samples.setdefault((peer.name, "put", size_bytes), []).append(put)
                    self.samples.setdefault((peer.name, "get", size_bytes), []).append(got)
        for peer, seed in written:
            peer.writer.call("remove", seed=seed, count=batch)

    def rate(self, peer: str, verb: str, size_bytes: int) -> float | None:
        """GB/s, the median."""
        samples = self.samples.get((peer, verb, size_bytes))
        return median(_rates(samples)) if samples else None

    def cpu(self, peer: str, verb: str, size_bytes: int) -> float | None:
        """CPU seconds a GB, client and server, over all samples."""
        samples = self.samples.get((peer, verb, size_bytes))
        if not samples:
            return None
        return _cpu(samples, "client_cpu_s") + _cpu(samples, "server_cpu_s")

    def report(self) -> str:
        rows = []
        for (peer, verb, size_bytes), samples in sorted(
            self.samples.items(), key=lambda item: (item[0][2], item[0][1] == "get")
        ):
            rate = _rates(samples)
            ratios = (
                shown(over(median(rate), self.rate(against, verb, size_bytes)))
                for against in ("mooncake", "sockets", "memcpy")
            )
            rows.append(
                [
                    f"{size_bytes >> 10} KiB",
                    verb,
                    peer,
                    f"{median(rate):.2f}",
                    f"{min(rate):.2f}-{max(rate):.2f}",
                    *ratios,
                    shown(_cpu(samples, "client_cpu_s")),
                    shown(_cpu(samples, "server_cpu_s")),
                ]
            )
        head = ["page", "call", "peer", "GB/s", "min-max", "/ mooncake", "/ sockets", "/ memcpy"]
        return table([*head, "client CPU-s/GB", "server CPU-s/GB"], rows)

    def bars(self) -> list[Bar]:
        sizes = self.setting.sizes_bytes
        bars = [
            Bar(
                f"{peer} {verb} {size_bytes >> 10} KiB / {against}",
                bound,
                over(self.rate(peer, verb, size_bytes), self.rate(against, verb, size_bytes)),
            )
            for peer, verb, size_bytes, against, bound in RATE_BARS
            if size_bytes in sizes
        ]
        if 64 << 10 in sizes:
            for verb in ("put", "get"):
                value = over(self.cpu("kvstore-tcp", verb, 64 << 10), self.cpu("mooncake", verb, 64 << 10))
                what = f"kvstore-tcp {verb} 64 KiB: CPU a GB / mooncake"
                bars.append(Bar(what, CPU_BAR, value, at_least=False))
        return bars


def _rates(samples: list[Sample]) -> list[float]:
    return [sample.bytes / sample.seconds / 1e9 for sample in samples]


def _cpu(samples: list[Sample], side: str) -> float:
    return float(sum(getattr(s, side) for s in samples)) / sum(s.bytes for s in samples) * 1e9
