"""What the master calls wrong, and what it doesn't."""

from __future__ import annotations

import pytest

from kvstore.master.committer import BACKLOG_BYTES_MAX
from kvstore.master.metadata.store import SpaceLevel
from kvstore.master.ports.health import leader_problems, standby_problems
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.layout import SegmentRecord
from kvstore.master.state.segment_table import Segment
from kvstore.master.store_watch import StoreView
from kvstore_client.protocol import SegmentState


def segment(index: int = 0, **changes: object) -> Segment:
    record = SegmentRecord(index, Endpoint(bytes(16), bytes(16), "10.0.0.1", 7450 + index, "", 1 << 30))
    known = Segment(bytes([index]) * 16, record, index, SegmentState.LIVE, registered=True, heard_at=90.0)
    for name, value in changes.items():
        setattr(known, name, value)
    return known


def problems(*segments: Segment, store: StoreView | None = None, backlog_bytes: int = 0) -> str:
    return "; ".join(leader_problems(100.0, segments, store or StoreView(), backlog_bytes))


def test_a_store_of_live_segments_is_well_full_or_drained_in_part() -> None:
    full = segment(used_bytes=1 << 30)
    assert problems(full, segment(1, state=SegmentState.DRAINING), segment(2, state=SegmentState.GONE)) == ""


def test_a_suspect_segment_is_named_with_how_long_it_is_silent() -> None:
    assert problems(segment(), segment(1, state=SegmentState.SUSPECT)) == (
        "1 segment is suspect and not served: 1 (10.0.0.1:7451) silent for 10 s"
    )


def test_many_suspect_segments_are_counted_and_a_few_named() -> None:
    text = problems(segment(), *(segment(i, state=SegmentState.SUSPECT) for i in range(1, 9)))
    assert text.startswith("8 segments are suspect") and text.endswith("and 3 more")


@pytest.mark.parametrize(
    ("segments", "why"),
    [
        ([], "none serves"),
        ([segment(state=SegmentState.GONE)], "none serves"),
        ([segment(state=SegmentState.DRAINING)], "being drained"),
    ],
)
def test_a_store_without_room_for_new_pages_is_not_well(segments: list[Segment], why: str) -> None:
    assert (
        f"no segment takes new pages: {'those that serve are ' if 'drained' in why else ''}{why}"
        in problems(*segments)
    )


def test_a_segment_served_from_the_records_alone_is_told() -> None:
    assert "1 segment is served from the records and not attached yet: 1 (" in problems(
        segment(), segment(1, registered=False)
    )


def test_memory_that_goes_bad_is_told() -> None:
    assert "bad: 0 (10.0.0.1:7450) 3 quarantined" in problems(segment(quarantined_slots=3))


@pytest.mark.parametrize(
    ("store", "text"),
    [
        (StoreView(commit_error="disk full"), "the last commit to the metadata store failed: disk full"),
        (StoreView(read_error="no quorum"), "the metadata store does not answer: no quorum"),
        (StoreView(SpaceLevel.TIGHT, "70 %"), "the metadata store gets full: 70 %"),
        (StoreView(SpaceLevel.FULL, "90 %"), "the metadata store is full, no put becomes durable: 90 %"),
    ],
)
def test_trouble_of_the_metadata_store_is_told(store: StoreView, text: str) -> None:
    assert problems(segment(), store=store) == text


def test_commits_that_fall_behind_are_told() -> None:
    assert problems(segment(), backlog_bytes=BACKLOG_BYTES_MAX) == ""
    assert "commits can't keep up" in problems(segment(), backlog_bytes=BACKLOG_BYTES_MAX + 1)


def test_a_standby_is_as_well_as_it_is_ready() -> None:
    assert standby_problems(True, "standby") == []
    assert standby_problems(False, "not caught up") == ["not ready: not caught up"]
