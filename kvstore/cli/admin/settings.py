"""What every admin command is told: where the masters are, the token, how long to wait."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kvstore.cli.errors import EXIT_USAGE, fail
from kvstore.common.control_metadata import check_token
from kvstore_client.address import CONTROL_PORT, parse_addresses

MASTERS_MAX = 16
# What the container of a master, and the shell of `kvstore up`, have in their environment anyway.
MASTER_TOKEN_VARIABLE = "KVSTORE_MASTER_TOKEN"
TOKEN_FILE_VARIABLE = "KVSTORE_TOKEN_FILE"


class AdminSettings(BaseSettings):
    """Each field is an option, and an environment variable `KVSTORE_ADMIN_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="KVSTORE_ADMIN_", extra="forbid", frozen=True)

    master: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(f"127.0.0.1:{CONTROL_PORT}",),
        description="Control addresses of the masters, host:port, separated by commas.",
    )
    token: SecretStr = Field(
        default=SecretStr(""),
        description="The masters' secret; better by the environment or --token-file, for arguments are visible. "
        f"Without any: {TOKEN_FILE_VARIABLE}, then {MASTER_TOKEN_VARIABLE}.",
    )
    token_file: Path | None = Field(default=None, description="File with the secret.")
    timeout_ms: int = Field(
        default=5000, ge=100, le=600_000, description="How long to wait for the masters' answer."
    )

    @field_validator("master", mode="before")
    @classmethod
    def _parse(cls, value: str | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(str, parse_addresses(value, MASTERS_MAX, CONTROL_PORT)))

    @model_validator(mode="after")
    def _one_token(self) -> AdminSettings:
        if self.token.get_secret_value() and self.token_file is not None:
            raise ValueError("--token and --token-file are both given: keep one")
        check_token(self.token.get_secret_value())
        return self

    def secret(self) -> str:
        """The token, wherever it was given; empty: none. Exits when a file can't be used."""
        if self.token.get_secret_value():
            return self.token.get_secret_value()
        path = self.token_file or os.environ.get(TOKEN_FILE_VARIABLE)
        try:
            secret = Path(path).read_text().strip() if path else os.environ.get(MASTER_TOKEN_VARIABLE, "")
            check_token(secret)
        except (OSError, ValueError) as error:
            fail(f"the token can't be used{f' ({path})' if path else ''}: {error}", EXIT_USAGE)
        if path and not secret:
            fail(f"the token file {path} is empty: write the secret into it", EXIT_USAGE)
        return secret
