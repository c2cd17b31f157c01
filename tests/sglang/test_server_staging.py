"""A whole server whose host memory holds nothing (`--hicache-host-memory-mode buffer_only`): what is in the storage is all it
has, and it remembers what it believes to be there.
"""

from __future__ import annotations

from pathlib import Path

from sglang_harness.live import WHOLE_PAGES_TOKENS, LiveServer, check_equal, loaded_tokens, new_prompt
from sglang_harness.server import SGLangServer, kvstore_config
from sglang_harness.tiny_model import make_tiny_model

from support.running_cluster import running_cluster
from support.waiting import wait_until

DEVICE_TOKENS = 1536


def test_a_page_that_the_store_has_lost_is_stored_again_after_one_miss(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    settings = {"hicache-host-memory-mode": "buffer_only", "max-total-tokens": DEVICE_TOKENS}
    with (
        running_cluster(tmp_path / "store") as store,
        SGLangServer("server", model, tmp_path, kvstore_config(store.masters), settings=settings) as server,
    ):
        live = LiveServer(server, store)
        prompt = new_prompt()

        def leave_the_device() -> None:
            for _ in range(DEVICE_TOKENS // len(prompt) + 1):
                before = live.stored_tokens()
                live.ask(new_prompt())
                live.wait_stored(before + WHOLE_PAGES_TOKENS)

        cold = live.ask(prompt)
        live.wait_stored(WHOLE_PAGES_TOKENS)
        leave_the_device()
        warm = live.ask(prompt)
        assert loaded_tokens(warm) == WHOLE_PAGES_TOKENS, server.log()
        check_equal(warm, cold)

        leave_the_device()
        segment = store.segments["segment"]
        segment.kill()
        segment.close()
        store.start_segment()
        wait_until(
            lambda: live.ask(extra := new_prompt()) and stores(live, extra), "the new segment is used", 60.0
        )
        before = live.stored_tokens()
        lost = live.ask(prompt)
        assert loaded_tokens(lost) == 0
        check_equal(lost, cold)
        live.wait_stored(before + WHOLE_PAGES_TOKENS)
        leave_the_device()
        again = live.ask(prompt)
        assert loaded_tokens(again) == WHOLE_PAGES_TOKENS, server.log()
        check_equal(again, cold)
        server.kill()


def stores(live: LiveServer, prompt: list[int]) -> bool:
    """Whether the prompt, just answered, can be loaded once the caches are empty."""
    live.server.flush()
    return loaded_tokens(live.ask(prompt)) > 0
