"""Clusters whose segments lie on different hosts, and where the copies of pages are in them."""

from __future__ import annotations

import urllib.request

from support.processes import Cluster, segment_metrics


def start_on(cluster: Cluster, name: str, host: str) -> None:
    """A segment that is reached at `host`, an address of the loopback: a host of its own for whoever places copies."""
    cluster.start_segment(name, options=(f"--host={host}", f"--advertise-host={host}"))


def object_counts(cluster: Cluster) -> dict[str, int]:
    return {name: int(segment_metrics(segment)["object_count"]) for name, segment in cluster.segments.items()}


def master_metric(cluster: Cluster, name: str) -> float:
    url = f"http://127.0.0.1:{cluster.master_ports['http_port']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"kvstore_master_{name} "))
