"""How an exchange with the masters ends when it does not end well: a text and an exit code."""

from __future__ import annotations

import grpc
import grpc.aio

from kvstore.cli.errors import EXIT_FAILED

EXIT_UNREACHABLE = 3
# It was done, and not everybody has confirmed it in time.
EXIT_UNCONFIRMED = 4


class AdminFailure(Exception):
    """Ends the command. `code` is its exit code."""

    def __init__(self, text: str, code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.code = code


def describe(error: grpc.aio.AioRpcError, timeout_ms: int) -> str:
    """One line for people."""
    code, details = error.code(), " ".join((error.details() or "").split())
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {timeout_ms} ms"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"it does not know this request: is it a kvstore master of the same release? ({details})"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return f"{details} (--token-file, --token, KVSTORE_ADMIN_TOKEN)"
    if code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details.lower():
        # gRPC repeats the address and what it was about; the cause comes last.
        return details.rpartition(": ")[2].lower()
    return details or code.name


def is_unreachable(error: grpc.aio.AioRpcError) -> bool:
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
