"""Input that nobody meant: how tests of tests/fuzz draw it, and how much of it.

`make test` draws the same examples each time. With KVSTORE_FUZZ_FACTOR (`make fuzz TARGET=python`) there are so many times more, others
in each run, and what fails is kept in .hypothesis to be tried first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

FACTOR = int(os.environ.get("KVSTORE_FUZZ_FACTOR", "0"))
VECTORS = Path(__file__).parents[1] / "vectors" / "protocol_v2.json"
# Where bounds tend to lie.
NUMBERS = (0, 1, 2, 255, 256, 65_535, 65_536, 131_073, 1 << 24, 1 << 30, (1 << 30) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """Settings of a @given test that draws so many examples in `make test`."""
    return settings(
        max_examples=examples * max(FACTOR, 1),
        derandomize=FACTOR == 0,
        database=None if FACTOR == 0 else DirectoryBasedExampleDatabase(".hypothesis/examples"),
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def says_why(error: Exception) -> None:
    """A refusal without a word helps nobody."""
    assert str(error), f"{type(error).__name__} says nothing"


def golden_frames(*kinds: str) -> list[bytes]:
    """Whole frames of the golden vectors, of these kinds."""
    messages = json.loads(VECTORS.read_text())["messages"]
    return [bytes.fromhex(message["hex"]) for message in messages if message["kind"] in kinds]


def golden_bodies(message: str) -> list[bytes]:
    """Bodies of the golden vectors that carry this message; of replies without their prefix."""
    found = []
    for vector in json.loads(VECTORS.read_text())["messages"]:
        if vector["message"] == message:
            body = bytes.fromhex(vector["hex"])[24:]
            found.append(body[16 + len(vector["prefix"]["text"].encode()) :] if vector["prefix"] else body)
    return found


@st.composite
def changed(draw: st.DrawFn, originals: Sequence[bytes]) -> bytes:
    """One of these with a few changes: bytes, numbers that are often lengths, stretches that go, come or are doubled."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(("byte", "number", "number", "cut", "end", "insert", "double")))
        if change == "byte" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif change == "number":
            width = draw(st.sampled_from((1, 2, 4, 8)))
            number = draw(st.sampled_from(NUMBERS)) % (1 << 8 * width)
            if at + width <= len(data):
                data[at : at + width] = number.to_bytes(width, "little")
        elif change == "cut":
            del data[at : at + draw(st.integers(1, 16))]
        elif change == "end":
            del data[at:]
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=16))
        elif change == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


def hostile(originals: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Changed originals mostly, and bytes that never were a message."""
    if not originals:
        return st.binary(max_size=200)
    return st.one_of(changed(originals), changed(originals), st.binary(max_size=200))
