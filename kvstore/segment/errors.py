"""Errors that stop a segment from starting; each names what is wrong and the remedy."""

from __future__ import annotations


class SegmentStartError(Exception):
    """The segment can't start. The text is one line: what is wrong, with its numbers, and how to fix it."""


class RegistrationRefused(Exception):
    """A master answered the registration with a refusal that a retry at once would not change."""


class ClusterChanged(Exception):
    """The master belongs to another cluster than before, or has lost its records: what the pool holds means
    nothing there.
    """
