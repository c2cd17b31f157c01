"""How an etcd URI is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kvstore.common.config.master import MasterSettings
from kvstore.common.errors import StoreError
from kvstore.master.metadata.etcd_options import EtcdOptions, parse_uri


def test_endpoints_prefix_and_options_are_read_and_have_defaults() -> None:
    assert parse_uri("etcd://a") == EtcdOptions(("a:2379",))
    options = parse_uri("etcd://a:1,b:2,c/prod/eu-1?ttl_s=5&quota_bytes=8589934592&compact_period_s=0")
    assert options.endpoints == ("a:1", "b:2", "c:2379")
    assert parse_uri("etcd://[::1]:1,b,[fd00::7]/p").endpoints == ("[::1]:1", "b:2379", "[fd00::7]:2379")
    assert options.key_prefix == b"/prod/eu-1/"
    assert (options.ttl_s, options.quota_bytes, options.compact_period_s) == (5.0, 8 << 30, 0.0)


@pytest.mark.parametrize(
    "uri",
    [
        "etcd://",
        "etcd:///x",
        "etcd://a:0",
        "etcd://a:x",
        "etcd://a:70000",
        "etcd://user@a:1",
        "etcd://::1:2379",
        "etcd://[a]:1",
        "etcd://a:1#b",
        "etcd://a:1,a:1",
        "etcd://a:1,,b:1",
        "etcd://" + ",".join(f"a{i}:1" for i in range(17)),
        "etcd://a/white space",
        "etcd://a/x//y",
        "etcd://a/" + "x" * 129,
        "etcd://a?ttl=3",
        "etcd://a?ttl_s=0.1",
        "etcd://a?ttl_s=many",
        "etcd://a?ttl_s=nan",
        "etcd://a?quota_bytes=1",
    ],
)
def test_a_uri_that_is_wrong_is_refused_and_named(uri: str) -> None:
    with pytest.raises(StoreError, match="etcd:"):
        parse_uri(uri)


def test_a_master_that_others_could_not_reach_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValidationError, match="advertise_host"):
        MasterSettings(host="0.0.0.0", metadata="etcd://a")
    assert MasterSettings(host="0.0.0.0", advertise_host="m0", metadata="etcd://a").advertise_host == "m0"
    assert MasterSettings(host="0.0.0.0", metadata="rocksdb:///x").advertise_host == ""
