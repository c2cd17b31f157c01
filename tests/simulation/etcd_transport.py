"""The product's etcd client on the simulated network: all of it but the bytes on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import grpc
import grpc.aio

from kvstore.master.metadata import etcd as etcd_module
from kvstore.master.metadata.etcd import EtcdStore
from kvstore.master.metadata.etcd_client import EtcdClient
from kvstore.master.metadata.etcd_options import EtcdOptions
from simulation.etcd_model import EtcdError
from simulation.network import ConnectionEnded, End, Network, Unreachable
from simulation.process import Process

CONNECT_TIMEOUT_S = 1.0


def etcd_store(network: Network, process: Process, options: EtcdOptions) -> EtcdStore:
    """The real store of a master, whose calls go over `network` to host "etcd"."""

    def client(endpoints: Any, timeout_s: float = 5.0) -> SimulatedEtcdClient:
        return SimulatedEtcdClient(network, process, timeout_s)

    with mock.patch.object(etcd_module, "EtcdClient", client):
        return EtcdStore(options)


class SimulatedEtcdClient(EtcdClient):
    """Retries, deadlines, paging and errors are EtcdClient's own; a call is one of the network's."""

    def __init__(self, network: Network, process: Process, timeout_s: float) -> None:
        super().__init__(["etcd:2379"], timeout_s)
        self._network = network
        self._process = process

    def _method(self, method: str, at: int, answer: Any) -> Callable[..., Any]:
        name = method.rpartition("/")[2]

        async def call(request: Any, timeout: float | None = None) -> Any:
            process = self._process
            try:
                return await self._network.call(
                    process, "etcd", "unary", process.host, name, request, timeout_s=timeout or 60.0
                )
            except EtcdError as error:
                raise _rpc_error(error.code, error.details) from None
            except Unreachable as error:
                raise _rpc_error(grpc.StatusCode.UNAVAILABLE, str(error)) from None
            except asyncio.TimeoutError as error:
                raise _rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, str(error)) from None

        return call

    def _stream(self, method: str, at: int, timeout_s: float | None) -> Any:
        return _Stream(self._network, self._process, timeout_s)


class _Stream:
    """A bidirectional call, as far as the client uses one."""

    def __init__(self, network: Network, process: Process, timeout_s: float | None) -> None:
        self._network = network
        self._process = process
        self._ends_at = None if timeout_s is None else process.loop.time() + timeout_s
        self._end: End | None = None

    async def write(self, message: Any) -> None:
        if self._end is None:
            try:
                self._end = await self._network.connect(self._process, "etcd", CONNECT_TIMEOUT_S)
            except (Unreachable, asyncio.TimeoutError) as error:
                raise _rpc_error(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        self._end.send(message)

    async def read(self) -> Any:
        assert self._end is not None, "written to first"
        left_s = None if self._ends_at is None else max(0.0, self._ends_at - self._process.loop.time())
        try:
            return await asyncio.wait_for(self._end.receive(), left_s)
        except ConnectionEnded as error:
            raise _rpc_error(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        except asyncio.TimeoutError:
            raise _rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time") from None

    def cancel(self) -> None:
        if self._end is not None:
            self._end.close("cancelled")


def _rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
