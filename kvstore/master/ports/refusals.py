"""How the services of the control port refuse: codes, and what tells a caller where to ask instead."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio

from kvstore.common.control_metadata import LEADER_ROLE, ROLE_KEY, STANDBY_ROLE
from kvstore.common.errors import RefusedError
from kvstore.master.roles import Backend, Roles
from kvstore_client.protocol import Status

GRPC_CODES = {
    Status.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Status.MISS: grpc.StatusCode.NOT_FOUND,
    Status.STALE_NAMESPACE: grpc.StatusCode.NOT_FOUND,
    Status.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    Status.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Status.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Status.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
}


async def refuse_as_standby(context: Any, roles: Roles) -> NoReturn:
    """Ends a call that only a leader can answer."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, roles.not_leader_text(), ((ROLE_KEY, STANDBY_ROLE),))
    raise AssertionError("abort() raises")


async def refuse(context: Any, error: RefusedError, roles: Roles) -> NoReturn:
    """Ends a call with what the directory has answered."""
    if error.status is Status.NOT_LEADER:
        await refuse_as_standby(context, roles)
    metadata = ((ROLE_KEY, LEADER_ROLE),) if roles.directory is not None else ()
    await context.abort(GRPC_CODES.get(error.status, grpc.StatusCode.INTERNAL), str(error), metadata)
    raise AssertionError("abort() raises")


async def backend_of(roles: Roles, context: Any) -> Backend:
    """Who answers reads now; while there is nobody, the call ends."""
    try:
        return roles.backend
    except RefusedError as error:
        await refuse(context, error, roles)
