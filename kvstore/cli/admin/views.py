"""What the commands print: the admin service's messages as plain values. `--json` prints these; docs/admin.md lists them."""

from __future__ import annotations

import json
from typing import Any

from kvstore.common.reachability import address_doubt
from kvstore.v1 import admin_pb2 as pb
from kvstore_client.address import Address
from kvstore_client.protocol import SegmentState

View = dict[str, Any]

_DRAIN_PHASES = {1: "waiting", 2: "moving", 3: "drained", 4: "no room", 5: "no target"}
_ROLES = {pb.ROLE_LOADING: "loading", pb.ROLE_STANDBY: "standby", pb.ROLE_LEADER: "leader"}


def segment_view(segment: Any) -> View:
    """None: not known to the master that answered, a standby."""
    return {
        "index": segment.index,
        "segment_id": segment.segment_id.hex(),
        "pool_id": segment.pool_id.hex(),
        "address": str(Address(segment.host, segment.tcp_port)),
        "attached_from": segment.attached_from or None,
        "address_doubt": address_doubt(segment.host, segment.attached_from) or None,
        "unix_path": segment.unix_path,
        "state": state_name(segment.state),
        "attached": known(segment, "attached"),
        "draining": known(segment, "draining"),
        "drain": drain_view(segment.drain) if segment.HasField("drain") else None,
        "capacity_bytes": segment.capacity_bytes,
        "used_bytes": segment.used_bytes,
        "object_count": segment.object_count,
        "object_bytes": segment.object_bytes,
        "pinned_bytes": known(segment, "pinned_bytes"),
        "quarantined_slots": known(segment, "quarantined_slots"),
        "digest_mismatches": known(segment, "digest_mismatches"),
        "evicted_objects": known(segment, "evicted_objects"),
        "heard_ms": known(segment, "heard_ms"),
        "limits": [
            {"name": each.name, "used": each.used, "limit": each.limit, "refused": each.refused}
            for each in segment.limits
        ],
        "version": segment.software_version or None,
    }


def drain_view(drain: Any) -> View:
    """How far the moving of its pages is."""
    return {
        "phase": _DRAIN_PHASES.get(drain.phase, f"phase {drain.phase}"),
        "moved_objects": drain.moved_objects,
        "moved_bytes": drain.moved_bytes,
        "remaining_objects": drain.remaining_objects,
        "remaining_bytes": drain.remaining_bytes,
        "trouble": drain.trouble or None,
    }


def namespace_view(namespace: Any) -> View:
    return {
        "id": namespace.id.hex(),
        "name": namespace.name,
        "epoch": namespace.epoch,
        "object_count": namespace.object_count,
        "object_bytes": namespace.object_bytes,
        "quota_bytes": known(namespace, "quota_bytes"),
        "tag_quota_bytes": known(namespace, "tag_quota_bytes"),
        "unused_ms": known(namespace, "unused_ms"),
        "identity": json.loads(namespace.identity),
    }


def retention_view(namespace: View, told: Any) -> View:
    """The namespace with what segments told of it (a pb.Retention); None: nobody could be asked."""
    if told is None:
        fields = ("retained_bytes", "retained_objects", "demoted_objects", "retentions_refused")
        return {**namespace, **dict.fromkeys((*fields, "retained_bytes_max", "demotions_heeded"))}
    own = next(
        (each for each in told.namespaces if each.id.hex() == namespace["id"]),
        pb.RetentionOfNamespace(demotions_heeded=True),
    )
    return {
        **namespace,
        "retained_bytes": own.retained_bytes,
        "retained_objects": own.retained_objects,
        "retained_bytes_max": told.namespace_bytes_max,
        "retentions_refused": own.retentions_refused,
        "demoted_objects": own.demoted_objects,
        "demotions_heeded": own.demotions_heeded,
    }


def state_name(state: int) -> str:
    """A number that a later release sends stands for itself."""
    return SegmentState(state).name.lower() if state in list(SegmentState) else f"state {state}"


def role_name(role: int) -> str:
    """As state_name, of a master."""
    return _ROLES.get(role, f"role {role}")


def identity_summary(identity: View, characters_max: int = 60) -> str:
    """What an identity says besides its name, in one line."""
    parts = [
        f"{key}={value}" for key, value in identity.items() if key not in ("kind", "name", "format_version")
    ]
    text = " ".join([str(identity.get("kind", "")), *parts]).strip()
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


def known(message: Any, field: str) -> Any:
    """A field that a standby leaves out; None then."""
    return getattr(message, field) if message.HasField(field) else None
