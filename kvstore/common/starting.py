"""Starting a server such that it can be told to stop meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def finish_unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` was done before `stopping` was set; then it is cancelled, and has cleaned up. Raises what it raises."""
    working = asyncio.create_task(work, name="start")
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    if working.cancelled():
        return False
    working.result()
    return True
