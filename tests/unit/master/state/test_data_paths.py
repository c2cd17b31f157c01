"""Which segments are kept out of placement because their data ports fail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore.master.state.data_paths import PROBE_S, SHUT_S, DataPaths

PRESENT = range(8)


def probe(paths: DataPaths, now: float, *, answers: bool) -> list[int]:
    """Ends all probes that are due, and says which segments they were of."""
    due = paths.due(now, PRESENT)
    for index in due:
        paths.probed(now, index, answers)
    return due


def test_what_one_client_says_shuts_nothing_that_answers() -> None:
    paths = DataPaths()
    assert paths.avoided(0.0, 3)
    assert probe(paths, 0.0, answers=True) == [3]
    assert paths.shut == frozenset()


def test_what_clients_avoid_and_does_not_answer_is_shut_until_it_answers() -> None:
    paths = DataPaths()
    paths.avoided(0.0, 3)
    assert paths.due(0.0, PRESENT) == [3]
    assert paths.due(0.0, PRESENT) == [], "one probe at a time"
    assert paths.probed(0.5, 3, False)
    assert paths.shut == {3}
    assert paths.next_probe_at() == 0.5 + PROBE_S
    assert probe(paths, 1.0, answers=True) == []
    assert probe(paths, 2.0, answers=False) == [3]
    assert paths.shut == {3}
    assert probe(paths, 4.0, answers=True) == [3]
    assert paths.shut == frozenset()
    assert paths.next_probe_at() is None, "it is well, and is left alone"


def test_clients_that_go_on_can_not_have_a_segment_probed_more_than_once_in_a_while() -> None:
    paths = DataPaths()
    probes = 0
    for tick in range(1000):
        now = tick / 100
        paths.avoided(now, 1)
        probes += len(probe(paths, now, answers=True))
    assert probes <= 10 / PROBE_S + 1


def test_a_segment_that_only_the_master_does_not_reach_is_tried_again_when_nobody_has_avoided_it_for_long() -> (
    None
):
    paths = DataPaths()
    paths.avoided(0.0, 1)
    probe(paths, 0.0, answers=False)
    probe(paths, SHUT_S - 1, answers=False)
    assert paths.shut == {1}
    assert probe(paths, SHUT_S + PROBE_S, answers=False) == [1]
    assert paths.shut == frozenset()


def test_a_segment_that_leaves_the_map_is_forgotten_and_the_end_of_its_probe_says_nothing() -> None:
    paths = DataPaths()
    paths.avoided(0.0, 1)
    probe(paths, 0.0, answers=False)
    paths.avoided(0.0, 2)
    assert paths.due(5.0, {2}) == [2]
    assert paths.shut == frozenset()
    assert not paths.probed(5.0, 1, False)


def test_a_probe_that_is_given_up_is_due_again() -> None:
    paths = DataPaths()
    paths.avoided(0.0, 1)
    assert paths.due(0.0, PRESENT) == [1]
    paths.abandon_probes()
    assert paths.due(0.0, PRESENT) == [1]


@given(
    st.lists(
        st.tuples(st.sampled_from(["avoided", "due", "ok", "fails"]), st.integers(0, 7), st.floats(0, 40)),
        max_size=60,
    )
)
def test_whatever_is_said_only_what_was_avoided_lately_and_did_not_answer_is_shut(
    steps: list[tuple[str, int, float]],
) -> None:
    paths, now, avoided_at, failed = DataPaths(), 0.0, {}, set()
    for what, index, later in steps:
        now += later
        if what == "avoided":
            paths.avoided(now, index)
            avoided_at[index] = now
        elif what == "due":
            paths.due(now, PRESENT)
        else:
            paths.probed(now, index, what == "ok")
            (failed.discard if what == "ok" else failed.add)(index)
        assert paths.shut <= failed & avoided_at.keys()
    for index in paths.due(now + SHUT_S + PROBE_S, PRESENT):
        paths.probed(now + SHUT_S + PROBE_S, index, False)
        assert index not in paths.shut
