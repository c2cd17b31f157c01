"""A byte is turned over in the segment's memory, in the slot of a sealed page."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvstore_client import Client
from support import pages
from support.pool_memory import flip_byte_in_pool
from support.processes import Cluster, segment_metrics
from support.waiting import wait_until

SIZE_BYTES = 300_001


@pytest.mark.parametrize("same_host", [True, False], ids=["same-host", "tcp"])
@pytest.mark.parametrize("position", [0, SIZE_BYTES // 2, SIZE_BYTES - 1], ids=["first", "middle", "last"])
def test_a_byte_flipped_in_a_slot_is_a_miss_counted_and_the_slot_is_quarantined(
    cluster: Cluster, connect: Callable[..., Client], same_host: bool, position: int
) -> None:
    segment = cluster.start_segment()
    client = connect(same_host=same_host)
    namespace = client.namespace("chaos")
    keys = ["damaged", "intact"]
    values = [pages.content(key, SIZE_BYTES) for key in keys]
    assert namespace.batch_put(keys, values) == [True, True]
    assert namespace.batch_get(keys) == values
    flip_byte_in_pool(segment, values[0][1000:2000], position - 1000)
    assert namespace.batch_get(keys) == [None, values[1]]
    assert client.stats()["digest_mismatches"] == 1
    # The reader told the segment, which looked for itself: nobody finds the page any more, its memory is not used
    # again, and the key can be written anew.
    wait_until(lambda: segment_metrics(segment)["quarantined_slots"] == 1, "the slot is quarantined")
    wait_until(lambda: not namespace.exists("damaged"), "the directory forgets the page")
    assert wait_until(lambda: namespace.put("damaged", values[0]), "the page is stored again")
    assert connect(same_host=same_host).namespace("chaos").batch_get(keys) == values
