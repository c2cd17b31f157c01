"""A running server's storage as the operator controls it: attached, changed, cleared and detached over HTTP, with the store up,
killed, or hung, and with each of HiCache's policies.

One server, started without storage, serves all statements.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sglang_harness.live import (
    NEW_TOKENS,
    PAGE_TOKENS,
    PROMPT_TOKENS,
    WHOLE_PAGES_TOKENS,
    LiveServer,
    Stopwatch,
    check_equal,
    loaded_tokens,
    new_prompt,
)
from sglang_harness.server import SGLangServer, StorageRefusedError
from sglang_harness.tiny_model import make_tiny_model

from support.processes import segment_metrics
from support.running_cluster import paused, running_cluster
from support.waiting import wait_until

DEVICE_TOKENS = 1536  # four prompts
DEADLINE_MS = 5000
BUSY_TOKENS = 250  # a request that runs for some seconds


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Not attached to anything."""
    directory: Path = tmp_path_factory.mktemp("storage-control")
    model = make_tiny_model(directory / "model")
    # One request at a time: others queue, which is when best_effort has time to load.
    settings = {"max-total-tokens": DEVICE_TOKENS, "max-running-requests": 1}
    with (
        running_cluster(directory / "store") as store,
        SGLangServer("server", model, directory, None, settings=settings) as server,
    ):
        yield LiveServer(server, store)
        server.kill()


# ---- attach, detach, clear --------------------------------------------------------------------------------------------


def test_a_server_without_storage_takes_one_and_gives_it_back_over_http(live: LiveServer) -> None:
    live.detach()  # when nothing is attached that is no error
    assert live.server.attached_storage()["hicache_storage_backend"] is None
    prompt = new_prompt()
    cold = live.ask_anew(prompt, from_storage=0)

    live.attach()
    assert live.server.attached_storage()["hicache_storage_backend"] == "dynamic"
    check_equal(live.ask_and_store(prompt), cold)
    warm = live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS)
    assert warm["meta_info"]["cached_tokens_details"]["storage_backend"] == "KVStoreHiCache"
    check_equal(warm, cold)

    live.detach()
    assert live.server.attached_storage()["hicache_storage_backend"] is None
    check_equal(live.ask_anew(prompt, from_storage=0), cold)

    live.attach()
    check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), cold)


def test_a_second_attach_changes_the_policy_and_keeps_the_config_of_the_first(live: LiveServer) -> None:
    live.attach()
    prompt = new_prompt()
    cold = live.ask_and_store(prompt)
    live.server.attach_storage(live.config(tag="of another fleet"), "timeout")
    # GET names the config that was ignored; what is found tells which one holds.
    assert live.server.attached_storage()["hicache_storage_prefetch_policy"] == "timeout"
    check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), cold)
    live.attach(tag="of another fleet")
    check_equal(live.ask_anew(prompt, from_storage=0), cold)


def test_a_config_that_cannot_work_is_refused_with_its_reason_and_the_next_one_is_taken(
    live: LiveServer,
) -> None:
    live.detach()
    with pytest.raises(StorageRefusedError, match="dead1ine_ms"):
        live.server.attach_storage(live.config(dead1ine_ms=5))
    assert live.server.attached_storage()["hicache_storage_backend"] is None
    live.attach()
    live.ask_and_store(new_prompt())


def test_a_clear_empties_the_storage_and_it_fills_again(live: LiveServer) -> None:
    live.attach()
    prompt = new_prompt()
    cold = live.ask_and_store(prompt)
    live.server.clear_storage()
    check_equal(live.ask_and_store(prompt), cold)
    check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), cold)


# ---- with a store in trouble ------------------------------------------------------------------------------------------


def test_with_a_hung_store_all_is_answered_and_it_can_be_detached_and_attached(live: LiveServer) -> None:
    live.attach(deadline_ms=1000)
    prompts = [new_prompt() for _ in range(3)]
    cold = [live.ask_and_store(prompt) for prompt in prompts]
    with paused(live.store.master, *live.store.segments.values()):
        live.server.flush()
        for prompt, expected in zip(prompts, cold, strict=True):
            answer = live.ask(prompt)
            assert loaded_tokens(answer) == 0
            check_equal(answer, expected)
        # Right after a request its pages are still being stored, which SGLang wants to see the end of.
        live.detach()
        check_equal(live.ask_anew(prompts[0], from_storage=0), cold[0])
        live.attach(deadline_ms=1000)
        check_equal(live.ask_anew(prompts[0], from_storage=0), cold[0])
        live.server.clear_storage()  # does not reach it: what is stored may not be loaded from now on
        check_equal(live.ask_anew(prompts[1], from_storage=0), cold[1])

    def stored_again() -> bool:
        live.server.flush()
        check_equal(answer := live.ask(prompts[2]), cold[2])
        return loaded_tokens(answer) == WHOLE_PAGES_TOKENS

    wait_until(stored_again, "the store is used again after it went on", 60.0, poll_s=0.3)
    assert live.server.is_alive()


def test_with_a_killed_store_all_is_answered_and_one_that_was_started_again_is_used(live: LiveServer) -> None:
    live.attach()
    prompt, other = new_prompt(), new_prompt()
    cold = live.ask_and_store(prompt)
    segment = live.store.segments["segment"]
    segment.kill()
    check_equal(live.ask_anew(prompt, from_storage=0), cold)
    live.store.master.kill()
    check_equal(live.ask_anew(prompt, from_storage=0), cold)
    cold_other = live.ask_anew(other, from_storage=0)
    live.attach()  # with nobody there to greet
    check_equal(live.ask_anew(prompt, from_storage=0), cold)
    live.server.clear_storage()

    live.store.start_master()
    segment.close()
    live.store.start_segment()

    def stored_again() -> bool:
        live.server.flush()
        check_equal(answer := live.ask(other), cold_other)
        return loaded_tokens(answer) == WHOLE_PAGES_TOKENS

    wait_until(stored_again, "a store that was started again is used", 60.0, poll_s=0.3)
    assert live.server.is_alive()


# ---- prefetch policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "waits"), [("best_effort", False), ("timeout", False), ("wait_complete", True)]
)
def test_a_request_waits_for_a_hung_store_as_long_as_its_prefetch_policy_says(
    live: LiveServer, policy: str, waits: bool
) -> None:
    # Each policy with a client of its own, as one that knows of a hang doesn't wait for long; and with connections, as one
    # that can't be made costs less.
    live.attach(policy, deadline_ms=DEADLINE_MS, prefetch_timeout_base=0.2)
    prompt = new_prompt()
    cold = live.ask_and_store(prompt)
    live.server.flush()
    with paused(*live.store.segments.values()):
        watch = Stopwatch()
        answer = live.ask(prompt)
        took_s = watch.seconds
    print(f"{policy}: answered after {took_s:.2f} s")
    assert loaded_tokens(answer) == 0
    check_equal(answer, cold)
    if waits:
        assert took_s >= DEADLINE_MS / 1000 - 0.1
    else:
        assert took_s < DEADLINE_MS / 1000


def test_the_first_request_on_a_hung_store_costs_a_deadline_and_the_next_ones_hardly_anything(
    live: LiveServer,
) -> None:
    live.attach("timeout", deadline_ms=DEADLINE_MS, prefetch_timeout_base=60)
    prompts = [new_prompt() for _ in range(3)]
    cold = [live.ask_and_store(prompt) for prompt in prompts]
    live.server.flush()
    took_s = []
    with paused(live.store.master, *live.store.segments.values()):
        for prompt, expected in zip(prompts, cold, strict=True):
            watch = Stopwatch()
            check_equal(live.ask(prompt), expected)
            took_s.append(watch.seconds)
    print("answered after", *(f"{each:.2f} s" for each in took_s))
    assert took_s[0] >= DEADLINE_MS / 1000 - 0.1
    assert max(took_s[1:]) < DEADLINE_MS / 1000


def test_timeout_loads_all_that_arrives_in_time(live: LiveServer) -> None:
    live.attach("timeout", prefetch_timeout_base=30, deadline_ms=5000)
    prompt = new_prompt()
    cold = live.ask_and_store(prompt)
    check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), cold)


def test_best_effort_loads_what_arrives_while_the_request_queues(live: LiveServer) -> None:
    live.attach("best_effort")
    prompt, long = new_prompt(), new_prompt(tokens=PAGE_TOKENS)
    cold = live.ask_and_store(prompt)
    live.server.flush()
    with ThreadPoolExecutor(1) as other:
        running = other.submit(live.server.generate, long, BUSY_TOKENS)
        wait_until(
            lambda: "num_running_reqs{" in live.server.metrics() and running_requests(live) == 1,
            "the first request runs",
            30,
        )
        answer = live.ask(prompt)
        assert len(running.result()["output_ids"]) == BUSY_TOKENS
    assert loaded_tokens(answer) == WHOLE_PAGES_TOKENS, live.server.log()
    check_equal(answer, cold)


def running_requests(live: LiveServer) -> float:
    lines = [
        line for line in live.server.metrics().splitlines() if line.startswith("sglang:num_running_reqs{")
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


# ---- write policies ---------------------------------------------------------------------------------------------------


def test_write_through_selective_stores_what_was_used_twice(live: LiveServer) -> None:
    live.attach(write_policy="write_through_selective")
    prompt = new_prompt()
    before, objects = live.stored_tokens(), object_count(live)
    cold = live.ask_anew(prompt, from_storage=0)
    live.ask(new_prompt())  # whatever the first one was to leave behind is done by then
    assert live.stored_tokens() == before
    assert object_count(live) == objects
    live.ask(prompt)
    live.wait_stored(before + WHOLE_PAGES_TOKENS)
    check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), cold)


def test_write_back_stores_what_is_evicted_from_the_device(live: LiveServer) -> None:
    live.attach(write_policy="write_back")
    prompts = [new_prompt() for _ in range(DEVICE_TOKENS // PROMPT_TOKENS + 2)]
    before = live.stored_tokens()
    cold = [live.ask(prompts[0])]
    live.ask(new_prompt(tokens=PAGE_TOKENS * 2))
    assert live.stored_tokens() == before  # nothing has had to go yet
    cold += [live.ask(prompt) for prompt in prompts[1:]]
    live.wait_stored(before + 2 * WHOLE_PAGES_TOKENS)
    live.server.flush()
    for prompt, expected in zip(prompts[:2], cold[:2], strict=True):
        check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), expected)


def object_count(live: LiveServer) -> float:
    return segment_metrics(live.store.segments["segment"])["object_count"]


# ---- tenants ----------------------------------------------------------------------------------------------------------


def test_requests_of_two_cache_salts_never_share_pages_and_those_of_one_do(live: LiveServer) -> None:
    live.attach()
    prompt = new_prompt()
    cold = live.ask_and_store(prompt, cache_salt="one tenant")
    check_equal(live.ask_anew(prompt, from_storage=0, cache_salt="another tenant"), cold)
    check_equal(live.ask_anew(prompt, from_storage=0), cold)
    check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS, cache_salt="one tenant"), cold)
    assert len(cold["output_ids"]) == NEW_TOKENS
