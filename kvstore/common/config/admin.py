"""What every `kvstore admin` command can be told: where the masters are, the token, how long to wait."""

from __future__ import annotations

from typing import ClassVar

from pydantic import SecretStr

from kvstore.common.config.schema import setting
from kvstore.common.config.servers import ControlAddresses, TokenSettings
from kvstore_client.address import CONTROL_PORT
from kvstore_client.tokens import TOKENS_BYTES_MAX


class AdminSettings(TokenSettings):
    section: ClassVar[str] = "admin"

    master: ControlAddresses = setting(
        (f"127.0.0.1:{CONTROL_PORT}",),
        "Control addresses of the masters, host:port, separated by commas.",
        group="Masters",
        kind="addresses",
    )
    token: SecretStr = setting(
        SecretStr(""),
        "The masters' secret; better by the environment or as a file, for options are visible.",
        group="Access",
        max_length=TOKENS_BYTES_MAX,
        # What the container of a master has in its environment anyway.
        also=("KVSTORE_MASTER_TOKEN",),
    )
    timeout_ms: int = setting(
        5000,
        "How long to wait for the masters' answer; a master has half of it to say who it is.",
        group="Masters",
        ge=100,
        le=600_000,
    )
