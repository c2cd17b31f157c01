"""What the pool of a segment begins with: the pages that an earlier process has left, or nothing, and why."""

from __future__ import annotations

import logging
from typing import Any

from kvstore.common.logs import log_event

logger = logging.getLogger(__name__)


def say_content(content: dict[str, Any], lost: str = "") -> None:
    """One line of the log. `content`: of SegmentStore; `lost`: what is known of a pool that should have been there."""
    if not content["warm"]:
        reason = lost if lost and content["fresh_reason"] == "there was none" else content["fresh_reason"]
        log_event(logger, logging.INFO, "pool_fresh", reason=reason)
        return
    dropped = {f"dropped_{name}": count for name, count in content["dropped"].items() if count}
    damaged = any(content["dropped"][name] for name in ("damaged", "misplaced", "bad_bytes"))
    log_event(
        logger,
        logging.WARNING if damaged else logging.INFO,
        "pool_adopted",
        objects=content["objects"],
        object_bytes=content["object_bytes"],
        verified_bytes=content["scanned_bytes"],
        seconds=round(content["scan_seconds"], 3),
        gb_per_s=round(content["scanned_bytes"] / 1e9 / max(content["scan_seconds"], 1e-6), 2),
        announced_anew=content["needs_inventory"],
        **dropped,
    )
