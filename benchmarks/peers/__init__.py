"""The peers by name. A new peer is a new module here and one line below."""

from __future__ import annotations

from benchmarks.peers.base import PeerClient, PeerUnavailable, Servers
from benchmarks.peers.kvstore import (
    KvstoreEtcdClient,
    KvstoreEtcdServers,
    KvstoreSameHostClient,
    KvstoreSameHostPrivateClient,
    KvstoreServers,
    KvstoreTcpClient,
)
from benchmarks.peers.memcpy import MemcpyClient, MemcpyServers
from benchmarks.peers.mooncake import MooncakeClient, MooncakeServers
from benchmarks.peers.sockets import SocketsClient, SocketsServers

PEERS: dict[str, tuple[type[Servers], type[PeerClient]]] = {
    "kvstore-tcp": (KvstoreServers, KvstoreTcpClient),
    "kvstore-same-host": (KvstoreServers, KvstoreSameHostClient),
    "kvstore-same-host-private": (KvstoreServers, KvstoreSameHostPrivateClient),
    "kvstore-etcd": (KvstoreEtcdServers, KvstoreEtcdClient),
    "mooncake": (MooncakeServers, MooncakeClient),
    "sockets": (SocketsServers, SocketsClient),
    "memcpy": (MemcpyServers, MemcpyClient),
}

__all__ = ["PEERS", "PeerClient", "PeerUnavailable", "Servers"]
