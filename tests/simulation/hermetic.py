"""Takes the world away from product code while a run lasts: its clock is the loop's, its dice are the run's.

Interposed, not passed by parameter: code that is written next year reads the virtual clock too, whether its author thought of the
simulation or not. Whatever still comes from outside shows as a run whose log differs from its repetition.
"""

from __future__ import annotations

import gc
import logging
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from simulation.process import monotonic_s
from simulation.virtual_time import VirtualLoop

EPOCH_S = 1_700_000_000.0  # what time.time() says when the run begins


@contextmanager
def hermetic(loop: VirtualLoop, dice: random.Random) -> Iterator[None]:
    """Until it is left: no clock but `loop`'s, no chance but `dice`, no log lines, no garbage collection (which ends forgotten
    generators at moments of its own)."""

    class SeededRandom(random.Random):
        """random.Random() without a seed draws one from the run's."""

        def __init__(self, seed: object = None) -> None:
            super().__init__(dice.getrandbits(64) if seed is None else seed)  # type: ignore[arg-type]

    def clock_s() -> float:
        return monotonic_s(loop)

    def wall_clock_s() -> float:
        return EPOCH_S + monotonic_s(loop)

    collecting = gc.isenabled()
    gc.disable()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.object(time, "monotonic", clock_s),
            mock.patch.object(time, "perf_counter", clock_s),
            mock.patch.object(time, "time", wall_clock_s),
            mock.patch.object(random, "Random", SeededRandom),
            mock.patch.object(secrets, "token_bytes", dice.randbytes),
        ):
            yield
    finally:
        logging.disable(disabled)
        if collecting:
            gc.enable()
