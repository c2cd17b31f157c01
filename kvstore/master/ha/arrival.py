"""Start order does not matter: a master that comes before the store that it shares waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kvstore.common.backoff import Backoff
from kvstore.common.errors import NewerFormatError, StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.metadata.replicated import ReplicatedStore

logger = logging.getLogger(__name__)

RETRY_DELAY_S_MIN = 0.1
RETRY_DELAY_S_MAX = 2.0


async def open_when_there(store: ReplicatedStore, on_waiting: Callable[[str], None]) -> None:
    """Tries for ever. Raises NewerFormatError. `on_waiting` hears why each attempt failed; the log hears it once a minute."""
    backoff = Backoff(RETRY_DELAY_S_MIN, RETRY_DELAY_S_MAX)
    waited = False
    while True:
        try:
            await store.open()
        except NewerFormatError:
            raise  # waiting does not help
        except StoreError as error:
            waited = True
            on_waiting(str(error))
            log_throttled(logger, logging.WARNING, "metadata_store_awaited", "", why=str(error))
            await asyncio.sleep(backoff.next_delay_s())
            continue
        if waited:
            log_event(logger, logging.INFO, "metadata_store_there")
        return
