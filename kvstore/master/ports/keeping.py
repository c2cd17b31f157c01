"""What the admin service answers of retained and demoted objects, which segments alone know of: asks each that is attached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvstore.master.directory import Directory
from kvstore.master.segment_questions import Answers
from kvstore.v1 import admin_pb2 as pb
from kvstore.v1 import control_pb2
from kvstore_client.address import Address
from kvstore_client.intent import Keep
from kvstore_client.protocol import FINGERPRINT_BYTES, KEEP_TTL_MS_MAX, KEYS_MAX, MapRecord, SegmentState

_U64_MAX = (1 << 64) - 1


def wrong_with_keep(request: Any) -> str | None:
    """Why a KeepObjectsRequest can't be; None where it can."""
    if len(request.fingerprints) % FINGERPRINT_BYTES != 0:
        return f"fingerprints come in {FINGERPRINT_BYTES} bytes each"
    if len(request.fingerprints) > KEYS_MAX * FINGERPRINT_BYTES:
        return f"at most {KEYS_MAX} fingerprints a call: cut the list"
    if bool(request.fingerprints) == request.all:
        return "either fingerprints or all: one of the two"
    if request.intent not in list(Keep):
        return f"intent is {', '.join(f'{each} ({each.name.lower()})' for each in Keep)}"
    if request.ttl_ms > KEEP_TTL_MS_MAX:
        return f"ttl_ms is at most {KEEP_TTL_MS_MAX} (a day)"
    return None


async def keep_objects(directory: Directory, request: Any, timeout_s: float) -> Any:
    """A pb.KeptObjects. Raises TooManyQuestions."""
    answers = await directory.questions.ask(
        lambda question: control_pb2.MasterMessage(
            keep_objects=control_pb2.KeepObjects(
                question=question,
                namespace=request.id,
                fingerprints=request.fingerprints,
                all=request.all,
                intent=request.intent,
                ttl_ms=request.ttl_ms,
            )
        ),
        timeout_s,
    )
    segments = {segment.index: segment for segment in directory.segment_map()}
    given = _of_kind(answers, control_pb2.Kept)
    kept = [
        pb.KeptAtSegment(
            index=index, address=_address(segments.get(index)), kept=said.kept, refused=said.refused
        )
        for index, said in sorted(given.items())
    ]
    return pb.KeptObjects(segments=kept, silent=_silent(answers, given, segments.values()))


async def retention(directory: Directory, timeout_s: float) -> Any:
    """A pb.Retention. Raises TooManyQuestions."""
    answers = await directory.questions.ask(
        lambda question: control_pb2.MasterMessage(
            tell_retention=control_pb2.TellRetention(question=question)
        ),
        timeout_s,
    )
    given = _of_kind(answers, control_pb2.RetentionTold)
    namespaces: dict[bytes, Any] = {}
    for said in given.values():
        for each in said.namespaces:
            if not directory.is_current(each.id):
                continue  # what is left of a cleared one is evicted first, whatever was wanted of it
            total = namespaces.setdefault(each.id, pb.RetentionOfNamespace(id=each.id, demotions_heeded=True))
            total.retained_bytes = _sum(total.retained_bytes, each.retained_bytes)
            total.retained_objects = _sum(total.retained_objects, each.retained_objects)
            total.demoted_objects = _sum(total.demoted_objects, each.demoted_objects)
            total.retentions_refused = _sum(total.retentions_refused, each.retentions_refused)
            total.demotions_heeded = total.demotions_heeded and each.demotions_heeded
    return pb.Retention(
        namespaces=namespaces.values(),
        namespace_bytes_max=_sum(*(said.namespace_bytes_max for said in given.values())),
        silent=_silent(answers, given, directory.segment_map()),
    )


def _of_kind(answers: Answers, kind: type) -> dict[int, Any]:
    """By segment what answers the question; a segment may have said something else."""
    return {index: said for index, said in answers.given.items() if isinstance(said, kind)}


def _sum(*numbers: int) -> int:
    """As far as a field of an answer goes: a segment may say any number."""
    return min(sum(numbers), _U64_MAX)


def _silent(answers: Answers, given: dict[int, Any], segments: Iterable[MapRecord]) -> list[Any]:
    """Segments that may have pages and did not answer."""
    unconfirmed = []
    for segment in segments:
        if segment.state is SegmentState.GONE or segment.index in given:
            continue
        if segment.index in answers.silent or segment.index in answers.given:
            why = "it does not answer"
        else:
            why = "it is not attached, or is of a release that keeps no intents"
        unconfirmed.append(pb.Unconfirmed(address=_address(segment), why=why))
    return unconfirmed


def _address(segment: MapRecord | None) -> str:
    return "" if segment is None else str(Address(segment.host, segment.tcp_port))
