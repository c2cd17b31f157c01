"""Damage on the wire never becomes KV cache."""

from __future__ import annotations

import time
from pathlib import Path

from sglang_harness.case import Case
from sglang_harness.engine import Engine
from support.flipping_proxy import FlippingProxy
from support.store_processes import StoreProcesses


def test_a_flipped_bit_on_the_wire_is_a_miss_is_counted_and_is_never_loaded(tmp_path: Path) -> None:
    with FlippingProxy() as proxy, StoreProcesses(tmp_path, advertise_port=proxy.port) as store:
        assert store.segment is not None
        proxy.target = ("127.0.0.1", store.segment.facts["port"])
        options = {"masters": store.masters, "same_host": False, "deadline_ms": 3000}
        case = Case(pages=8, model_name="acme/integrity", options=options)
        with Engine(case) as engine:
            slots = engine.host_pool.alloc(8 * 16)
            engine.fill(slots, seed=1)
            expected = engine.page_bytes(slots)
            hashes, stored = engine.backup(slots, case.tokens)
            assert stored == 8 * 16

            proxy.armed = True
            answers = engine.backend.batch_get_v1(hashes, slots, None)
            assert proxy.flipped > 0
            assert not all(answers), "a damaged page was answered as found"
            assert engine.backend.counters()["digest_mismatches"] > 0
            loaded = engine.page_bytes(slots)
            for page, answer in enumerate(answers):
                assert not answer or loaded[page] == expected[page], (
                    f"page {page} was answered with other bytes"
                )

            proxy.armed = False
            engine.wipe()
            ends_at = time.monotonic() + 15
            while engine.backend.batch_get_v1(hashes, slots, None) != [True] * 8:
                assert time.monotonic() < ends_at, "healthy pages stayed unreadable"
                time.sleep(0.05)
            assert engine.page_bytes(slots) == expected
