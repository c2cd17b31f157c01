"""Texts that people write: addresses, sizes, tokens, options, settings. Each is taken, or refused by its own error with a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_adapter.config import AdapterConfig
from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.selection import select_namespace, select_segment
from kvstore.common.config import SECTIONS
from kvstore.common.config.file import read_config_file
from kvstore.common.config.load import ConfigurationError, check_file, load
from kvstore.common.errors import RefusedError, StoreError
from kvstore.common.identity import check_identity
from kvstore.common.sizes import parse_size
from kvstore.master.metadata.etcd_options import parse_uri
from kvstore_client.address import Address, AddressError, check_listen_host, parse_addresses
from kvstore_client.config import CLIENT_OPTIONS, ClientConfig
from kvstore_client.errors import ConfigError
from kvstore_client.protocol import canonical_json
from kvstore_client.tokens import TokenRole, Tokens
from support.fuzzing import NUMBERS, fuzzed, says_why

ADDRESSES = (
    "10.0.0.7:7441",
    "[fd00::7]:7441",
    "master-0:7441",
    "localhost",
    "[::1]",
    "fe80::1%eth0",
    "http://a/b",
    "*:1",
    "1.2.3:4",
)


def texts_like(*originals: str) -> st.SearchStrategy[str]:
    """Pieces of these put together anew, and other characters in between."""
    pieces = st.one_of(
        st.sampled_from(originals),
        st.sampled_from(originals).flatmap(lambda t: st.integers(0, len(t)).map(lambda n: t[:n])),
        st.sampled_from(
            (":", "[", "]", ",", ".", "-", "%", "/", "@", " ", "0", "9" * 6, "\0", "٣", "\ud800", "é")
        ),
        st.text(max_size=6),
    )
    return st.lists(pieces, max_size=5).map("".join)


@given(texts_like(*ADDRESSES), st.sampled_from((None, 7440)))
@fuzzed(400)
def test_an_address_is_read_as_it_is_written_or_refused(text: str, default_port: int | None) -> None:
    try:
        address = Address.parse(text, default_port)
    except AddressError as error:
        says_why(error)
    else:
        assert Address.parse(str(address)) == address
        assert 0 < address.port < 65_536 and address.host
    for check in (lambda: parse_addresses(text, 3, default_port), lambda: check_listen_host(text)):
        try:
            check()
        except AddressError as error:
            says_why(error)


@given(texts_like("512MiB", "1.5TB", "4g", "8 GiB", "9" * 400, "9" * 5000))
@fuzzed(200)
def test_a_size_is_a_number_of_bytes_or_refused(text: str) -> None:
    try:
        size = parse_size(text)
    except ValueError as error:
        says_why(error)
        return
    assert size >= 0


@given(texts_like("engine:1f0c", "segment:77ab\n", "admin:c02d", "#", "secret", "\n"), st.text(max_size=8))
@fuzzed(200)
def test_tokens_are_read_or_refused_without_telling_them(text: str, presented: str) -> None:
    try:
        tokens = Tokens.parse(text)
    except ValueError as error:
        says_why(error)
        return
    for role in TokenRole:
        if secret := tokens.to_present(role):
            assert role in tokens.roles_of(secret)


OPTION_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from((*NUMBERS, -1, 0.5, float("nan"), float("inf"), b"bytes", "\ud800", "x" * 5000)),
    st.text(max_size=10),
    st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=3),
)


@given(
    st.dictionaries(
        st.one_of(st.sampled_from(sorted(CLIENT_OPTIONS)), st.text(max_size=6)), OPTION_VALUES, max_size=4
    ),
    st.one_of(texts_like(*ADDRESSES), OPTION_VALUES),
)
@fuzzed(250)
def test_options_of_the_client_and_the_adapter_are_taken_or_refused_by_name(
    options: dict[str, Any], masters: Any
) -> None:
    for make in (
        lambda: ClientConfig.of(masters, environ={}, **options),
        lambda: AdapterConfig.from_extra_config({"masters": masters, **options}, {}).client,
    ):
        try:
            config = make()
        except ConfigError as error:
            says_why(error)
            continue
        except TypeError:
            assert "masters" in options or "cls" in options or "environ" in options  # no option's name
            continue
        assert config.masters and 1 <= config.deadline_ms <= 600_000


@given(
    st.dictionaries(
        st.sampled_from([CLIENT_OPTIONS[name].environment for name in sorted(CLIENT_OPTIONS)]),
        texts_like("true", "1000", "-1", "+7", "off", "٣", "9" * 30),
        max_size=3,
    )
)
@fuzzed(150)
def test_the_environment_of_a_client_is_taken_or_refused_by_name(environ: dict[str, str]) -> None:
    try:
        ClientConfig.of("a:1", environ=environ)
    except ConfigError as error:
        says_why(error)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.section)
def test_settings_of_a_command_are_taken_or_refused_by_name(section: Any) -> None:
    @given(
        st.dictionaries(
            st.sampled_from(sorted(section.model_fields)),
            texts_like("true", "1000", "0.5", "-1", "1GiB", "memory:", "9" * 400, "nan", "inf", *ADDRESSES),
            max_size=3,
        )
    )
    @fuzzed(60)
    def check(options: dict[str, str]) -> None:
        try:
            load(section, options, environ={})
        except ConfigurationError as error:
            says_why(error)

    check()


@given(
    texts_like(
        "master:\n",
        "  host: a\n",
        "segment: {capacity: 1GiB}\n",
        "- x\n",
        "&a [*a]\n",
        "!!python/object:os.system x\n",
        "? {a: b}\n",
        "\t",
        "{",
    )
)
@fuzzed(150)
def test_a_configuration_file_is_taken_or_refused_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    faults, settings = check_file(path)
    assert settings >= 0 and all(faults)
    assert read_config_file(path, {}).sections is not None


def test_a_configuration_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("{" * 3000)
    faults, _ = check_file(path)
    assert len(faults) == 1 and "nested too deeply" in faults[0]


@given(texts_like("etcd://a:1,b:2/prefix", "?ttl_s=3", "&quota_bytes=1", "nan", "[::1]", "%zz"))
@fuzzed(150)
def test_a_uri_of_etcd_is_read_or_refused(uri: str) -> None:
    try:
        options = parse_uri(uri)
    except StoreError as error:
        says_why(error)
        return
    assert options.endpoints and options.key_prefix.isascii()


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.one_of(
        JSON.map(lambda value: repr(value).encode(errors="surrogatepass")),
        JSON,
        st.binary(max_size=40),
        st.just(b'{"a":' * 30_000),
    )
)
@fuzzed(200)
def test_an_identity_is_canonical_json_or_refused(value: Any) -> None:
    try:
        identity = value if isinstance(value, bytes) else canonical_json(value)
    except ValueError:
        return
    try:
        check_identity(identity)
    except RefusedError as error:
        says_why(error)
    else:
        assert identity.startswith(b"{")


@given(texts_like("0", "00ff", "ab" * 16, "10.0.0.7:1", "name"))
@fuzzed(100)
def test_a_choice_of_an_operator_is_one_thing_or_refused(text: str) -> None:
    segments = [
        {"index": i, "segment_id": f"{i:02x}ff" * 8, "address": f"10.0.0.{i}:1", "state": "live"}
        for i in range(3)
    ]
    namespaces = [{"id": f"{i:02x}ff" * 4, "name": f"name{i}", "epoch": 1} for i in range(3)]
    for select, views in ((select_segment, segments), (select_namespace, namespaces)):
        try:
            assert select(views, text) in views
        except AdminFailure as error:
            says_why(error)
