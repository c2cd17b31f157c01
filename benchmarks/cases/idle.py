"""What servers and a connected client use while nothing happens."""

from __future__ import annotations

import time

from benchmarks.cases.base import Case, Setting, table
from benchmarks.contestants import Contestant, cpu_seconds

IDLE_S = 5.0


class Idle(Case):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.shares: dict[str, tuple[float, float]] = {}

    def run(self, peers: list[Contestant]) -> None:
        self.setting.progress(f"idle for {IDLE_S:.0f} s")
        before = [(p.server_cpu_seconds(), cpu_seconds(p.reader.pid)) for p in peers]
        time.sleep(IDLE_S)
        for peer, (servers_s, client_s) in zip(peers, before, strict=True):
            self.shares[peer.name] = (
                (peer.server_cpu_seconds() - servers_s) / IDLE_S,
                (cpu_seconds(peer.reader.pid) - client_s) / IDLE_S,
            )

    def report(self) -> str:
        rows = [
            [peer, f"{servers:.2%}", f"{client:.2%}"]
            for peer, (servers, client) in sorted(self.shares.items())
        ]
        head = ["peer", "servers, of a core", "one client, of a core"]
        return "Idle:\n\n" + table(head, rows) if rows else ""
