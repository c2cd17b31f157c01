"""What a fresh client can read of what was acked, every byte compared."""

from __future__ import annotations

from collections.abc import Callable

from kvstore_client import Namespace
from support import pages
from support.waiting import wait_until

BATCH = 32


def readable(namespace: Namespace, keys: list[str], size_bytes: int = pages.PAGE_BYTES) -> set[str]:
    """The keys that can be read now. AssertionError for a single wrong byte."""
    found = set()
    for start in range(0, len(keys), BATCH):
        batch = keys[start : start + BATCH]
        for key, value in zip(batch, namespace.batch_get(batch), strict=True):
            if value is not None:
                assert pages.fault(key, value, size_bytes) == ""
                found.add(key)
    return found


def wait_only_whole_pages(
    namespace: Namespace,
    keys: list[str],
    object_count: Callable[[], float],
    size_bytes: int = pages.PAGE_BYTES,
) -> set[str]:
    """Waits until a segment that holds nothing but some of `keys` has as many objects as can be read, and returns
    those: requests that clients sent before they were gone may be served for a moment longer.
    """
    whole: set[str] = set()

    def settled() -> bool:
        whole.update(readable(namespace, keys, size_bytes))  # compares every byte
        return object_count() == len(whole)

    wait_until(settled, "what is not readable holds no space", poll_s=0.1)
    return whole


def assert_all_readable(
    namespace: Namespace, keys: list[str], timeout_s: float = 15.0, size_bytes: int = pages.PAGE_BYTES
) -> None:
    """Every key is readable, now or as soon as the store has recovered: then at the latest none may be
    missing.
    """
    assert keys, "nothing was acked: the test has shown nothing"
    missing: set[str] = set()

    def none_missing() -> bool:
        missing.clear()
        missing.update(set(keys) - readable(namespace, keys, size_bytes))
        return not missing

    try:
        wait_until(none_missing, "all acked keys are readable", timeout_s)
    except AssertionError:
        raise AssertionError(
            f"{len(missing)} of {len(keys)} acked keys are lost: {sorted(missing)[:10]}"
        ) from None
