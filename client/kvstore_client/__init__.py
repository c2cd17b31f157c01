"""Client library of kvstore. Depends on nothing but its own native module.

from kvstore_client import Client

with Client("127.0.0.1:7440") as client:
    notes = client.namespace("notes")
    notes.put("greeting", b"hello")
    assert notes.get("greeting") == b"hello"
"""

from kvstore_client._native import Pieces, SharedBuffer
from kvstore_client.client import Client
from kvstore_client.config import ClientConfig
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity
from kvstore_client.intent import Keep
from kvstore_client.keys import WHOLE, Shard
from kvstore_client.namespace import Namespace, Pages

__all__ = [
    "WHOLE",
    "Client",
    "ClientConfig",
    "ConfigError",
    "Identity",
    "Keep",
    "Namespace",
    "Pages",
    "Pieces",
    "Shard",
    "SharedBuffer",
]
