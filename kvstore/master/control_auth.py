"""Asks every call on the control port for the token, before anything else of it is looked at."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from kvstore.common.control_metadata import presented_token
from kvstore.common.logs import log_event
from kvstore.master.metrics import MasterMetrics

logger = logging.getLogger(__name__)


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """`token` is the master's own; empty: callers present none. A call with another one ends as UNAUTHENTICATED."""

    def __init__(self, token: bytes, metrics: MasterMetrics) -> None:
        self._token = token
        self._metrics = metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        presented = presented_token(handler_call_details.invocation_metadata)
        if presented is not None and hmac.compare_digest(presented.encode(), self._token):
            return await continuation(handler_call_details)
        if not presented:
            text = "no token was presented: send the master's as `authorization: Bearer TOKEN`"
        elif not self._token:
            text = "this master has no token, and one was presented: is it the right master?"
        else:
            text = "the token is wrong: it is not this master's"
        return self._refusal(handler_call_details.method, text)

    def _refusal(self, method: str, text: str) -> Any:
        async def refuse(_: Any, context: Any) -> None:
            self._metrics.unauthorized.labels("control").inc()
            log_event(logger, logging.WARNING, "unauthorized", peer=context.peer(), method=method, text=text)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

        # Streams both ways fit calls of every form, and no message of the caller's is waited for.
        return grpc.stream_stream_rpc_method_handler(refuse)
