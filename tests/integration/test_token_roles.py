"""Tokens with roles, from a real client through a real segment to a real master."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvstore.common.config.segment import SegmentSettings
from kvstore.master.server import MasterServer
from kvstore.segment.errors import SegmentStartError
from kvstore.segment.server import SegmentServer
from kvstore_client import Client
from support.master_peers import settings

ENGINE, SEGMENT, ADMIN = "the-engines", "the-segments", "the-admins"


def segment_settings(directory: Path, masters: str, token: str) -> SegmentSettings:
    values: dict[str, Any] = {
        "masters": masters,
        "capacity": "16MiB",
        "port": 0,
        "http_port": 0,
        "unix_path": "off",
        "data_dir": directory / "segment",
        "pool_path": "off",
        "token": token,
    }
    return SegmentSettings(**values)


async def test_pages_come_and_go_with_the_engines_token_and_segments_with_theirs(tmp_path: Path) -> None:
    tokens = f"engine:{ENGINE}\nsegment:{SEGMENT}\nadmin:{ADMIN}\n"
    master = MasterServer(settings(tmp_path, token=tokens))
    await master.start()
    # It needs no line for admins, and has none.
    own = f"segment:{SEGMENT}\nengine:{ENGINE}\n"
    segment = SegmentServer(segment_settings(tmp_path, f"127.0.0.1:{master.control_port}", own))
    await segment.start()
    try:
        assert await segment.wait_attached(10)

        def exchange(token: str) -> bytes | None:
            directory = f"127.0.0.1:{master.directory_port}"
            with Client(directory, token=token, deadline_ms=2000) as client:
                namespace = client.namespace("roles")
                namespace.put("k", b"value")
                return namespace.get("k")

        def clear_and_look() -> tuple[bool, bool, int]:
            with Client(f"127.0.0.1:{master.directory_port}", token=ENGINE, deadline_ms=2000) as client:
                namespace = client.namespace("roles")
                return namespace.clear(), namespace.exists("k"), namespace.epoch

        assert await asyncio.to_thread(exchange, ENGINE) == b"value"
        assert await asyncio.to_thread(clear_and_look) == (True, False, 1)
        for token in (SEGMENT, ADMIN, ""):
            assert await asyncio.to_thread(exchange, token) is None
    finally:
        await segment.stop()
        await master.stop()


async def test_both_tokens_of_the_engines_reach_the_pages_during_a_rotation(tmp_path: Path) -> None:
    tokens = f"engine:{ENGINE}\nengine:new-{ENGINE}\nsegment:{SEGMENT}\n"
    master = MasterServer(settings(tmp_path, token=tokens))
    await master.start()
    segment = SegmentServer(segment_settings(tmp_path, f"127.0.0.1:{master.control_port}", tokens))
    await segment.start()
    try:
        assert await segment.wait_attached(10)

        def exchange(token: str) -> bytes | None:
            with Client(f"127.0.0.1:{master.directory_port}", token=token, deadline_ms=5000) as client:
                namespace = client.namespace("rotation")
                namespace.put(token, b"value")
                return namespace.get(token)

        for token in (ENGINE, f"new-{ENGINE}"):
            assert await asyncio.to_thread(exchange, token) == b"value"
    finally:
        await segment.stop()
        await master.stop()


@pytest.mark.parametrize(
    ("token", "missing"), [(f"engine:{ENGINE}", "segment"), (f"segment:{SEGMENT}", "engine")]
)
async def test_a_segment_without_one_of_its_two_tokens_does_not_start(
    tmp_path: Path, token: str, missing: str
) -> None:
    segment = SegmentServer(segment_settings(tmp_path, "127.0.0.1:9", token))
    with pytest.raises(SegmentStartError, match=f"none for the role {missing}"):
        await segment.start()
    await segment.stop()
