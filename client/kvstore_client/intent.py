"""What a writer wants to become of its pages when space runs short."""

from enum import IntEnum


class Keep(IntEnum):
    """A hint to the segments; no answer of a call depends on it."""

    NORMAL = 0
    """Nothing said: by how it is used."""
    RETAIN = 1
    """The last to go, for a time and within a budget."""
    DEMOTE = 2
    """The first to go, until it is used again."""
