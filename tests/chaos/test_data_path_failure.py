"""A segment's data path fails while its heartbeats go on."""

from __future__ import annotations

from collections.abc import Callable

from kvstore_client import Client, Namespace
from support import pages
from support.processes import Cluster, segment_metrics
from support.tcp_proxy import TO_SERVER, TcpProxy
from support.waiting import wait_until

# What a master may take to see that nobody reaches a segment, and a probe to see that it is back.
SEEN_WITHIN_S = 5.0


def put_some(namespace: Namespace, name: str, count: int = 32) -> list[bool]:
    """A page each, so that each is placed for itself."""
    return [namespace.put(f"{name} {i}", pages.content(f"{name} {i}")) for i in range(count)]


def test_a_segment_that_serves_nobody_gets_nothing_new_from_anybody_until_it_answers_again(
    cluster: Cluster, proxy: TcpProxy, connect: Callable[..., Client]
) -> None:
    # The one that is there longest gets most.
    cut = cluster.start_segment("cut", options=(f"--advertise-port={proxy.port}",))
    proxy.target_port = cut.wait_event("listening")["port"]
    good = cluster.start_segment("good")
    writer = connect(same_host=False, deadline_ms=500).namespace("chaos")
    assert all(put_some(writer, "before"))
    assert segment_metrics(cut)["object_count"] > 0

    proxy.stall(TO_SERVER, 0)

    def is_shut() -> bool:
        put_some(writer, "while it is cut", count=2)
        return "data_path_shut" in cluster.master.log()

    wait_until(is_shut, "the master sees that nobody reaches the segment", timeout_s=SEEN_WITHIN_S)
    held = segment_metrics(cut)["object_count"]
    newcomer = connect(same_host=False, deadline_ms=2000)
    assert all(put_some(newcomer.namespace("chaos"), "newcomer"))
    assert newcomer.stats()["troubles"] == {}, "one that has not tried yet is not sent there"
    assert segment_metrics(cut)["object_count"] == held

    proxy.release()
    wait_until(
        lambda: "data_path_open" in cluster.master.log(),
        "the master sees that it answers",
        timeout_s=SEEN_WITHIN_S,
    )

    def gets_pages_again() -> bool:
        put_some(newcomer.namespace("chaos"), "after", count=8)
        return segment_metrics(cut)["object_count"] > held

    wait_until(gets_pages_again, "new pages go to it", timeout_s=SEEN_WITHIN_S)
    assert segment_metrics(good)["object_count"] > 0
