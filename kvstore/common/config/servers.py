"""What the settings of several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator

from kvstore.common.config.schema import Settings, setting
from kvstore.common.listening import listen_host
from kvstore.common.logs import LogFormat
from kvstore_client.address import CONTROL_PORT, check_peer_host, parse_addresses
from kvstore_client.tokens import TOKENS_BYTES_MAX, Tokens

MASTER_HTTP_PORT = 7442
DATA_PORT = 7450
SEGMENT_HTTP_PORT = 7451

MASTERS_MAX = 64


def _control_addresses(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, parse_addresses(value, MASTERS_MAX, CONTROL_PORT)))


# What a server listens on, and where others reach one (empty: to be found out).
ListenHost = Annotated[str, AfterValidator(listen_host)]
PeerHost = Annotated[str, AfterValidator(lambda host: check_peer_host(host) if host else host)]
ControlAddresses = Annotated[tuple[str, ...], BeforeValidator(_control_addresses)]
Port = Annotated[int, Field(ge=0, le=65_535)]
LogLevel = Literal["debug", "info", "warning", "error"]


class TokenSettings(Settings):
    """`token` holds the secret, wherever it was given: the loader reads the file."""

    token: SecretStr = setting(
        SecretStr(""),
        "Shared secret of the store, or lines of role:token (docs/operations.md); better by the environment or as a "
        "file, for options are visible. Without it none is asked for.",
        group="Access",
        max_length=TOKENS_BYTES_MAX,
    )
    token_file: Path | None = setting(
        None, "File with the secret.", group="Access", kind="path", also=("KVSTORE_TOKEN_FILE",)
    )

    @field_validator("token")
    @classmethod
    def _sendable(cls, token: SecretStr) -> SecretStr:
        Tokens.parse(token.get_secret_value())
        return token

    @property
    def tokens(self) -> Tokens:
        """What `token` says: one secret, or a line for each role."""
        return Tokens.parse(self.token.get_secret_value())


class ServerSettings(TokenSettings):
    log_level: LogLevel = setting("info", "Which lines go to stderr.", group="Log")
    log_format: LogFormat = setting("json", "'json' (a line an event) or 'text'.", group="Log")
