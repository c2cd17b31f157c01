"""etcd's keys with their versions: what each was at every revision that has not been compacted, and the space that takes."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

VERSION_OVERHEAD_BYTES = 100


@dataclass(frozen=True, slots=True)
class Version:
    mod_revision: int
    create_revision: int
    version: int
    value: bytes | None  # None: deleted
    lease: int = 0


class EtcdVersions:
    def __init__(self) -> None:
        self._history: dict[bytes, list[Version]] = {}
        self._keys: list[bytes] = []  # sorted
        self.in_use_bytes = 0
        self.file_bytes = 0  # never shrinks but by defragmentation

    def range(self, start: bytes, range_end: bytes) -> Iterator[bytes]:
        """Keys in order, as etcd means a range: without an end it is the one key."""
        if not range_end:
            if start in self._history:
                yield start
            return
        for i in range(bisect.bisect_left(self._keys, start), bisect.bisect_left(self._keys, range_end)):
            yield self._keys[i]

    def at(self, key: bytes, revision: int) -> Version | None:
        for version in reversed(self._history.get(key, ())):
            if version.mod_revision <= revision:
                return version
        return None

    def add(self, key: bytes, version: Version) -> None:
        if key not in self._history:
            self._history[key] = []
            bisect.insort(self._keys, key)
        self._history[key].append(version)
        self.in_use_bytes += size_bytes(key, version.value)
        self.file_bytes = max(self.file_bytes, self.in_use_bytes)

    def compact(self, revision: int) -> None:
        """Forgets what was replaced or deleted up to `revision`."""
        for key, versions in list(self._history.items()):
            newest = next(
                (i for i in reversed(range(len(versions))) if versions[i].mod_revision <= revision), None
            )
            if newest is None:
                continue
            keep_from = newest if versions[newest].value is not None else newest + 1
            self.in_use_bytes -= sum(size_bytes(key, version.value) for version in versions[:keep_from])
            self._history[key] = versions[keep_from:]
            if not self._history[key]:
                del self._history[key]
                self._keys.remove(key)

    def defragment(self) -> None:
        self.file_bytes = self.in_use_bytes


def size_bytes(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + VERSION_OVERHEAD_BYTES
