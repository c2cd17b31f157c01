"""Objects of 4 KiB, four clients at once: pages a second, puts and gets apart."""

from __future__ import annotations

from benchmarks.cases.base import Bar, Case, Setting, over, percentile, shown, table
from benchmarks.cases.load import Load, run_in_turn
from benchmarks.contestants import Contestant

CLIENTS = 4
PAGE_BYTES = 4 << 10
BATCHES_MAX = 64
PUTS_BAR = 100_000.0


class SmallObjects(Case):
    clients_max = CLIENTS

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.loads: dict[tuple[str, str], Load] = {}

    def run(self, peers: list[Contestant]) -> None:
        self.setting.progress(f"{PAGE_BYTES >> 10} KiB objects, {CLIENTS} clients")
        kinds = [("put", CLIENTS, 0), ("get", CLIENTS, 100)]
        run_in_turn(peers, self.setting, self.loads, kinds, size_bytes=PAGE_BYTES, batches_max=BATCHES_MAX)
        self.wrong_pages = sum(load.wrong_pages for load in self.loads.values())

    def report(self) -> str:
        rows = []
        for (peer, verb), load in sorted(self.loads.items(), key=lambda item: item[0][1]):
            other = self.loads.get(("mooncake", verb))
            rows.append(
                [
                    verb,
                    peer,
                    f"{load.pages_s:,.0f}",
                    shown(over(load.pages_s, other.pages_s if other else None)),
                    f"{percentile(load.seconds[verb], 0.5) * 1e3:.2f}",
                    f"{percentile(load.seconds[verb], 0.99) * 1e3:.2f}",
                    f"{over(load.cpu_s, load.pages) or 0:.2e}",
                ]
            )
        head = ["call", "peer", "pages/s", "/ mooncake", "p50 ms", "p99 ms", "CPU-s/page"]
        return (
            f"{PAGE_BYTES >> 10} KiB objects, {CLIENTS} clients at once, {self.setting.batch} a call:\n\n"
            + table(head, rows)
            if rows
            else ""
        )

    def bars(self) -> list[Bar]:
        load = self.loads.get(("kvstore-tcp", "put"))
        return [Bar("kvstore-tcp 4 KiB puts a second, 4 clients", PUTS_BAR, load.pages_s if load else None)]
