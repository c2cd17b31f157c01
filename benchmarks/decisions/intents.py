"""0035, intents: what hints of what will be used again are worth, right and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.decisions.base import Batch, Table, hashes, running_store
from kvstore_client import Client, Keep, Pages, Pieces

POOL_BYTES = 8 << 20
SIZE_BYTES = 16 << 10
REQUESTS = 1200
SESSIONS_AT_A_TIME = 120
PAGES_A_TURN_MAX = 8
TURNS_MAX = 12
ONE_TURN_SHARE = 0.5
SYSTEM_PROMPTS = 10
SYSTEM_PROMPT_PAGES = 6
SEED = 35
# Share of the requests whose hints are right; None: there are no hints.
HINTS = {"none": None, "all right": 1.0, "80 % right": 0.8, "all wrong": 0.0}
TTL_MS = 600_000


@dataclass
class Session:
    """A conversation: each turn asks for all that was before it, and adds some pages."""

    turns_left: int
    chain: list[str] = field(default_factory=list)


def requests(seed: int) -> Iterator[tuple[list[str], bool]]:
    """(the chain of a request, whether its session comes back)"""
    rng = random.Random(seed)
    page = iter(range(1 << 40))
    prompts = [[f"{next(page):064x}" for _ in range(SYSTEM_PROMPT_PAGES)] for _ in range(SYSTEM_PROMPTS)]
    alive: list[Session] = []
    for _ in range(REQUESTS):
        if len(alive) < SESSIONS_AT_A_TIME:
            turns = 1 if rng.random() < ONE_TURN_SHARE else rng.randint(2, TURNS_MAX)
            alive.append(Session(turns, list(rng.choice(prompts))))
        at = rng.randrange(len(alive))
        session = alive[at]
        session.chain += [f"{next(page):064x}" for _ in range(rng.randint(1, PAGES_A_TURN_MAX))]
        session.turns_left -= 1
        yield session.chain, session.turns_left > 0
        if session.turns_left == 0:
            alive.pop(at)


class Memory:
    """For batches of any number of pages; what is in them is no matter."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}

    def pieces(self, count: int) -> Pieces:
        if count not in self._batches:
            self._batches[count] = Batch(count, SIZE_BYTES)
        return self._batches[count].pieces


def hit_ratio(pages: Pages, right: float | None) -> float:
    """Of pages asked for, those of a prefix without a hole."""
    rng = random.Random(SEED)
    memory = Memory()
    hits = asked = 0
    for chain, returns in requests(SEED):
        keys = hashes(chain)
        found = pages.prefix_exists_hashes(keys, pin_ms=2000)
        hits, asked = hits + found, asked + len(chain)
        if found:
            pages.get_pieces(keys[: 32 * found], memory.pieces(found), deadline_ms=5000)
        if found < len(chain):
            rest = memory.pieces(len(chain) - found)
            pages.put_pieces(keys[32 * found :], rest, deadline_ms=5000, depth=found)
        if right is not None:
            says_so = returns if rng.random() < right else not returns
            # A system prompt is others' as well: nobody demotes it.
            own = keys if says_so else keys[32 * SYSTEM_PROMPT_PAGES :]
            intent = Keep.RETAIN if says_so else Keep.DEMOTE
            pages.keep_hashes(own, intent, ttl_ms=TTL_MS, deadline_ms=5000)
    return hits / asked


def measure(repetitions: int) -> Table:
    """One run of each: a hit ratio is no time."""
    rows = []
    for name, right in HINTS.items():
        with running_store(POOL_BYTES) as masters, Client(masters, deadline_ms=5000) as client:
            rows.append([name, f"{hit_ratio(client.namespace('intents').pages(), right):.3f}"])
    return Table(
        f"{REQUESTS} requests of sessions, a pool of {POOL_BYTES // SIZE_BYTES} pages",
        ["hints", "pages found in a prefix without a hole"],
        rows,
    )
