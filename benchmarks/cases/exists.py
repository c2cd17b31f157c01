"""Probes of one batch and of sixteen, of keys that are all there or all absent, warm."""

from __future__ import annotations

from statistics import median

from benchmarks.cases.base import Bar, Case, Setting, over, percentile, shown, table
from benchmarks.contestants import Contestant, in_turn

PROBE_BATCHES, PROBE_PAGE_BYTES = 16, 16 << 10
ABSENT_SEED = 1
KEPT = "hit, kept"
# (batches, at most, against mooncake, of what is found and kept)
BARS = ((1, 0.8), (PROBE_BATCHES, 0.35))
CLIENT_US_A_KEY_BAR = 0.25


class Exists(Case):
    """`seconds` a call by (peer, case, keys)."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seconds: dict[tuple[str, str, int], list[float]] = {}
        self.client_cpu_s: dict[tuple[str, str, int], float] = {}

    def run(self, peers: list[Contestant]) -> None:
        batch = self.setting.batch
        self.setting.progress(f"exists: {self.setting.repetitions} repetitions")
        seeds = {}
        for peer in peers:
            seeds[peer.name] = [peer.fresh_seed() for _ in range(PROBE_BATCHES)]
            for seed in seeds[peer.name]:
                peer.timed(peer.writer, "put", seed, batch, PROBE_PAGE_BYTES)
        for repetition in range(self.setting.repetitions + 1):
            for peer in in_turn(peers, repetition):
                for case in ("hit", KEPT, "miss"):
                    for batches, calls in ((1, 20), (PROBE_BATCHES, 5)):
                        seed = seeds[peer.name][0] if case != "miss" else ABSENT_SEED
                        seconds, cpu_s = peer.probe(case, seed, batch, batches, calls)
                        if repetition:
                            key = (peer.name, case, batch * batches)
                            self.seconds.setdefault(key, []).extend(seconds)
                            self.client_cpu_s[key] = self.client_cpu_s.get(key, 0.0) + cpu_s

    def report(self) -> str:
        rows = []
        for key, seconds in sorted(self.seconds.items(), key=lambda item: (item[0][2], item[0][1])):
            peer, case, keys = key
            rows.append(
                [
                    str(keys),
                    case,
                    peer,
                    f"{median(seconds) * 1e6:.0f}",
                    f"{percentile(seconds, 0.99) * 1e6:.0f}",
                    shown(over(median(seconds), self._median("mooncake", case, keys))),
                    shown(self._cpu_us(key)),
                ]
            )
        head = ["keys", "case", "peer", "p50 us", "p99 us", "p50 / mooncake", "client CPU us/key"]
        return "exists:\n\n" + table(head, rows) if rows else ""

    def bars(self) -> list[Bar]:
        bars = []
        for batches, bound in BARS:
            keys = self.setting.batch * batches
            value = over(self._median("kvstore-tcp", KEPT, keys), self._median("mooncake", KEPT, keys))
            bars.append(Bar(f"kvstore-tcp exists of {keys}, kept / mooncake", bound, value, at_least=False))
        key = ("kvstore-tcp", KEPT, self.setting.batch * PROBE_BATCHES)
        what = f"kvstore-tcp exists of {key[2]}, kept: client CPU us a key"
        bars.append(Bar(what, CLIENT_US_A_KEY_BAR, self._cpu_us(key), at_least=False))
        return bars

    def _median(self, peer: str, case: str, keys: int) -> float | None:
        seconds = self.seconds.get((peer, case, keys))
        return median(seconds) if seconds else None

    def _cpu_us(self, key: tuple[str, str, int]) -> float | None:
        if key not in self.seconds:
            return None
        return self.client_cpu_s[key] * 1e6 / (len(self.seconds[key]) * key[2])
