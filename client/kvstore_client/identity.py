"""What makes bytes interchangeable: the identity of a namespace and its canonical encoding."""

from dataclasses import dataclass, fields

from kvstore_client.errors import ConfigError
from kvstore_client.protocol import IDENTITY_BYTES_MAX, NAME_BYTES_MAX, canonical_json


@dataclass(frozen=True)
class Identity:
    """Everything that the bytes of a KV page depend on, and nothing else.

    Two instances share pages exactly when all fields are equal. What only says *which part* of a page an
    object holds (ranks, layer and head ranges) is not here: that is the `Shard`. A field with its default
    value is left out of the canonical form, so that a later release can add fields without changing the
    identities of those who don't use them.
    """

    model: str
    kv_dtype: str  # what the bytes mean: "bfloat16", "fp8_e4m3", ...
    store_dtype: str  # what the pool stores them as; fp8 pools say "uint8"
    pool_class: str  # SGLang's host pool class: MHA, MLA, ...
    byte_order: str  # host layout, and the interface where it changes the order
    page_size: int  # tokens
    head_count: int = 0  # KV heads of the whole model; 0 for MLA
    head_dim: int = 0
    v_head_dim: int = 0
    row_dim: int = 0  # MLA: elements a token and layer
    device_layout: str = ""  # order within a layer on the device ("hnd", ...); empty: tokens, heads, width
    kv_scales: str = ""  # fingerprint of the file of scales for an fp8 KV cache
    draft_layer_count: int = 0  # layers of a packed draft model, behind the model's own
    draft_model: str = ""
    revision: str = ""
    weights: str = (
        ""  # fingerprint of the weights, where no revision was given; "dummy/..." where they are made up
    )
    adapters: str = ""  # fingerprint of the LoRA adapters that the engine starts with
    weight_version: str = ""  # of weights that are exchanged while the engine runs; empty: never were
    quantization: str = ""
    model_overrides: str = ""
    tag: str = ""  # the operator's own word, to keep fleets apart
    pool: str = ""  # SGLang's name of a side pool; empty for the KV pool
    state_shape: str = ""  # shapes and dtypes of what is not heads x width: states, rows of packed bytes
    stage: str = ""  # pipeline stage, where the pool doesn't say which of the model's layers it holds
    format_version: int = 1

    def canonical(self) -> bytes:
        """The encoding whose hash names the namespace: JSON, sorted keys, no white space, UTF-8."""
        values: dict[str, object] = {"kind": "kv_pages"}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                values[field.name] = value
        values["format_version"] = self.format_version
        return _identity(values)

    def summary(self) -> str:
        """One line for people: every field that is not at its default."""
        return self.canonical().decode()

    @property
    def name(self) -> str:
        """A short name for listings, within the protocol's limit."""
        revision = f"@{self.revision}" if self.revision else ""
        pool = f" {self.pool}" if self.pool else ""
        return clip_name(f"{self.model}{revision}{pool} {self.kv_dtype} {self.byte_order} p{self.page_size}")


def named_identity(name: str) -> bytes:
    """Identity of a namespace that is known by a name alone. ConfigError when the name can't be one."""
    if not isinstance(name, str) or not name:
        raise ConfigError("namespace", f"needs an Identity or a name, not {name!r}")
    size = len(name.encode(errors="surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise ConfigError(
            "namespace", f"a name has at most {NAME_BYTES_MAX} bytes of UTF-8, this one has {size}"
        )
    return _identity({"kind": "named", "name": name, "format_version": 1})


def _identity(values: dict[str, object]) -> bytes:
    try:
        encoded = canonical_json(values)
    except UnicodeEncodeError as error:
        problem = f"has half a character (a surrogate), which is no Unicode: {ascii(error.object)[:200]}"
        raise ConfigError("identity", problem) from None
    if len(encoded) > IDENTITY_BYTES_MAX:
        raise ConfigError(
            "identity", f"has {len(encoded)} bytes, the limit is {IDENTITY_BYTES_MAX}; shorten model or tag"
        )
    return encoded


def clip_name(name: str) -> str:
    """The longest head of `name` within the protocol's limit that is still valid UTF-8."""
    return name.encode(errors="replace")[:NAME_BYTES_MAX].decode(errors="ignore")
