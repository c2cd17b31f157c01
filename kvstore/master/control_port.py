"""The gRPC port of a master: the control service for segments and masters, the admin service for operators."""

from __future__ import annotations

import grpc
import grpc.aio

from kvstore.master.admin_service import AdminService
from kvstore.master.control_auth import TokenInterceptor
from kvstore.master.control_service import ControlService
from kvstore.v1 import admin_pb2_grpc, control_pb2_grpc
from kvstore_client.address import Address

MESSAGE_BYTES_MAX = 8 << 20

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


class ControlPort:
    def __init__(self, control: ControlService, admin: AdminService, auth: TokenInterceptor) -> None:
        self._server = grpc.aio.server(interceptors=(auth,), options=_OPTIONS)
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
        await self._server.stop(grace=0.5)
