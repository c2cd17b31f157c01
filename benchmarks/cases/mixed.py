"""70 gets to 30 puts, by one, two and four clients at once: what HiCache's backup and prefetch threads make of a store."""

from __future__ import annotations

from benchmarks.cases.base import Case, Setting, over, percentile, shown, table
from benchmarks.cases.load import Load, run_in_turn
from benchmarks.contestants import Contestant

CLIENTS = (1, 2, 4)
GET_PERCENT = 70
PAGE_BYTES = 64 << 10
BATCHES_MAX = 24  # that a client keeps: older ones are removed, outside of what is timed


class Mixed(Case):
    clients_max = max(CLIENTS)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.loads: dict[tuple[str, int], Load] = {}

    def run(self, peers: list[Contestant]) -> None:
        for clients in CLIENTS:
            self.setting.progress(f"mixed load of {clients} clients")
            kinds = [(clients, clients, GET_PERCENT)]
            run_in_turn(
                peers, self.setting, self.loads, kinds, size_bytes=PAGE_BYTES, batches_max=BATCHES_MAX
            )
        self.wrong_pages = sum(load.wrong_pages for load in self.loads.values())

    def report(self) -> str:
        rows = []
        for (peer, clients), load in sorted(self.loads.items(), key=lambda item: item[0][1]):
            other = self.loads.get(("mooncake", clients))
            rows.append(
                [
                    str(clients),
                    peer,
                    shown(load.gb_s),
                    shown(over(load.gb_s, other.gb_s if other else None)),
                    *(
                        f"{percentile(load.seconds[verb], share) * 1e3:.1f}"
                        for verb in ("get", "put")
                        for share in (0.5, 0.99)
                    ),
                    str(load.missed_pages),
                    shown(over(load.cpu_s, load.bytes / 1e9)),
                ]
            )
        head = [
            "clients",
            "peer",
            "GB/s",
            "/ mooncake",
            "get p50 ms",
            "get p99 ms",
            "put p50 ms",
            "put p99 ms",
        ]
        return (
            f"{GET_PERCENT} gets to {100 - GET_PERCENT} puts of {PAGE_BYTES >> 10} KiB pages, by clients at once:\n\n"
            + table([*head, "missed pages", "CPU-s/GB"], rows)
            if rows
            else ""
        )
