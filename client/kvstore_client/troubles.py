"""What is wrong with whom, in words: said once when it begins and once when it is over, with the remedy."""

import logging
import threading
import time
from typing import NamedTuple

from kvstore_client.throttle import ThrottledLog

_NAMED_MAX = 4
"""Peers that one line names; the rest it counts."""

_MASTER_PORTS = "7440 is a master's directory port, 7441 and 7442 are not"
_PORT_KINDS = ("unreachable", "no_answer", "not_ours", "refused")
"""What a client sees that was given another of a master's ports."""

# Kind (native/.../peer_troubles.hpp) -> what it is, and what to do.
TROUBLES = {
    "unresolved": ("its name has no address", "check the spelling, and the name server"),
    "unreachable": (
        "nothing listens there, or there is no way to it",
        "is it running, and is that its address and port?",
    ),
    "no_answer": (
        "it does not answer in time",
        "is it overloaded, stopped, behind a firewall, or another port?",
    ),
    "closed": ("it closed the connection", "its own log says why"),
    "not_ours": ("what answers there does not speak the protocol", "is that its port?"),
    "unauthorized": ("it refuses the token", "give the secret of this cluster as token_file or token"),
    "version": ("it speaks another version of the protocol", "run the same release on all sides"),
    "wrong_peer": (
        "another segment listens there than the masters say",
        "has it restarted? that heals by itself",
    ),
    "not_rightful": (
        "the socket is another user's, in a directory that others may write to: pages go over TCP",
        "run both as one user, or give the segment a --unix-path in a directory that only its user may write to",
    ),
    "refused": ("it refuses", "its own log says more; is that its port?"),
    "not_serving": ("no master serves", "see `kvstore admin status`"),
    "no_room": (
        "no segment has room for what was put, or none is there",
        "see `kvstore admin status`; start a segment, more memory, or a shorter pin_ms",
    ),
}


class Trouble(NamedTuple):
    """Something that is wrong with a peer."""

    kind: str
    said: str
    """What the peer said itself, if anything."""
    hint: str = ""
    """What helps with this peer in particular."""

    @staticmethod
    def of(subject: str, kind: str, said: str) -> "Trouble":
        """What is wrong with `subject`, "master HOST:PORT" or "segment ADDRESS"."""
        given_port = subject.startswith("master ") and kind in _PORT_KINDS
        return Trouble(kind, said, _MASTER_PORTS if given_port else "")

    def __str__(self) -> str:
        what, remedy = TROUBLES[self.kind]
        return (
            f"{what}{f' ({self.said})' if self.said else ''}: {remedy}{f' {self.hint}' if self.hint else ''}"
        )


class TroubleLog:
    """Turns what is wrong now into lines, one a kind and change, however many peers it is about. Thread-safe."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = ThrottledLog(logger)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Trouble, float]] = {}  # subject -> what is wrong, since when

    def update(self, troubles: dict[str, Trouble]) -> None:
        """Says what is new and what is over. `troubles`: all that there are, by subject."""
        now = time.monotonic()
        with self._lock:
            known = self._known
            fresh = {who: what for who, what in troubles.items() if who not in known or known[who][0] != what}
            over = {who: since for who, (_, since) in known.items() if who not in troubles}
            self._known = {
                who: (what, known[who][1] if who in known else now) for who, what in troubles.items()
            }
        for trouble in dict.fromkeys(fresh.values()):
            subjects = [who for who, what in fresh.items() if what == trouble]
            topic = f"{trouble.kind} {_names(subjects)}"
            self._log.log(logging.WARNING, topic, "kvstore: %s: %s", _names(subjects), trouble)
        if over:
            seconds = now - min(over.values())
            message = "kvstore: %s: works again, after %.0f s"
            self._log.log(logging.INFO, f"works {_names(list(over))}", message, _names(list(over)), seconds)


def _names(subjects: list[str]) -> str:
    more = len(subjects) - _NAMED_MAX
    return ", ".join(subjects[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
