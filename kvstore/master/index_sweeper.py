"""Frees what inventories and drops have doomed in an index, without keeping the event loop from its requests."""

from __future__ import annotations

import asyncio

from kvstore_client._native import DirectoryIndex

SLICE_ENTRIES = 2_000  # below a millisecond


async def sweep(index: DirectoryIndex) -> None:
    """Until nothing is doomed. Two at a time share the work."""
    swept = SLICE_ENTRIES
    while swept == SLICE_ENTRIES:
        swept = index.sweep(SLICE_ENTRIES)
        await asyncio.sleep(0)
