"""Damage on the wire never becomes KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang_harness.case import Case
from sglang_harness.engine import Engine

from support.running_cluster import running_cluster
from support.tcp_proxy import TO_CLIENT, TcpProxy
from support.waiting import wait_until


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    opened = TcpProxy()
    yield opened
    opened.close()


def test_a_flipped_bit_on_the_wire_is_a_miss_is_counted_and_is_never_loaded(
    tmp_path: Path, proxy: TcpProxy
) -> None:
    with running_cluster(tmp_path, advertise_port=proxy.port) as store:
        proxy.target_port = store.segments["segment"].wait_event("listening")["port"]
        options = {"masters": store.masters, "same_host": False, "deadline_ms": 3000}
        case = Case(pages=8, model_name="acme/integrity", options=options)
        with Engine(case) as engine:
            slots = engine.host_pool.alloc(8 * 16)
            engine.fill(slots, seed=1)
            expected = engine.page_bytes(slots)
            hashes, stored = engine.backup(slots, case.tokens)
            assert stored == 8 * 16

            proxy.flip(TO_CLIENT, 20_000)  # behind the replies so far, in the bytes of a page
            answers = engine.backend.batch_get_v1(hashes, slots, None)
            assert proxy.flips_done == 1
            assert not all(answers), "a damaged page was answered as found"
            assert engine.backend.counters()["digest_mismatches"] > 0
            loaded = engine.page_bytes(slots)
            for page, answer in enumerate(answers):
                assert not answer or loaded[page] == expected[page], (
                    f"page {page} was answered with other bytes"
                )

            engine.wipe()
            wait_until(
                lambda: engine.backend.batch_get_v1(hashes, slots, None) == [True] * 8,
                "healthy pages are readable again",
            )
            assert engine.page_bytes(slots) == expected
