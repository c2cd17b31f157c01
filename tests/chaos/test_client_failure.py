"""A client is killed in the middle of a put."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from kvstore_client import Client
from support import pages
from support.processes import Cluster, segment_metrics
from support.tcp_proxy import TO_SERVER, TcpProxy
from support.verify import assert_all_readable, readable, wait_only_whole_pages
from support.waiting import wait_until
from support.workers import Worker

# Far more than sockets and proxy can buffer: a killed writer's page can't arrive whole after its death.
BIG_BYTES = 48 << 20


def test_a_half_written_page_of_a_killed_client_is_never_visible_and_its_space_comes_back(
    cluster: Cluster, proxy: TcpProxy, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    segment = cluster.start_segment(options=(f"--advertise-port={proxy.port}",))
    proxy.target_port = segment.wait_event("listening")["port"]
    empty_bytes = segment_metrics(segment)["used_bytes"]
    # The segment has got half of the page when its writer dies.
    proxy.stall(TO_SERVER, after_bytes=BIG_BYTES // 2)
    writer = start_worker(
        "writer", same_host=False, batch=1, pages_max=1, deadline_ms=30_000, page_bytes=BIG_BYTES
    )
    wait_until(proxy.stalled.is_set, "half of the page is on its way")
    key = "writer/0"
    namespace = connect().namespace("chaos")  # same host: past the proxy
    assert not namespace.exists(key)
    assert namespace.get(key) is None
    writer.kill()
    proxy.release()
    assert not namespace.exists(key)
    assert writer.acked == []
    wait_until(lambda: segment_metrics(segment)["used_bytes"] == empty_bytes, "the space came back")
    # Anybody else can store it, and it is whole.
    assert namespace.put(key, pages.content(key, BIG_BYTES))
    assert_all_readable_big(connect().namespace("chaos"), key)


def test_others_can_put_a_key_while_its_first_writer_hangs_in_the_middle(
    cluster: Cluster, proxy: TcpProxy, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    segment = cluster.start_segment(options=(f"--advertise-port={proxy.port}",))
    proxy.target_port = segment.wait_event("listening")["port"]
    proxy.stall(TO_SERVER, after_bytes=BIG_BYTES // 2)
    writer = start_worker(
        "writer", same_host=False, batch=1, pages_max=1, deadline_ms=30_000, page_bytes=BIG_BYTES
    )
    wait_until(proxy.stalled.is_set, "half of the page is on its way")
    key = "writer/0"
    namespace = connect().namespace("chaos")
    assert namespace.put(key, pages.content(key, BIG_BYTES))
    assert_all_readable_big(namespace, key)
    proxy.release()  # the first writer goes on: it finds the key there, and changes nothing
    wait_until(lambda: writer.acked == [key], "the first writer is told that the key is there")
    assert_all_readable_big(connect().namespace("chaos"), key)


@pytest.mark.parametrize("same_host", [True, False], ids=["same-host", "tcp"])
def test_clients_killed_at_random_moments_leave_only_whole_pages(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client], same_host: bool
) -> None:
    segment = cluster.start_segment()
    rng = random.Random(7)
    acked: list[str] = []
    for turn in range(4):
        worker = start_worker(f"w{turn}", same_host=same_host, pause_s=0.0)
        wait_until(lambda worker=worker: len(worker.acked) >= 8, "it has begun")
        time.sleep(rng.uniform(0.0, 0.2))
        worker.kill()
        acked += worker.acked
    namespace = connect().namespace("chaos")
    assert_all_readable(namespace, acked)
    everything = [f"w{turn}/{i}" for turn in range(4) for i in range(800)]
    whole = wait_only_whole_pages(namespace, everything, lambda: segment_metrics(segment)["object_count"])
    missing = [key for key in everything if key not in whole][:16]
    assert namespace.batch_put(missing, [pages.content(key) for key in missing]) == [True] * len(missing)


def assert_all_readable_big(namespace: object, key: str) -> None:
    assert readable(namespace, [key], BIG_BYTES) == {key}  # type: ignore[arg-type]
