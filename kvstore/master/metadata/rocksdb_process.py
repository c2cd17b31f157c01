"""The process that has RocksDB: `python -m kvstore.master.metadata.rocksdb_process DIRECTORY DESCRIPTOR PARENT make|keep`.

rocksdict keeps the interpreter to itself while the disk works, so RocksDB has an interpreter of its own. It writes without a log:
what the master has not had a checkpoint of is in the master's commit log, and is applied again after a crash. It has one peer, at the
other end of the socket DESCRIPTOR, and ends with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import sys
from typing import Any

import rocksdict

from kvstore.master.metadata.rocksdb_messages import (
    FRAME_BYTES_MAX,
    HEAD,
    PAGE_RECORDS_MAX,
    SCAN_ID,
    SEQUENCE,
    OpKind,
    Reply,
    Request,
    decode_ops,
    encode_pair,
    frame,
)
from kvstore.master.metadata.rocksdb_mirror import mirrored, remove_mirror, remove_mirrors

# Up to which commit the database has everything; written together with what it stands for.
CARRIED_KEY = b"\x00carried"
PAGE_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
# What a full disk says; also a quota, and a limit on the size of files.
_NO_SPACE = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def options() -> Any:
    chosen = rocksdict.Options(raw_mode=True)
    chosen.create_if_missing(True)
    # Of a directory that an earlier release wrote: a damaged block of the log costs what is in it; by default everything after it
    # would be gone without a word.
    chosen.set_wal_recovery_mode(rocksdict.DBRecoveryMode.skip_any_corrupted_record())
    # Above what lies between two checkpoints: a checkpoint is what writes tables.
    chosen.set_write_buffer_size(64 << 20)
    # Records are hashes: nothing to compress, and an uncompressed block loses one record to a flipped bit, not all.
    chosen.set_compression_type(rocksdict.DBCompressionType.none())
    # Small tables and levels, merged early: what is deleted is soon gone from the disk.
    chosen.set_level_zero_file_num_compaction_trigger(2)
    chosen.set_target_file_size_base(4 << 20)
    chosen.set_max_bytes_for_level_base(8 << 20)
    chosen.set_level_compaction_dynamic_level_bytes(True)
    # What RocksDB keeps beside the records.
    chosen.set_keep_log_file_num(2)
    chosen.set_max_log_file_size(1 << 20)
    chosen.set_max_manifest_file_size(1 << 20)
    chosen.set_recycle_log_file_num(0)
    return chosen


class Database:
    """RocksDB, or where the disk is full RocksDB read-only below what has been applied since."""

    def __init__(self, path: str) -> None:
        self.read_only = ""  # why
        self._mirror = ""
        try:
            self._db = rocksdict.Rdict(path, options())
        except Exception as error:
            if not any(text in str(error) for text in _NO_SPACE) or not os.path.exists(f"{path}/CURRENT"):
                raise
            read_only = rocksdict.AccessType.read_only(False)
            self._mirror = mirrored(path)
            self._db = rocksdict.Rdict(self._mirror, options(), access_type=read_only)
            self.read_only = str(error)
        self._changes: dict[bytes, bytes | None] = {}  # since it was opened read-only
        self._no_log: Any = rocksdict.WriteOptions()
        self._no_log.disable_wal = True  # a property, whatever its stub says
        # Every record carries its own checksum (kvstore.master.state.records), which costs that record alone when it is wrong;
        # RocksDB's would end the whole scan.
        self._scanning = rocksdict.ReadOptions()
        self._scanning.set_verify_checksums(False)
        stored = self._db.get(CARRIED_KEY)
        self.carried: int = SEQUENCE.unpack(stored)[0] if stored is not None else 0
        self._scans: dict[int, _Scan] = {}

    def leave(self) -> None:
        """The process ends. Touches no disk, which may hang."""
        if self._mirror:
            remove_mirror(self._mirror)

    def apply(self, body: bytes) -> None:
        (sequence,) = SEQUENCE.unpack_from(body)
        ops = decode_ops(body, SEQUENCE.size)
        if self.read_only:
            self._remember(ops)
        else:
            self._write(ops, sequence)
        self.carried = sequence

    def _write(self, ops: list[tuple[int, bytes, bytes]], sequence: int) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for kind, first, second in ops:
            if kind == OpKind.PUT:
                batch.put(first, second)
            elif kind == OpKind.DELETE:
                batch.delete(first)
            else:
                batch.delete_range(first, second)
        batch.put(CARRIED_KEY, SEQUENCE.pack(sequence))
        self._db.write(batch, self._no_log)

    def _remember(self, ops: list[tuple[int, bytes, bytes]]) -> None:
        for kind, first, second in ops:
            if kind == OpKind.DELETE_RANGE:
                stored = self._db.iter(self._scanning)
                stored.seek(first)
                while stored.valid() and stored.key() < second:
                    self._changes[stored.key()] = None
                    stored.next()
                for key in [key for key in self._changes if first <= key < second]:
                    self._changes[key] = None
            else:
                self._changes[first] = second if kind == OpKind.PUT else None

    def checkpoint(self) -> bytes:
        if self.read_only:
            raise OSError(errno.ENOSPC, self.read_only)
        self._db.flush(True)
        return SEQUENCE.pack(self.carried)

    def get(self, key: bytes) -> bytes:
        value = self._changes[key] if key in self._changes else self._db.get(key)
        return b"\x00" if value is None else b"\x01" + value

    def begin_scan(self, body: bytes) -> None:
        (number,) = SCAN_ID.unpack_from(body)
        prefix = body[SCAN_ID.size :]
        iterator = self._db.iter(self._scanning)
        iterator.seek(prefix)
        changes = sorted(item for item in self._changes.items() if item[0].startswith(prefix))
        self._scans[number] = _Scan(iterator, prefix, changes)

    def next_page(self, body: bytes) -> bytes:
        return self._scans[SCAN_ID.unpack(body)[0]].page()

    def end_scan(self, body: bytes) -> None:
        self._scans.pop(SCAN_ID.unpack(body)[0], None)


class _Scan:
    def __init__(self, iterator: Any, prefix: bytes, changes: list[tuple[bytes, bytes | None]]) -> None:
        self._iterator = iterator
        self._prefix = prefix
        self._changes = changes[::-1]

    def page(self) -> bytes:
        pairs: list[bytes] = []
        size = 0
        while size < PAGE_BYTES and len(pairs) < PAGE_RECORDS_MAX:
            found = self._next()
            if found is None:
                break
            key, value = found
            if value is not None:
                pairs.append(encode_pair(key, value))
                size += len(pairs[-1])
        return b"".join(pairs)

    def _next(self) -> tuple[bytes, bytes | None] | None:
        iterator = self._iterator
        stored: bytes | None = None
        if iterator.valid():
            stored = iterator.key()
            assert stored is not None
            if not stored.startswith(self._prefix):
                stored = None
        else:
            iterator.status()  # raises when the end is an error and not the end
        if self._changes and (stored is None or self._changes[-1][0] <= stored):
            changed = self._changes.pop()
            if changed[0] == stored:
                iterator.next()
            return changed
        if stored is None:
            return None
        value = iterator.value()
        iterator.next()
        return stored, value


def receive(peer: socket.socket, size: int) -> bytes:
    """b"" when the peer has gone."""
    received = bytearray()
    while len(received) < size:
        more = peer.recv(size - len(received))
        if not more:
            return b""
        received += more
    return bytes(received)


def serve(peer: socket.socket, database: Database) -> None:
    """Until the peer goes, or a write fails."""
    while head := receive(peer, HEAD.size):
        size, code = HEAD.unpack(head)
        if not 1 <= size <= FRAME_BYTES_MAX:
            return
        body = receive(peer, size - 1) if size > 1 else b""
        try:
            answer = perform(database, code, body)
        except Exception as error:
            peer.sendall(frame(Reply.FAILED, str(error).encode()))
            if code in (Request.APPLY, Request.CHECKPOINT):
                return  # RocksDB takes nothing any more until it is opened anew
        else:
            peer.sendall(frame(Reply.OK, answer))


def perform(database: Database, code: int, body: bytes) -> bytes:
    if code == Request.APPLY:
        database.apply(body)
    elif code == Request.CHECKPOINT:
        return database.checkpoint()
    elif code == Request.GET:
        return database.get(body)
    elif code == Request.SCAN:
        database.begin_scan(body)
    elif code == Request.NEXT:
        return database.next_page(body)
    elif code == Request.END_SCAN:
        database.end_scan(body)
    else:
        raise ValueError(f"no request {code}")
    return b""


def main(path: str, descriptor: int, parent: int, make: bool) -> None:
    # Whoever stops the master stops it: signals to the group of processes are not for this one.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A master that is killed takes it along, also out of a call that waits for the disk.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    peer = socket.socket(fileno=descriptor)
    if os.getppid() != parent:
        return  # it was killed before
    try:
        remove_mirrors(path)
        if not make and not os.path.exists(f"{path}/CURRENT"):
            # Made anew it would be empty, and be said to have what was carried over before.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{path}/CURRENT")
        database = Database(path)
    except Exception as error:
        peer.sendall(frame(Reply.CAN_NOT_OPEN, str(error).encode()))
        return
    hello = SEQUENCE.pack(database.carried) + bytes([bool(database.read_only)]) + database.read_only.encode()
    peer.sendall(frame(Reply.HELLO, hello))
    try:
        serve(peer, database)
    except OSError:
        pass  # the peer has gone
    finally:
        # What was not checkpointed is in the master's log: nothing is written any more, and nobody waits for it.
        database.leave()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "make")
