"""The typed base of every server's settings: what all of them have, and where values come from.

Precedence: arguments of the constructor, then environment variables, then defaults. Unknown names are
refused.
"""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kvstore.common.control_metadata import check_token
from kvstore.common.logs import LogFormat
from kvstore_client.protocol import TOKEN_BYTES_MAX


class ServerSettings(BaseSettings):
    """Subclasses set `env_prefix` (for example KVSTORE_MASTER_) in their model_config."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    token: SecretStr = Field(
        default=SecretStr(""),
        max_length=TOKEN_BYTES_MAX,
        description="Shared secret that every peer must present. Empty: none is asked for.",
    )
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    log_format: LogFormat = Field(default="json", description="'json' (a line an event) or 'text'.")

    @field_validator("token")
    @classmethod
    def _sendable(cls, token: SecretStr) -> SecretStr:
        check_token(token.get_secret_value())
        return token

    @property
    def token_bytes(self) -> bytes:
        return self.token.get_secret_value().encode()
