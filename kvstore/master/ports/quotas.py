"""What operators say and hear of quotas (SetQuota, ListQuotas)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvstore.common.errors import RefusedError
from kvstore.common.identity import check_identity
from kvstore.master.directory import NamespaceView
from kvstore.master.state.layout import QUOTA_BYTES_MAX, QuotaKind, QuotaRecord
from kvstore.master.state.quotas import tag_of
from kvstore.v1 import admin_pb2 as pb
from kvstore_client.protocol import IDENTITY_BYTES_MAX, NAMESPACE_BYTES


def wrong_with_quota(request: Any) -> str | None:
    """What can't be in a SetQuotaRequest; None: nothing."""
    if sum(map(bool, (request.id, request.tag, request.identity))) != 1:
        return "a quota is of a namespace or of a tag: name one of them"
    if request.id and len(request.id) != NAMESPACE_BYTES:
        return f"id has {NAMESPACE_BYTES} bytes, this one has {len(request.id)}"
    if max(len(request.tag.encode()), len(request.identity.encode())) > IDENTITY_BYTES_MAX:
        return f"a tag or identity has at most {IDENTITY_BYTES_MAX} bytes"
    if request.identity:
        try:
            check_identity(request.identity.encode())
        except RefusedError as error:
            return str(error)
    if request.limit_bytes > QUOTA_BYTES_MAX:
        return f"a quota is at most {QUOTA_BYTES_MAX} bytes, this one is {request.limit_bytes}"
    return None


def quota_subject(request: Any, namespaces: Sequence[NamespaceView]) -> tuple[QuotaKind, bytes] | None:
    """Of what the quota is; None: no namespace has the id."""
    if request.tag:
        return QuotaKind.TAG, request.tag.encode()
    if request.identity:
        return QuotaKind.NAMESPACE, request.identity.encode()
    found = next((each.identity for each in namespaces if each.id == request.id), None)
    return None if found is None else (QuotaKind.NAMESPACE, found)


def quota_message(quota: QuotaRecord, namespaces: Sequence[NamespaceView], usage: Mapping[bytes, int]) -> Any:
    """`usage`: bytes by id of a namespace."""
    by_tag = quota.kind is QuotaKind.TAG
    members = [
        each.id
        for each in namespaces
        if (tag_of(each.identity) if by_tag else each.identity) == quota.subject
    ]
    text = quota.subject.decode()
    return pb.Quota(
        identity="" if by_tag else text,
        tag=text if by_tag else "",
        limit_bytes=quota.limit_bytes,
        used_bytes=sum(usage.get(ns, 0) for ns in members),
        namespace_count=len(members),
    )
