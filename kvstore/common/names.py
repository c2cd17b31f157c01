"""Looking names up without standing still: off the event loop, and again while no name server answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from kvstore.common.backoff import Backoff
from kvstore.common.logs import log_event
from kvstore_client.address import Address

logger = logging.getLogger(__name__)

RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
# A lookup that hangs is given up for a new one.
LOOKUP_TIMEOUT_S = 10.0
# An answer that takes longer is complained about.
SILENT_S_MAX = 2.0
REPEAT_LOG_S = 60.0

Found = list[tuple[int, tuple[Any, ...]]]
"""(family, socket address) each"""


async def look_up(host: str, port: int, *, flags: int = 0) -> Found:
    """Every address of a host, in the system's order. Raises socket.gaierror when there is none, or no answer."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Found] = loop.create_future()

    def ask() -> None:
        found: Found = []
        failed: OSError | None = None
        try:
            every = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
            found = list(dict.fromkeys((family, address) for family, _, _, _, address in every))
        except OSError as error:
            failed = error
        except UnicodeError:
            failed = socket.gaierror(socket.EAI_NONAME, "no host name")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, found, failed)

    def settle(found: Found, failed: OSError | None) -> None:
        if answer.done():
            return
        if failed is not None:
            answer.set_exception(failed)
        else:
            answer.set_result(found)

    # A thread of its own, which the end of the process does not wait for: the system's resolver knows no deadline.
    threading.Thread(target=ask, name=f"look-up-{host}", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, LOOKUP_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise socket.gaierror(
            socket.EAI_AGAIN, f"no name server answered within {LOOKUP_TIMEOUT_S:g} s"
        ) from None


async def look_up_patiently(
    addresses: Sequence[Address], *, purpose: str, flags: int = 0, missing_too: bool = False
) -> Found:
    """The first of the hosts that is found, as by look_up. Waits for as long as no name server answers, and with `missing_too`
    for as long as there is no such name: it may come. `purpose` is for the log: what waits."""
    backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX)
    complaint = _Complaint(", ".join(address.host for address in addresses), purpose)
    while True:
        failed: socket.gaierror | None = None
        for host, port in addresses:
            asking = asyncio.create_task(look_up(host, port, flags=flags))
            try:
                if not (await asyncio.wait({asking}, timeout=SILENT_S_MAX))[0]:
                    complaint.say("no answer yet")
                return await asking
            except socket.gaierror as error:
                if failed is None or error.errno == socket.EAI_AGAIN:
                    failed = error
            finally:
                asking.cancel()
        assert failed is not None, "no addresses"
        if failed.errno != socket.EAI_AGAIN and not missing_too:
            raise failed
        complaint.say(failed.strerror or str(failed))
        await asyncio.sleep(backoff.next_delay_s())


class _Complaint:
    """One line at once, and then one now and again."""

    def __init__(self, names: str, purpose: str) -> None:
        self._names = names
        self._purpose = purpose
        self._due_at = time.monotonic()

    def say(self, reason: str) -> None:
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + REPEAT_LOG_S
        log_event(
            logger, logging.WARNING, "name_not_found", names=self._names, reason=reason, waits=self._purpose
        )
