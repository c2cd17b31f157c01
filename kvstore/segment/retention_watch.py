"""Says in the log that what writers want of their pages is not done, which the native store only counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kvstore.common.logs import log_throttled

logger = logging.getLogger(__name__)

PERIOD_S = 5.0

_OVER_BUDGET = (
    "more is to be retained than a budget allows: retain less, or raise retained_namespace_fraction_max and "
    "retained_fraction_max; `kvstore admin namespaces` shows whose it is"
)
_WRONG = "demoted pages of a namespace come back more often than its others: whoever demotes them should not"


async def watch_retention(stats: Callable[[], dict[str, int]], period_s: float = PERIOD_S) -> None:
    """For ever: looks at what the store has counted."""
    seen = await asyncio.to_thread(stats)
    while True:
        await asyncio.sleep(period_s)
        counted = await asyncio.to_thread(stats)
        if (refused := counted["retentions_refused"] - seen["retentions_refused"]) > 0:
            fields: dict[str, Any] = {"objects": refused, "remedy": _OVER_BUDGET}
            log_throttled(logger, logging.WARNING, "retentions_refused", "", **fields)
        if (ignored := counted["demotions_ignored"] - seen["demotions_ignored"]) > 0:
            fields = {"objects": ignored, "remedy": _WRONG}
            log_throttled(logger, logging.WARNING, "demotions_ignored", "", **fields)
        seen = counted
