"""Which segment or namespace an operator means. Exact names first, then prefixes; what fits several is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.output import printable
from kvstore.cli.admin.views import View
from kvstore.cli.errors import EXIT_USAGE

CANDIDATES_MAX = 10
# Shorter hex digits are too easily those of another.
ID_PREFIX_MIN = 4

Match = Callable[[View], bool]


def select_segment(segments: Sequence[View], text: str) -> View:
    """By index, id, host:port, or the beginning of an id. AdminFailure lists what there is."""
    wanted = text.lower()
    matches: list[Match] = [
        lambda s: str(s["index"]) == wanted,
        lambda s: s["segment_id"] == wanted,
        lambda s: s["address"] == text,
    ]
    if len(wanted) >= ID_PREFIX_MIN:
        matches.append(lambda s: s["segment_id"].startswith(wanted))
    # One that has left is meant only where no other is.
    present = [s for s in segments if s["state"] != "gone"]
    for candidates in (present, list(segments)):
        if (found := _first(candidates, matches, text, describe_segment)) is not None:
            return found
    raise _none("segment", text, [describe_segment(s) for s in segments])


def select_namespace(namespaces: Sequence[View], text: str) -> View:
    """By id, name, or the beginning of either. AdminFailure lists what there is."""
    wanted = text.lower()
    matches: list[Match] = [lambda n: n["id"] == wanted, lambda n: n["name"] == text]
    if text:
        by_id = len(wanted) >= ID_PREFIX_MIN
        matches.append(lambda n: n["name"].startswith(text) or (by_id and n["id"].startswith(wanted)))
    if (found := _first(namespaces, matches, text, describe_namespace)) is not None:
        return found
    raise _none("namespace", text, [describe_namespace(n) for n in namespaces])


def describe_segment(segment: View) -> str:
    return f"{segment['index']} ({segment['segment_id']}, {segment['address']}, {segment['state']})"


def describe_namespace(namespace: View) -> str:
    return f"{namespace['id']} ({printable(namespace['name'])}, epoch {namespace['epoch']})"


def _first(
    candidates: Sequence[View], matches: Sequence[Match], text: str, describe: Callable[[View], str]
) -> View | None:
    for match in matches:
        found = [candidate for candidate in candidates if match(candidate)]
        if len(found) > 1:
            raise AdminFailure(
                f"{text!r} is ambiguous, it fits {_listed([describe(c) for c in found])}: name one by its id",
                EXIT_USAGE,
            )
        if found:
            return found[0]
    return None


def _none(what: str, text: str, there: list[str]) -> AdminFailure:
    return AdminFailure(f"no {what} fits {text!r}: there {'is ' + _listed(there) if there else 'is none'}")


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - CANDIDATES_MAX} more" if len(texts) > CANDIDATES_MAX else ""
    return "; ".join(texts[:CANDIDATES_MAX]) + more
