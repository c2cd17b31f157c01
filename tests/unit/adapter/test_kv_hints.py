"""A request's kv_hints: what becomes an intent of the store, and what is passed over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache_adapter.kv_hints import ACTIONS_MAX, NO_WISH, TTL_MS_MAX, Wish, wish_of
from kvstore_client import Keep


def action(action_type: str = "kv.retain", version: Any = "1.0", **payload: Any) -> dict[str, Any]:
    return {"action_id": "a", "action_type": action_type, "action_version": version, "payload": payload}


def hints(*actions: Any) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)}


def heard(told: Any) -> tuple[Wish, list[str]]:
    """What comes of hints where SGLang hands them over, and the complaints."""
    complaints: list[str] = []
    extra_info = SimpleNamespace(prefix_keys=None, extra_info={"kv_hints": told, "session_id": "s"})
    return wish_of(extra_info, complaints.append), complaints


@pytest.mark.parametrize(
    ("told", "wish"),
    [
        (hints(action()), Wish(Keep.RETAIN, 0)),
        (hints(action(ttl_ms=5000)), Wish(Keep.RETAIN, 5000)),
        (hints(action(ttl_seconds=1.5)), Wish(Keep.RETAIN, 1500)),
        (hints(action(ttl_seconds=1e12)), Wish(Keep.RETAIN, TTL_MS_MAX)),
        (hints(action("kv.demote", "0.1")), Wish(Keep.DEMOTE, 0)),
        (hints(action(), action("kv.demote")), Wish(Keep.DEMOTE, 0)),
        (hints(), NO_WISH),
    ],
)
def test_what_is_wished_is_told(told: Any, wish: Wish) -> None:
    assert heard(told) == (wish, [])


def test_the_structs_that_sglang_makes_of_json_say_the_same() -> None:
    retain = SimpleNamespace(
        action_id="a", action_type="kv.retain", action_version="1.0", payload={"ttl_ms": 7}
    )
    envelope = SimpleNamespace(protocol_version="0.1", message_id="m", actions=[retain])
    assert heard(envelope) == (Wish(Keep.RETAIN, 7), [])
    assert wish_of(SimpleNamespace(kv_hints=envelope), print) == Wish(Keep.RETAIN, 7)


@pytest.mark.parametrize("extra_info", [None, {}, 7, object(), SimpleNamespace(extra_info=None), ("x",)])
def test_calls_without_hints_wish_nothing_and_nobody_complains(extra_info: Any) -> None:
    complaints: list[str] = []
    assert wish_of(extra_info, complaints.append) == NO_WISH
    assert complaints == []


def test_actions_of_others_are_passed_over_without_a_word() -> None:
    assert heard(hints(action("kv.fetch", "9.9", where="there"))) == (NO_WISH, [])


@pytest.mark.parametrize(
    "told",
    [
        "retain",
        7,
        {"actions": None},
        hints(*[action()] * (ACTIONS_MAX + 1)),
        hints(action(version="2.0")),
        hints(action(version=None)),
        hints(action(ttl_ms=0)),
        hints(action(ttl_ms=-1)),
        hints(action(ttl_ms=True)),
        hints(action(ttl_ms="long")),
        hints(action(ttl_seconds=float("nan"))),
        hints(action(ttl_seconds=float("inf"))),
        hints(action(block_hashes=[1])),
        hints({"action_type": "kv.retain", "action_version": "1.0", "payload": [1]}),
        hints({"action_type": ["kv.retain"]}),
    ],
)
def test_hints_that_can_not_be_followed_are_said_and_not_followed(told: Any) -> None:
    wish, complaints = heard(told)
    assert wish == NO_WISH
    assert len(complaints) == 1


def test_a_bad_action_does_not_take_a_good_one_with_it() -> None:
    wish, complaints = heard(hints(action(ttl_ms=9), action("kv.demote", ttl_ms=-1)))
    assert wish == Wish(Keep.RETAIN, 9)
    assert len(complaints) == 1
