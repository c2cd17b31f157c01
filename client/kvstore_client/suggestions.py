"""What somebody may have meant who wrote a name that there isn't."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that somebody who wrote `name` may have meant."""
    bare, wanted = {_bare(candidate): candidate for candidate in known}, _bare(name)
    longer = [candidate for candidate in bare if len(wanted) >= 5 and candidate.startswith(wanted)]
    found = longer if len(longer) == 1 else get_close_matches(wanted, list(bare), n=1, cutoff=0.7)
    return bare[found[0]] if found else None


def did_you_mean(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """The end of a message about an unknown name."""
    meant = nearest(name, list(known))
    return f"; did you mean {meant}?" if meant else f"; there are {', '.join(sorted(known))}"


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
