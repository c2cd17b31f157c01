"""Asks the masters: finds the leader among them, follows it when it changes, and gives up at the deadline."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from kvstore.cli.admin.failures import EXIT_UNREACHABLE, AdminFailure, describe, is_unreachable
from kvstore.cli.admin.views import role_name
from kvstore.cli.errors import EXIT_USAGE, fail
from kvstore.common.config.admin import AdminSettings
from kvstore.common.control_metadata import LEADER_ROLE, refusing_role, token_metadata
from kvstore.v1 import admin_pb2 as pb
from kvstore.v1 import admin_pb2_grpc
from kvstore_client.tokens import TokenRole

T = TypeVar("T")

RETRY_DELAY_S = 0.2
# Share of the time that a master has to say who it is: the rest is for the call itself.
PROBE_SHARE = 0.5
_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


@dataclass(frozen=True)
class MasterView:
    """What a master says of itself, or why it says nothing."""

    address: str
    status: Any = None
    problem: str = ""
    unreachable: bool = False

    @property
    def leads(self) -> bool:
        return self.status is not None and self.status.role == pb.ROLE_LEADER

    @property
    def serves(self) -> bool:
        return self.status is not None and self.status.role in (pb.ROLE_LEADER, pb.ROLE_STANDBY)


class Cluster:
    """One exchange with the masters: an async context, over after `timeout_ms`. Methods raise AdminFailure."""

    def __init__(self, addresses: Iterable[str], token: str, timeout_ms: int) -> None:
        self._addresses = list(addresses)
        self._metadata = token_metadata(token)
        self._timeout_ms = timeout_ms
        self._ends_at = time.monotonic() + timeout_ms / 1000
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.answered_by = ""  # address of the master that answered last

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def survey(self, until_leader: bool = False) -> list[MasterView]:
        """Every master's view, and that of a leader which is none of the given. `until_leader`: as soon as one is known to lead,
        the others are not waited for."""
        views = await self._probe(self._addresses, until_leader)
        if not any(view.leads for view in views):
            named = {view.status.leader_address for view in views if view.status is not None}
            views += await self._probe(sorted(named - {"", *self._addresses}), until_leader)
        return views

    async def read(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """`ask(call)` at the leader, or at a standby while none leads; `call(method, request)` is given to it."""
        return await self._ask(ask, change=False)

    async def change(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """`ask(call)` at the leader alone, which is waited for. For requests that may be carried out twice: one whose answer was
        lost is sent again."""
        return await self._ask(ask, change=True)

    async def _ask(self, ask: Callable[[Any], Awaitable[T]], change: bool) -> T:
        lost = ""
        while True:
            views = await self.survey(until_leader=True)
            if all(view.status is None for view in views):
                raise self._nobody(views)
            chosen = self._choose(views, change)
            if chosen is not None:
                try:
                    return await ask(self._caller(chosen.address))
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or _refused_by_leader(error):
                        raise self._failure(chosen.address, error, change) from None
                    lost = f"; {chosen.address}: {describe(error, self._timeout_ms)}"
            if self._left_s() <= RETRY_DELAY_S:
                raise AdminFailure(
                    f"no master {'that leads' if change else 'that is ready'} within {self._timeout_ms} ms: "
                    f"{self._named(views)}{lost}",
                    EXIT_UNREACHABLE,
                )
            await asyncio.sleep(RETRY_DELAY_S)

    @staticmethod
    def _choose(views: list[MasterView], change: bool) -> MasterView | None:
        leader = next((view for view in views if view.leads), None)
        if leader is not None or change:
            return leader
        standby = next((view for view in views if view.serves), None)
        if standby is not None:
            print(
                f"kvstore: no master leads; this is what the standby {standby.address} knows", file=sys.stderr
            )
        return standby

    # ---- one master ----------------------------------------------------------------------------------------

    async def _probe(self, addresses: list[str], until_leader: bool) -> list[MasterView]:
        timeout_s = max(0.05, min(self._timeout_ms / 1000 * PROBE_SHARE, self._left_s()))
        probes = {asyncio.create_task(self._status_of(address, timeout_s)) for address in addresses}
        try:
            waiting = probes
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if until_leader and any(probe.result().leads for probe in done):
                    break
        finally:
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)
        views = {p.result().address: p.result() for p in probes if not p.cancelled()}
        return [views[address] for address in addresses if address in views]

    async def _status_of(self, address: str, timeout_s: float) -> MasterView:
        try:
            status = await self._stub(address).GetStatus(
                pb.GetStatusRequest(), timeout=timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            text = describe(error, round(timeout_s * 1000))
            return MasterView(address, None, text, is_unreachable(error))
        return MasterView(address, status)

    def _caller(self, address: str) -> Callable[[str, Any], Any]:
        self.answered_by = address
        stub = self._stub(address)

        def call(method: str, request: Any) -> Any:
            """What gRPC returns for it: to be awaited, or iterated."""
            return getattr(stub, method)(request, timeout=max(0.05, self._left_s()), metadata=self._metadata)

        return call

    def _stub(self, address: str) -> Any:
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return admin_pb2_grpc.AdminStub(self._channels[address])

    def _left_s(self) -> float:
        return self._ends_at - time.monotonic()

    # ---- failures ------------------------------------------------------------------------------------------

    def _failure(self, address: str, error: grpc.aio.AioRpcError, change: bool) -> AdminFailure:
        text = describe(error, self._timeout_ms)
        if not is_unreachable(error) or _refused_by_leader(error):
            return AdminFailure(text if error.code() is grpc.StatusCode.NOT_FOUND else f"{address}: {text}")
        if change:
            text += "; it may have been done or not. To run it again is safe"
        return AdminFailure(f"{address}: {text}", EXIT_UNREACHABLE)

    def _nobody(self, views: list[MasterView]) -> AdminFailure:
        if not all(view.unreachable for view in views):
            return AdminFailure(f"refused by {self._named(views)}")
        return AdminFailure(
            f"no master answers: {self._named(views)}. Is one running, and is this its control port? "
            "Say where with --master HOST:7441",
            EXIT_UNREACHABLE,
        )

    @staticmethod
    def _named(views: list[MasterView]) -> str:
        return "; ".join(f"{view.address}: {view.problem or role_name(view.status.role)}" for view in views)


def _refused_by_leader(error: grpc.aio.AioRpcError) -> bool:
    return refusing_role(error.trailing_metadata()) == LEADER_ROLE


def admin_token(settings: AdminSettings) -> str:
    """What masters are shown; ends the process where there are tokens and none is for admins."""
    token = settings.tokens.to_present(TokenRole.ADMIN)
    if settings.tokens and not token:
        fail("none of the tokens has the role admin", code=EXIT_USAGE)
    return token


def exchange(settings: AdminSettings, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """Runs `work` with the masters that the settings name; an AdminFailure ends the process."""
    token = admin_token(settings)

    async def run() -> T:
        async with Cluster(settings.master, token, settings.timeout_ms) as cluster:
            return await work(cluster)

    try:
        return asyncio.run(run())
    except AdminFailure as failure:
        fail(str(failure), code=failure.code)


async def listed(cluster: Cluster, method: str, request: Any) -> list[Any]:
    """Everything of a server stream."""

    async def ask(call: Any) -> list[Any]:
        return [item async for item in call(method, request)]

    return await cluster.read(ask)
