"""The options of the client: declared once, and every value that the declaration accepts makes a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client, ConfigError
from kvstore_client.config import CLIENT_OPTIONS, MASTERS_MAX, ClientConfig
from kvstore_client.options import Option

MANY_MASTERS = [f"127.0.0.1:{port}" for port in range(1, 1 + MASTERS_MAX)]


def is_number(option: Option) -> bool:
    return isinstance(option.default, int) and not isinstance(option.default, bool)


def extremes(option: Option, token_file: Path) -> list[Any]:
    if option.choices:
        return [choice for choice in option.choices if choice != "required"]  # needs a device
    if isinstance(option.default, bool):
        return [True, False]
    if is_number(option):
        return [option.low, option.high]
    if option.name == "token_file":
        return [str(token_file)]
    return ["x" * option.bytes_max, "x"]


def beyond(option: Option) -> list[Any]:
    if option.choices:
        return ["", "on", 1, b"auto"][1:]
    if isinstance(option.default, bool):
        return [1, "yes", b""]
    if is_number(option):
        return [option.low - 1, option.high + 1, True, 1.5, str(option.low), float("nan")]
    return ["x" * (option.bytes_max + 1), b"x", 7, "\ud800"]


OPTIONS = [pytest.param(option, id=option.name) for option in CLIENT_OPTIONS.values()]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_client_is_made_at_each_extreme_of_each_option(option: Option, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    for value in extremes(option, tmp_path / "token"):
        with Client("127.0.0.1:1", environ={}, **{option.name: value}) as client:
            assert getattr(client.config, option.name) == value


@pytest.mark.parametrize("end", ["low", "high"])
def test_a_client_is_made_and_works_with_all_numbers_at_one_end(end: str) -> None:
    numbers = {o.name: getattr(o, end) for o in CLIENT_OPTIONS.values() if is_number(o)}
    with Client(MANY_MASTERS, environ={}, **numbers) as client:
        assert client.namespace("notes").get("key", deadline_ms=50) is None
        assert client.namespace("notes").put("key", b"value", deadline_ms=50) is False


@pytest.mark.parametrize("option", OPTIONS)
def test_what_lies_beyond_is_refused_with_option_bounds_value_and_place(option: Option) -> None:
    for value in beyond(option):
        with pytest.raises(ConfigError) as caught:
            Client("127.0.0.1:1", environ={}, **{option.name: value})
        assert caught.value.option == option.name
        message = str(caught.value)
        assert message.startswith(f"{option.name}: ")
        assert message.endswith(f"(from argument '{option.name}')")
        if is_number(option):
            assert option.bounds in message and repr(value) in message


def test_a_refused_secret_is_not_printed() -> None:
    for token in (12345, "12345" * 1000):
        with pytest.raises(ConfigError) as caught:
            Client("127.0.0.1:1", environ={}, token=token)
        assert "12345" not in str(caught.value)


def test_masters_beyond_the_most_are_refused() -> None:
    with pytest.raises(ConfigError, match=rf"^masters: needs 1..{MASTERS_MAX} .*not {MASTERS_MAX + 1}"):
        Client([*MANY_MASTERS, "127.0.0.1:9999"], environ={})


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^deadline: .*did you mean deadline_ms\?"):
        Client("127.0.0.1:1", deadline=7)
    with pytest.raises(ConfigError, match=r"^colour: .*there are .*copy_threads"):
        Client("127.0.0.1:1", colour="blue")


# ---- where values come from --------------------------------------------------------------------------


def test_an_argument_beats_the_environment_and_that_the_default() -> None:
    environ = {"KVSTORE_MASTERS": "env:1", "KVSTORE_CLIENT_CONNECTIONS": "3", "KVSTORE_CLIENT_TCP": "off"}
    config = ClientConfig.of(environ=environ)
    assert (config.masters, config.connections, config.tcp, config.copy_threads) == (
        (("env", 1),),
        3,
        False,
        2,
    )
    config = ClientConfig.of("argument:2", environ=environ, connections=4, tcp=True)
    assert (config.masters, config.connections, config.tcp) == ((("argument", 2),), 4, True)


@pytest.mark.parametrize("option", OPTIONS)
def test_empty_means_not_set(option: Option) -> None:
    default = ClientConfig.of("a:1", environ={})
    assert ClientConfig.of("a:1", environ={option.environment: ""}) == default
    assert ClientConfig.of("a:1", environ={}, **{option.name: ""}) == default
    assert ClientConfig.of("a:1", environ={}, **{option.name: None}) == default


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("KVSTORE_CLIENT_DEADLINE_MS", "fast", "needs an integer in 1..600000 ms, not 'fast'"),
        ("KVSTORE_CLIENT_DEADLINE_MS", "0", "needs an integer in 1..600000 ms, not 0"),
        ("KVSTORE_CLIENT_SAME_HOST", "maybe", "needs true or false, not 'maybe'"),
        ("KVSTORE_CLIENT_RDMA", "on", "needs one of off, auto, required, not 'on'"),
        ("KVSTORE_MASTERS", "http://a:1", "write 'a:1'"),
        ("KVSTORE_TOKEN_FILE", "/nonexistent", "can't be read"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(variable: str, value: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientConfig.of(environ={"KVSTORE_MASTERS": "a:1"} | {variable: value})
    assert wanted in str(caught.value) and variable in str(caught.value)


def test_a_misspelt_variable_is_refused_with_the_right_one() -> None:
    with pytest.raises(
        ConfigError, match=r"KVSTORE_CLIENT_DEADLINE: .*did you mean KVSTORE_CLIENT_DEADLINE_MS\?"
    ):
        ClientConfig.of("a:1", environ={"KVSTORE_CLIENT_DEADLINE": "7"})


def service_links() -> Iterator[str]:
    yield from ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_DIRECTORY", "PORT")
    yield from (f"PORT_7440_TCP{part}" for part in ("", "_PROTO", "_PORT", "_ADDR"))


@pytest.mark.parametrize("name", list(service_links()))
def test_variables_of_a_kubernetes_service_are_no_options(name: str) -> None:
    environ = {f"KVSTORE_CLIENT_{name}": "tcp://10.0.0.1:7440"}
    assert ClientConfig.of("a:1", environ=environ) == ClientConfig.of("a:1", environ={})


def test_the_secret_comes_from_one_place(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-the-file\n")
    path = str(tmp_path / "token")
    environ = {"KVSTORE_TOKEN_FILE": path}
    assert ClientConfig.of("a:1", environ=environ).token == "from-the-file"
    assert ClientConfig.of("a:1", environ=environ, token="argument").token == "argument"
    environ["KVSTORE_CLIENT_TOKEN"] = "x"
    with pytest.raises(ConfigError, match=r"keep one of them.*KVSTORE_TOKEN_FILE"):
        ClientConfig.of("a:1", environ=environ)
    (tmp_path / "token").write_text("x" * 2000)
    with pytest.raises(ConfigError, match=r"^token_file: .*/token: a token has at most 1024 bytes"):
        ClientConfig.of("a:1", environ={}, token_file=path)


def test_of_a_token_file_that_servers_share_a_client_takes_the_line_for_engines(tmp_path: Path) -> None:
    path = tmp_path / "token"
    environ = {"KVSTORE_TOKEN_FILE": str(path)}
    path.write_text("# ours\nsegment:s\nengine:new\nengine:old\nadmin:a\n")
    assert ClientConfig.of("a:1", environ=environ).token == "new"
    for text, wrong in (
        ("segment:s\nadmin:a\n", f"{path} has no line for the role engine"),
        ("engine:s\nsecret\n", f"{path}: line 2: of several tokens each has a role"),
        ("\n", f"{path} is empty"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"^token_file: {wrong}.*KVSTORE_TOKEN_FILE") as caught:
            ClientConfig.of("a:1", environ=environ)
        assert "secret" not in str(caught.value).replace("write the secret", "")


# ---- namespaces --------------------------------------------------------------------------------------


def test_one_namespace_too_many_is_refused_with_the_limit_and_the_remedy() -> None:
    with Client("127.0.0.1:1", environ={}) as client:
        opened = [client.namespace(str(number)) for number in range(4096)]
        with pytest.raises(
            ConfigError, match=r"^namespace: .*4096 namespaces a client: close one, or use another client"
        ):
            client.namespace("one too many")
        assert client.namespace("0").name == opened[0].name


@pytest.mark.parametrize("name", ["", "x" * 256, "\ud800", None, 7])
def test_a_name_that_can_be_none_is_refused(name: Any) -> None:
    with (
        Client("127.0.0.1:1", environ={}) as client,
        pytest.raises(ConfigError, match=r"^(namespace|identity): "),
    ):
        client.namespace(name)
