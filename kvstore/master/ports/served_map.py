"""The segment map as clients get it: encoded once an epoch, for all of them ask when it changes. How full segments are changes all
the time, and clients choose by it: that alone is put in anew, now and then."""

from __future__ import annotations

import time
import weakref

from kvstore.master.roles import Backend, Roles
from kvstore_client.protocol import EncodedMap

REFRESH_S = 1.0


class ServedMap:
    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        # Of which backend and epoch. One that serves no more goes, with its index of gigabytes, whoever asks for maps or not.
        self._backend: weakref.ref[Backend] | None = None
        self._epoch = 0
        self._encoded = EncodedMap(())
        self._fields = b""
        self._fresh_until = 0.0

    def fields(self) -> bytes:
        """Of a MAP reply. Raises RefusedError while there is no map."""
        backend, now = self._roles.backend, time.monotonic()
        if self._backend is None or self._backend() is not backend or self._epoch != backend.map_epoch:
            self._encoded = EncodedMap(backend.segment_map())
            self._backend, self._epoch = weakref.ref(backend), backend.map_epoch
        elif now < self._fresh_until:
            return self._fields
        self._fresh_until = now + REFRESH_S
        self._fields = self._encoded.refresh(backend.used_bytes())
        return self._fields
