"""What a request's orchestrator wishes for its pages: SGLang's `kv_hints`, as an intent of the store.

An envelope has `actions`, each with a type, a version and a payload; whoever does not know an action passes it
over. Ours are `kv.retain` and `kv.demote`, versions 0.x and 1.x, with `ttl_ms` or `ttl_seconds` in the payload or
neither. SGLang hands storage backends a place for it, `HiCacheStorageExtraInfo.extra_info["kv_hints"]`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvstore_client import Keep

ACTIONS = {"kv.retain": Keep.RETAIN, "kv.demote": Keep.DEMOTE}
ACTIONS_MAX = 64
TTL_MS_MAX = 24 * 3600 * 1000
_TTL_UNITS = {"ttl_ms": 1, "ttl_seconds": 1000}


class Wish(NamedTuple):
    """For all pages of a call."""

    keep: Keep = Keep.NORMAL
    ttl_ms: int = 0
    """0: the store's default."""


NO_WISH = Wish()


def wish_of(extra_info: Any, complain: Callable[[str], None]) -> Wish:
    """The wish that comes with a call; of several the last. Never raises: what is no hint, or one that can't be
    followed, goes to `complain` and is passed over.
    """
    try:
        inner = getattr(extra_info, "extra_info", None)
        told = inner.get("kv_hints") if inner is not None and isinstance(inner, Mapping) else None
        hints = getattr(extra_info, "kv_hints", None) if told is None else told
        return NO_WISH if hints is None else _wish(hints, complain)
    except Exception as error:
        complain(f"{type(error).__name__}: {error}")
        return NO_WISH


def _wish(hints: Any, complain: Callable[[str], None]) -> Wish:
    actions = _field(hints, "actions")
    if not isinstance(actions, (list, tuple)) or len(actions) > ACTIONS_MAX:
        complain(f"actions are a list of at most {ACTIONS_MAX}")
        return NO_WISH
    wish = NO_WISH
    for action in actions:
        keep = ACTIONS.get(_field(action, "action_type"))
        if keep is None:
            continue
        try:
            wish = Wish(keep, _ttl_ms(action))
        except ValueError as error:
            complain(f"{_field(action, 'action_type')}: {error}")
    return wish


def _ttl_ms(action: Any) -> int:
    version = _field(action, "action_version")
    if not isinstance(version, str) or version.partition(".")[0] not in ("0", "1"):
        raise ValueError(f"version {version!r} is not known; 0.x and 1.x are")
    payload = _field(action, "payload") or {}
    if not isinstance(payload, Mapping):
        raise ValueError("the payload is no object")
    unknown = [name for name in payload if name not in _TTL_UNITS]
    if unknown:
        # It may say which pages are meant: whoever does not understand that must not take all of them.
        raise ValueError(f"payload with {str(unknown[0])!r}, which is not known")
    for name, unit_ms in _TTL_UNITS.items():
        if name in payload:
            value = payload[name]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise ValueError(f"{name} is a number above 0, not {value!r:.80}")
            return max(1, int(min(value * unit_ms, TTL_MS_MAX)))
    return 0


def _field(of: Any, name: str) -> Any:
    """Of a JSON object, or of the struct that SGLang has made of it."""
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)
