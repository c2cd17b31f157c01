"""How much of etcd's quota is used, and what follows from it. Policy only: it is given figures and asks nobody.

Two numbers matter. What is *in use* counts the records and the past revisions that are still kept. The *file* holds
that and free pages; it is the file that etcd holds against its quota, and it only shrinks by defragmenting. Past the
quota etcd raises an alarm and takes nothing, not even the lease that a new leader needs, so that we stop well before.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.master.metadata.store import Space, SpaceLevel

# Shares of the quota. Each level is left a little below where it is entered.
TIGHT_SHARE, NOT_TIGHT_SHARE = 0.45, 0.40
FULL_SHARE, NOT_FULL_SHARE = 0.75, 0.70
FULL_FILE_SHARE, NOT_FULL_FILE_SHARE = 0.95, 0.90
# Compaction adds to the past before it frees anything: up to here at once, above it only in slices of the quota, one in so many
# seconds, while the past is dropped as fast.
UPKEEP_SHARE, UPKEEP_SHARE_MAX = 0.80, 0.92
SLICE_SHARE = 1 / 64
SLICE_S = 3.0
# The sizes that etcd tells are those of its last batch written, a tenth of a second ago, or more when it is busy.
SIZES_BEHIND_S = 0.5
# A record takes more in etcd's pages than its bytes.
OVERHEAD = 1.5
# Defragmenting stops a member for about a second per 100 MB: only for this much.
DEFRAG_SHARE = 0.10
# Of the past in one step, and how many steps at most: each costs some milliseconds.
DROP_SHARE = 1 / 64
DROP_STEPS_MAX = 128
# How long the past is kept, beyond what is asked for: standbys that are slower than this read anew.
TIGHT_HISTORY_S = 10.0
SHORT_HISTORY_S = 2.0


@dataclass(frozen=True, slots=True)
class Usage:
    in_use_bytes: int
    file_bytes: int
    quota_bytes: int
    alarm: bool = False  # NOSPACE

    def __str__(self) -> str:
        alarm = "etcd has raised its NOSPACE alarm: " if self.alarm else ""
        return (
            f"{alarm}etcd holds {self.in_use_bytes} bytes in a file of {self.file_bytes}, of a quota of "
            f"{self.quota_bytes}"
        )

    @property
    def free_bytes(self) -> int:
        return self.file_bytes - self.in_use_bytes


def space(usage: Usage, before: SpaceLevel, pending_bytes: int, *, slice_due: bool) -> Space:
    """`before`: the level of the last measurement; `pending_bytes`: what is on its way into etcd, or not in its figures yet;
    `slice_due`: SLICE_S have passed since there was room for upkeep."""
    level = level_of(usage, before)
    quota = usage.quota_bytes
    used = usage.in_use_bytes + int(pending_bytes * OVERHEAD)
    upkeep = quota * UPKEEP_SHARE - used
    if upkeep < quota * SLICE_SHARE:
        upkeep = quota * SLICE_SHARE if slice_due and used < quota * UPKEEP_SHARE_MAX else 0
    if usage.alarm:
        upkeep = 0
    journal = max(quota * FULL_SHARE - used, 0)
    return Space(level, str(usage), int(journal / OVERHEAD), int(upkeep / OVERHEAD))


def level_of(usage: Usage, before: SpaceLevel) -> SpaceLevel:
    full = before is SpaceLevel.FULL
    if (
        usage.alarm
        or usage.in_use_bytes >= usage.quota_bytes * (NOT_FULL_SHARE if full else FULL_SHARE)
        or usage.file_bytes >= usage.quota_bytes * (NOT_FULL_FILE_SHARE if full else FULL_FILE_SHARE)
    ):
        return SpaceLevel.FULL
    tight_share = TIGHT_SHARE if before is SpaceLevel.NORMAL else NOT_TIGHT_SHARE
    return SpaceLevel.TIGHT if usage.in_use_bytes >= usage.quota_bytes * tight_share else SpaceLevel.NORMAL


def history_s(usage: Usage, level: SpaceLevel, compact_period_s: float) -> float:
    """How much of the past to keep."""
    if usage.alarm:
        return 0.0
    if level is SpaceLevel.NORMAL:
        return compact_period_s
    short = usage.in_use_bytes >= usage.quota_bytes * (TIGHT_SHARE + FULL_SHARE) / 2
    return min(compact_period_s, SHORT_HISTORY_S if short else TIGHT_HISTORY_S)


def drop_steps(begins: int, ends: int, quota_bytes: int) -> list[int]:
    """The revisions at which to drop the past from `begins` to `ends`, one after the other. Dropping it at once would have etcd write
    anew every page that something is dropped from before the old ones are free."""
    # A commit has a mebibyte at most.
    step = max(1, int(quota_bytes * DROP_SHARE) >> 20, -(-(ends - begins) // DROP_STEPS_MAX))
    return [*range(begins + step, ends, step), ends]


def defrag_pays(usage: Usage) -> bool:
    """Whether it frees enough of the file, and the file is large enough for that to matter."""
    if usage.free_bytes < usage.quota_bytes * DEFRAG_SHARE:
        return False
    if usage.alarm or usage.file_bytes >= usage.quota_bytes * NOT_FULL_FILE_SHARE:
        return True
    return usage.file_bytes >= usage.quota_bytes * TIGHT_SHARE and 2 * usage.free_bytes >= usage.in_use_bytes
