"""An identity names bytes: equal fields, equal namespace; any other field value, another namespace."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from kvstore_client import ConfigError, Identity, _native
from kvstore_client.identity import clip_name, named_identity

BASE = Identity(
    model="acme/model",
    kv_dtype="bfloat16",
    store_dtype="bfloat16",
    pool_class="MHATokenToKVPoolHost",
    byte_order="page_first",
    page_size=64,
    head_count=8,
    head_dim=128,
    v_head_dim=128,
)


def other_value(value: object) -> object:
    return value + 1 if isinstance(value, int) else f"{value}x"


@pytest.mark.parametrize("field", [field.name for field in fields(Identity)])
def test_every_field_changes_the_namespace(field: str) -> None:
    other = replace(BASE, **{field: other_value(getattr(BASE, field))})
    ids = {_native.namespace_id(identity.canonical(), 0) for identity in (BASE, other)}
    assert len(ids) == 2


def test_the_canonical_form_is_compact_sorted_json() -> None:
    text = BASE.canonical().decode()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert json.loads(text)["kind"] == "kv_pages"


def test_fields_at_their_default_are_left_out_so_that_later_ones_can_be_added() -> None:
    assert "tag" not in json.loads(BASE.canonical())
    assert json.loads(replace(BASE, tag="blue").canonical())["tag"] == "blue"


def test_moving_text_from_one_field_to_another_is_another_identity() -> None:
    assert (
        replace(BASE, revision="a", tag="b").canonical() != replace(BASE, revision="b", tag="a").canonical()
    )


def test_a_named_namespace_is_never_one_of_pages() -> None:
    assert named_identity(BASE.canonical().decode()[:200]) != BASE.canonical()


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, 7, None])
def test_a_name_that_can_not_be_one_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match=r"^namespace: "):
        named_identity(name)  # type: ignore[arg-type]


def test_an_identity_over_the_protocol_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="65536"):
        replace(BASE, model="x" * 70_000).canonical()


def test_a_long_name_is_cut_at_a_character() -> None:
    assert clip_name("ä" * 200) == "ä" * 127


def test_the_canonical_form_stays_what_pages_were_stored_under() -> None:
    assert BASE.canonical().decode() == (
        '{"byte_order":"page_first","format_version":1,"head_count":8,"head_dim":128,"kind":"kv_pages",'
        '"kv_dtype":"bfloat16","model":"acme/model","page_size":64,"pool_class":"MHATokenToKVPoolHost",'
        '"store_dtype":"bfloat16","v_head_dim":128}'
    )
