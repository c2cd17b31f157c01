"""A byte is turned over on the wire between client and segment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvstore_client import Client
from support import pages
from support.processes import Cluster, ServerProcess, segment_metrics
from support.tcp_proxy import TO_CLIENT, TO_SERVER, TcpProxy
from support.waiting import wait_until

SIZE_BYTES = 1 << 20


@pytest.fixture
def segment(cluster: Cluster, proxy: TcpProxy) -> ServerProcess:
    """A segment that TCP clients reach through the proxy only."""
    started = cluster.start_segment(options=(f"--advertise-port={proxy.port}",))
    proxy.target_port = started.wait_event("listening")["port"]
    return started


def test_a_page_damaged_on_its_way_to_the_segment_is_refused_and_counted(
    segment: ServerProcess, proxy: TcpProxy, connect: Callable[..., Client]
) -> None:
    client = connect(same_host=False)
    namespace = client.namespace("chaos")
    right = pages.content("k", SIZE_BYTES)
    proxy.flip(TO_SERVER, after_bytes=SIZE_BYTES // 2)
    stored = namespace.put("k", right)
    assert proxy.flips_done == 1
    assert segment_metrics(segment)["digest_mismatches"] == 1
    found = connect().namespace("chaos").get("k")
    # A client may try again within its deadline; what it must not do is to claim a page that is not there.
    assert found == (right if stored else None)
    assert namespace.put("k", right)
    assert connect().namespace("chaos").get("k") == right


def test_a_page_damaged_on_its_way_to_the_client_is_never_handed_out(
    segment: ServerProcess, proxy: TcpProxy, connect: Callable[..., Client]
) -> None:
    client = connect(same_host=False)
    namespace = client.namespace("chaos")
    right = pages.content("k", SIZE_BYTES)
    assert namespace.put("k", right)
    proxy.flip(TO_CLIENT, after_bytes=SIZE_BYTES // 2)
    found = namespace.get("k")
    assert proxy.flips_done == 1
    assert found in (None, right)
    assert client.stats()["digest_mismatches"] == 1
    # The slot itself is fine, and stays in service.
    wait_until(lambda: namespace.get("k") == right, "the page is read again")
    assert segment_metrics(segment)["quarantined_slots"] == 0


def test_only_the_damaged_page_of_a_batch_is_missed(
    segment: ServerProcess, proxy: TcpProxy, connect: Callable[..., Client]
) -> None:
    client = connect(same_host=False)
    namespace = client.namespace("chaos")
    keys = [f"k{i}" for i in range(8)]
    values = [pages.content(key, SIZE_BYTES) for key in keys]
    assert namespace.batch_put(keys, values) == [True] * 8
    proxy.flip(TO_CLIENT, after_bytes=SIZE_BYTES)
    found = namespace.batch_get(keys)
    assert proxy.flips_done == 1
    assert sum(value is None for value in found) <= 1
    assert all(value in (None, right) for value, right in zip(found, values, strict=True))
    assert client.stats()["digest_mismatches"] >= 1
