"""host:port is read and written in one way, and what can't be an address is refused with what was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client.address import (
    Address,
    AddressError,
    check_listen_host,
    is_loopback,
    is_wildcard,
    parse_addresses,
)

HOSTS = st.one_of(
    st.ip_addresses(v=4).filter(lambda ip: not ip.is_unspecified).map(str),
    st.ip_addresses(v=6).filter(lambda ip: not ip.is_unspecified).map(str),
    st.from_regex(r"[a-z]([a-z0-9_-]{0,20}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,8}[a-z0-9])?){0,3}", fullmatch=True),
)


@given(HOSTS, st.integers(1, 65_535))
def test_what_is_written_is_read_again(host: str, port: int) -> None:
    address = Address.of(host, port)
    assert Address.parse(str(address)) == address == (host, port)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_typed_error(text: str) -> None:
    try:
        address = Address.parse(text)
    except AddressError:
        return  # any other error fails the test
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "host", "port", "written"),
    [
        ("10.0.0.7:7441", "10.0.0.7", 7441, "10.0.0.7:7441"),
        (" master-0.kv.svc.cluster.local.:1 ", "master-0.kv.svc.cluster.local.", 1, None),
        ("kv_master:7441", "kv_master", 7441, None),
        ("[::1]:7441", "::1", 7441, None),
        ("[fe80::1%eth0]:7441", "fe80::1%eth0", 7441, None),
        ("master-0", "master-0", 9, "master-0:9"),
        ("[::1]", "::1", 9, "[::1]:9"),
    ],
)
def test_hosts_of_every_kind_are_read(text: str, host: str, port: int, written: str | None) -> None:
    address = Address.parse(text, default_port=9)
    assert address == (host, port)
    assert str(address) == (written or text.strip())


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("::1:7441", "in brackets, as [::1]:7441"),
        ("fd00::7", "in brackets, and its port: [fd00::7"),
        ("http://master-0:7441", "write 'master-0:7441'"),
        ("grpc://user@[::1]:7441/x", "write '[::1]:7441'"),
        ("master-0:7441/path", "without path or user"),
        ("user@master-0:7441", "without path or user"),
        ("0.0.0.0:7441", "name one of its addresses"),
        ("[::]:7441", "name one of its addresses"),
        ("*:7441", "name one of its addresses"),
        ("master-0", "names no port"),
        ("master-0:", "names no port"),
        (":7441", "names no host"),
        ("", "names no host"),
        ("a:0", "1..65535"),
        ("a:65536", "1..65535"),
        ("a:-1", "1..65535"),
        ("a:\u0663", "1..65535"),
        ("a:" + "9" * 5000, "1..65535"),
        ("10.0.0.256:1", "not an IPv4 address"),
        ("7441:7441", "not an IPv4 address"),
        ("[10.0.0.1]:1", "brackets hold an IPv6 address"),
        ("[::1]7441", "brackets hold an IPv6 address"),
        ("[::1", "brackets hold an IPv6 address"),
        ("-a:1", "no host name"),
        ("m\u00e4ster:1", "no host name"),
        ("a b:1", "no host name"),
        ("a..b:1", "no host name"),
        ("a:1:2", "more than one colon"),
    ],
)
def test_what_is_no_address_is_refused_with_what_was_meant(text: str, remedy: str) -> None:
    with pytest.raises(AddressError) as caught:
        Address.parse(text)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("port", [0, 65_536, True, "1", None])
def test_a_port_that_is_none_is_refused(port: object) -> None:
    with pytest.raises(AddressError, match=r"1\.\.65535"):
        Address.of("a", port)  # type: ignore[arg-type]


def test_lists_drop_doubles_and_keep_their_order() -> None:
    assert list(map(str, parse_addresses("b, a:1,,b:7,[::1]", 3, default_port=7))) == [
        "b:7",
        "a:1",
        "[::1]:7",
    ]
    with pytest.raises(AddressError, match=r"1\.\.2 addresses"):
        parse_addresses(["a:1", "b:1", "c:1"], 2)
    with pytest.raises(AddressError, match=r"1\.\.2 addresses"):
        parse_addresses(" , ", 2)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0::0", "*", ""])
def test_wildcards_can_be_listened_on(host: str) -> None:
    assert is_wildcard(host)
    assert check_listen_host(host) == host


def test_a_listening_host_may_have_brackets_but_no_port() -> None:
    assert check_listen_host("[::1]") == "::1"
    for host in ("[]", "[*]", "[a]"):
        with pytest.raises(AddressError, match="no host name"):
            check_listen_host(host)
    assert str(Address("::", 0)) == "[::]:0"
    for host in ("127.0.0.1:7441", "[::1]:7441", "a:1"):
        with pytest.raises(AddressError, match="the port has an option of its own"):
            check_listen_host(host)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("db.localhost", True),
        ("10.0.0.1", False),
        ("::2", False),
        ("localhost.example.org", False),
        ("0.0.0.0", False),
    ],
)
def test_loopback_is_known_in_every_form(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
