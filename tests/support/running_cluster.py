"""A master and one segment for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import Cluster, ServerProcess


@contextmanager
def running_cluster(directory: Path, capacity: str = "64MiB", advertise_port: int = 0) -> Iterator[Cluster]:
    """Ready to be used when entered; nothing is left of it on exit. `advertise_port`: where clients find the
    segment instead of at its own data port, 0 for the port itself.
    """
    directory.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(directory, capacity)
    try:
        cluster.start_master()
        cluster.start_segment(options=(f"--advertise-port={advertise_port}",))
        yield cluster
    finally:
        cluster.close()


@contextmanager
def paused(*processes: ServerProcess) -> Iterator[None]:
    """The processes hang, with their sockets open."""
    for process in processes:
        process.pause()
    try:
        yield
    finally:
        for process in processes:
            process.resume()
