"""What a master asks a segment, with fields that nobody means: it is answered by number and count, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvstore.v1 import control_pb2 as pb

from kvstore.segment.answers import answer_to
from kvstore_client._native import SegmentStore
from kvstore_client.protocol import FINGERPRINT_BYTES
from support.fuzzing import NUMBERS, fuzzed

U32 = st.sampled_from([n for n in NUMBERS if n < 1 << 32])
U64 = st.sampled_from([n for n in NUMBERS if n < 1 << 64])


@pytest.fixture(scope="module")
def store() -> Iterator[SegmentStore]:
    store = SegmentStore(capacity_bytes=1 << 20, pool_id=b"p" * 16)
    yield store
    store.close()


def test_a_question_to_a_segment_is_answered_in_full_or_not_at_all(store: SegmentStore) -> None:
    @given(
        st.builds(
            pb.KeepObjects,
            question=U64,
            namespace=st.one_of(st.binary(min_size=8, max_size=8), st.binary(max_size=20)),
            fingerprints=st.one_of(
                st.integers(0, 300).map(lambda n: bytes(n * FINGERPRINT_BYTES)), st.binary(max_size=99)
            ),
            all=st.booleans(),
            intent=st.one_of(st.integers(0, 3), U32),
            ttl_ms=st.one_of(st.integers(0, 1000), U32),
        )
    )
    @fuzzed(150)
    def check(asked: pb.KeepObjects) -> None:
        answer = answer_to(store, pb.MasterMessage(keep_objects=asked))
        if answer is None:
            return
        assert answer.WhichOneof("body") == "kept" and answer.kept.question == asked.question
        count = 0 if asked.all else len(asked.fingerprints) // FINGERPRINT_BYTES
        assert answer.kept.kept + answer.kept.refused + answer.kept.missing == count
        assert len(asked.namespace) == 8 and asked.intent <= 2

    check()
    told = answer_to(store, pb.MasterMessage(tell_retention=pb.TellRetention(question=7)))
    assert told is not None and told.retention_told.question == 7


@pytest.mark.parametrize("intent", [3, 1 << 31, (1 << 32) - 1])
def test_an_intent_that_a_segment_does_not_know_is_not_answered(store: SegmentStore, intent: int) -> None:
    asked = pb.KeepObjects(question=1, namespace=bytes(8), fingerprints=bytes(16), intent=intent)
    assert answer_to(store, pb.MasterMessage(keep_objects=asked)) is None
