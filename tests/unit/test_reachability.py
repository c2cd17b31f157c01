"""A master knows from where a segment attaches, and says so when clients can't reach what the segment advertises."""

from __future__ import annotations

import pytest

from kvstore.common.reachability import address_doubt, peer_host


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5Bfd00::7%5D:51234", "fd00::7"),
        ("ipv6:[::1]:51234", "::1"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:51234", "10.0.0.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:51234", "fe80::1%eth0"),
        ("unix:/run/master.sock", ""),
        ("unix:", ""),
        ("ipv4:", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_peer_is_read_from_what_grpc_says(peer: str, host: str) -> None:
    assert peer_host(peer) == host


@pytest.mark.parametrize(
    ("advertised", "attached_from"),
    [
        ("127.0.0.1", "10.0.0.7"),
        ("localhost", "10.0.0.7"),
        ("::1", "fd00::7"),
        ("0.0.0.0", "10.0.0.7"),
        ("::", ""),
    ],
)
def test_an_address_that_leads_clients_elsewhere_is_doubted_with_the_remedy(
    advertised: str, attached_from: str
) -> None:
    doubt = address_doubt(advertised, attached_from)
    assert advertised in doubt and attached_from in doubt
    assert "--advertise-host" in doubt


@pytest.mark.parametrize(
    ("advertised", "attached_from"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("10.1.0.7", "10.0.0.7"),  # a network of its own for pages
        ("segment-7", "10.0.0.7"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "::1"),
        ("localhost", ""),
        ("10.0.0.7", "127.0.0.1"),  # by a proxy
    ],
)
def test_an_address_that_nothing_speaks_against_is_left_alone(advertised: str, attached_from: str) -> None:
    assert address_doubt(advertised, attached_from) == ""
