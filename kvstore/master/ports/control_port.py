"""The gRPC port of a master: the control service for segments and masters, the admin service for operators. Every call is
asked for the token before anything else of it is looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from kvstore.common.control_metadata import presented_token
from kvstore.common.logs import log_event, log_throttled
from kvstore.common.reachability import peer_host
from kvstore.master.metrics import MasterMetrics
from kvstore.master.ports.admin_service import AdminService
from kvstore.master.ports.control_service import ControlService
from kvstore.v1 import admin_pb2_grpc, control_pb2_grpc
from kvstore_client.address import Address
from kvstore_client.tokens import TokenRole, Tokens, refusal_text

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 8 << 20
GRACE_S = 0.5  # for calls in progress
STOP_S = 1.5

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # a second master on the same port fails instead of sharing it
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Segments ping idle streams to notice a dead master within seconds; gRPC would call that abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


# What the token of a call is for, by method; the rest takes any token of the store's.
_ROLES = {
    "/kvstore.v1.Control/Attach": TokenRole.SEGMENT,
    "/kvstore.v1.Control/Heartbeat": TokenRole.SEGMENT,
}
_ADMIN_PREFIX = "/kvstore.v1.Admin/"


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """A call with a token that is none of ours ends as UNAUTHENTICATED, one with a token of another role as PERMISSION_DENIED."""

    def __init__(self, tokens: Tokens, metrics: MasterMetrics) -> None:
        self._tokens = tokens
        self._metrics = metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        method = handler_call_details.method
        presented = presented_token(handler_call_details.invocation_metadata)
        held = frozenset() if presented is None else self._tokens.roles_of(presented)
        needed = TokenRole.ADMIN if method.startswith(_ADMIN_PREFIX) else _ROLES.get(method)
        if held and (needed is None or needed in held):
            return await continuation(handler_call_details)
        if held and needed is not None:
            return self._refusal(method, grpc.StatusCode.PERMISSION_DENIED, refusal_text(needed, held))
        if not presented:
            text = "no token was presented: send the master's as `authorization: Bearer TOKEN`"
        elif not self._tokens:
            text = "this master has no token, and one was presented: is it the right master?"
        else:
            text = "the token is wrong: it is not this master's"
        return self._refusal(method, grpc.StatusCode.UNAUTHENTICATED, text)

    def _refusal(self, method: str, code: grpc.StatusCode, text: str) -> Any:
        async def refuse(_: Any, context: Any) -> None:
            self._metrics.unauthorized.labels("control").inc()
            peer = context.peer()
            log_throttled(
                logger, logging.WARNING, "unauthorized", peer_host(peer), peer=peer, method=method, text=text
            )
            await context.abort(code, text)

        # Streams both ways fit calls of every form, and no message of the caller's is waited for.
        return grpc.stream_stream_rpc_method_handler(refuse)


class ControlPort:
    def __init__(
        self, control: ControlService, admin: AdminService, auth: TokenInterceptor, connections_max: int
    ) -> None:
        """Connections over `connections_max` are closed at once."""
        options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", connections_max))
        self._server = grpc.aio.server(interceptors=(auth,), options=options)
        control_pb2_grpc.add_ControlServicer_to_server(control, self._server)
        admin_pb2_grpc.add_AdminServicer_to_server(admin, self._server)
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """OSError names the address."""
        address = Address(host, port)
        try:
            self.port = self._server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise OSError(f"can't listen on {address}: {error}") from error
        await self._server.start()

    async def stop(self) -> None:
        """Within STOP_S: gRPC has been seen to wait for ever for calls that are over."""
        stopping = asyncio.ensure_future(self._server.stop(grace=GRACE_S))
        stopped, _ = await asyncio.wait({stopping}, timeout=STOP_S)
        if not stopped:
            log_event(logger, logging.WARNING, "control_port_left_open", after_s=STOP_S)
