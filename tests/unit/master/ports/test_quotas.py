"""What operators may ask for of quotas."""

from __future__ import annotations

import pytest
from kvstore.v1 import admin_pb2 as pb

from kvstore.master.directory import NamespaceView
from kvstore.master.ports.quotas import quota_message, quota_subject, wrong_with_quota
from kvstore.master.state.layout import QUOTA_BYTES_MAX, QuotaKind, QuotaRecord

IDENTITY = b'{"model":"m","tag":"team"}'
NAMESPACES = [
    NamespaceView(b"\1" * 8, 0, "m", IDENTITY),
    NamespaceView(b"\2" * 8, 3, "o", b'{"model":"o","tag":"team"}'),
    NamespaceView(b"\3" * 8, 0, "a", b'{"model":"a"}'),
]
USAGE = {b"\1" * 8: 10, b"\2" * 8: 5, b"\3" * 8: 100}


@pytest.mark.parametrize(
    ("request_of", "text"),
    [
        (pb.SetQuotaRequest(limit_bytes=1), "name one of them"),
        (pb.SetQuotaRequest(id=b"\1" * 8, tag="team"), "name one of them"),
        (pb.SetQuotaRequest(id=b"\1" * 7), "8 bytes"),
        (pb.SetQuotaRequest(tag="x" * 100_000), "at most"),
        (pb.SetQuotaRequest(identity="{"), "not JSON"),
        (pb.SetQuotaRequest(identity='{"b":1, "a":2}'), "canonical"),
        (pb.SetQuotaRequest(tag="team", limit_bytes=QUOTA_BYTES_MAX + 1), "at most"),
    ],
)
def test_what_can_not_be_is_refused_in_words(request_of: pb.SetQuotaRequest, text: str) -> None:
    assert text in (wrong_with_quota(request_of) or "")


def test_a_quota_is_of_a_tag_of_an_identity_or_of_the_namespace_with_an_id() -> None:
    for request in (pb.SetQuotaRequest(id=b"\1" * 8), pb.SetQuotaRequest(identity=IDENTITY.decode())):
        assert wrong_with_quota(request) is None
        assert quota_subject(request, NAMESPACES) == (QuotaKind.NAMESPACE, IDENTITY)
    assert quota_subject(pb.SetQuotaRequest(tag="team"), []) == (QuotaKind.TAG, b"team")
    assert quota_subject(pb.SetQuotaRequest(id=b"\4" * 8), NAMESPACES) is None


def test_what_is_told_of_a_quota_is_of_all_the_namespaces_that_it_is_of() -> None:
    of_tag = quota_message(QuotaRecord(QuotaKind.TAG, b"team", 50), NAMESPACES, USAGE)
    assert (of_tag.tag, of_tag.identity, of_tag.used_bytes, of_tag.namespace_count) == ("team", "", 15, 2)
    of_one = quota_message(QuotaRecord(QuotaKind.NAMESPACE, IDENTITY, 50), NAMESPACES, USAGE)
    assert (of_one.tag, of_one.identity, of_one.used_bytes) == ("", IDENTITY.decode(), 10)
    assert of_one.limit_bytes == 50
