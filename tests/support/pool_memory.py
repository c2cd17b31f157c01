"""Reaches into the memory pool of a running segment, as a broken memory cell would."""

from __future__ import annotations

from support.processes import ServerProcess


def flip_byte_in_pool(segment: ServerProcess, needle: bytes, position: int) -> None:
    """Turns one byte over in the only place of the pool that holds `needle`, `position` bytes behind its start.

    The pool is sealed against everybody but the segment itself, so this goes through the segment's own mapping. AssertionError when
    `needle` is not there exactly once.
    """
    with open(f"/proc/{segment.pid}/maps") as maps:
        areas = [line.split() for line in maps if "memfd:kvstore" in line and "rw-s" in line]
    assert areas, "the segment has no writable mapping of its pool"
    with open(f"/proc/{segment.pid}/mem", "r+b", buffering=0) as memory:
        found = []
        for area in areas:
            start, end = (int(text, 16) for text in area[0].split("-"))
            memory.seek(start)
            content = memory.read(end - start)
            at = content.find(needle)
            while at >= 0:
                found.append(start + at)
                at = content.find(needle, at + 1)
        assert len(found) == 1, f"the bytes are in the pool {len(found)} times"
        memory.seek(found[0] + position)
        byte = memory.read(1)[0]
        memory.seek(found[0] + position)
        assert memory.write(bytes([byte ^ 0x10])) == 1
