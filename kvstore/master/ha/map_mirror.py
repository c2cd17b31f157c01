"""Keeps a standby's segment map like the leader's: which segments are suspect is known to the leader alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc
import grpc.aio

from kvstore.common.control_metadata import token_metadata
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.roles import Roles, Standby
from kvstore.master.state.endpoint import Endpoint
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc
from kvstore_client.protocol import MapRecord, SegmentState

logger = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
)


async def mirror(roles: Roles, standby: Standby, token: str) -> None:
    """For ever. While there is no leader the last map stays. `token` is what the leader asks for."""
    while True:
        address = roles.leader_address
        if address:
            try:
                async with grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
                    await _mirror(channel, roles, standby, address, token)
            except grpc.aio.AioRpcError as error:
                refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
                level = logging.WARNING if refused else logging.DEBUG
                log_throttled(
                    logger,
                    level,
                    "map_not_mirrored",
                    f"{address} {level}",
                    leader=address,
                    error=error.details(),
                )
            except grpc.aio.UsageError as error:
                log_event(logger, logging.DEBUG, "map_not_mirrored", leader=address, error=str(error))
        await asyncio.sleep(RETRY_DELAY_S)


async def _mirror(
    channel: grpc.aio.Channel, roles: Roles, standby: Standby, address: str, token: str
) -> None:
    stub = control_pb2_grpc.ControlStub(channel)
    call = stub.WatchClusterMap(pb.WatchClusterMapRequest(), metadata=token_metadata(token))
    try:
        async for cluster_map in call:
            if roles.leader_address != address:
                return
            with contextlib.suppress(ValueError):  # a state of a later revision: keep what we have
                standby.mirror(cluster_map.epoch, [_record(segment) for segment in cluster_map.segments])
    finally:
        call.cancel()


def _record(said: Any) -> MapRecord:
    return Endpoint.of(said).map_record(said.index, SegmentState(said.state), said.used_bytes)
