"""What is true of any server process: its event loop, its descriptors, its log, its tasks. Readable from every thread, also while
the event loop hangs."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvstore.common.core_tasks import core_task_restarts
from kvstore.common.file_limit import file_limit, open_files
from kvstore.common.logs import log_lines_lost
from kvstore.common.loop_watchdog import LoopWatchdog

_LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# So much of the descriptors in use is told: those in reserve for status and control are being used.
FILES_SHARE_TOLD = 0.95
LOST_TOLD_S = 60.0


class ProcessStatus:
    """`prefix` is that of the process's metrics."""

    def __init__(self, prefix: str) -> None:
        self.registry = CollectorRegistry()
        self._lag = Histogram(
            prefix + "loop_lag_seconds",
            "How late the event loop runs what it is given, probed four times a second.",
            buckets=_LAG_BUCKETS_S,
            registry=self.registry,
        )
        stalls = Counter(
            prefix + "loop_stalls",
            "Times that the event loop hung for over a second.",
            registry=self.registry,
        )
        self.watchdog = LoopWatchdog(self._lag.observe, stalls.inc)
        self.registry.register(_ProcessCollector(prefix, self.watchdog))
        self._lost_seen, self._lost_at = 0, float("-inf")

    def health(self) -> tuple[bool, str]:
        """(alive, why): whether this process can go on. A store that is full, slow or away, and limits that are reached, are no
        reason to restart it."""
        if self.watchdog.alive:
            return True, "ok"
        stalled_s = self.watchdog.stalled_s
        return False, f"the event loop has hung for {stalled_s:.0f} s; the log says where"

    def problems(self) -> list[str]:
        """Limits of the process that are reached now, in words for people."""
        problems = []
        limit, used = file_limit(), open_files()
        if used >= FILES_SHARE_TOLD * limit:
            problems.append(
                f"{used} of {limit} descriptors are open: raise the limit of open files (LimitNOFILE=, ulimit -Hn)"
            )
        lost, now = log_lines_lost(), time.monotonic()
        if lost > self._lost_seen:
            self._lost_seen, self._lost_at = lost, now
        if now - self._lost_at < LOST_TOLD_S:
            problems.append(
                f"log lines are dropped, {lost} since the start: nobody reads this master's stderr fast enough"
            )
        return problems


class _ProcessCollector(Collector):
    def __init__(self, prefix: str, watchdog: LoopWatchdog) -> None:
        self._prefix = prefix
        self._watchdog = watchdog

    def collect(self) -> Iterable[Metric]:
        prefix = self._prefix
        yield GaugeMetricFamily(
            prefix + "loop_lag_max_seconds",
            "Longest lag of the event loop in the last minute.",
            value=self._watchdog.lag_max_s,
        )
        yield GaugeMetricFamily(prefix + "open_files", "Descriptors in use.", value=open_files())
        yield GaugeMetricFamily(prefix + "open_files_max", "Most descriptors.", value=file_limit())
        yield CounterMetricFamily(
            prefix + "log_lines_dropped",
            "Log lines left out because nobody read stderr fast enough.",
            value=log_lines_lost(),
        )
        restarts = CounterMetricFamily(
            prefix + "core_task_restarts",
            "Times that a task which goes on for ever had ended and was started again, by task.",
            labels=["task"],
        )
        for task, count in core_task_restarts().items():
            restarts.add_metric([task], count)
        yield restarts
