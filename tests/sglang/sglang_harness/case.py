"""One configuration of an engine rank, in a form that travels to a worker process as JSON."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Case:
    """What is built: device pool, host pool, controller, storage backend."""

    kind: str = "mha"  # mha, mha_asymmetric or mla
    layout: str = "page_first"
    controller: str = "hybrid"  # hybrid (the server's) or base (PD decode's)
    interface_v1: int = 1
    allocator: str = "default"  # or shm
    backend: str = "dynamic"  # or file: SGLang's own, to test the harness
    dtype: str = "bfloat16"
    page_size: int = 16
    pages: int = 140  # two batches of SGLang's
    layers: int = 4
    heads: int = 4  # of this rank
    head_dim: int = 16
    tp_rank: int = 0
    tp_size: int = 1
    tp_lcm_size: int | None = None
    pp_rank: int = 0
    pp_size: int = 1
    start_layer: int = 0  # of this pipeline stage; it has `layers`
    rendezvous: str = (
        ""  # a new file in which the tp_size ranks find each other; without it each is on its own
    )
    model_name: str = "acme/model"
    seed: int = 1
    token_base: int = 1000
    metrics: bool = False
    side_pools: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> its window and geometry
    checkpoints: list[int] = field(
        default_factory=list
    )  # pages after which windows are backed up; default: all
    draft_model: str = ""  # that SGLang says it serves
    options: dict[str, Any] = field(default_factory=dict)  # of the adapter

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Case":
        """The inverse."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})

    def window(self, name: str) -> int:
        """Pages of a side pool that a prefix needs; states need one."""
        return int(self.side_pools[name].get("window", 1))

    def follows_kv(self, name: str) -> bool:
        """Whether the side pool has a page for every KV page, in the same slots."""
        return name == "draft"

    def side_case(self, name: str) -> "Case":
        """An attention side pool as if it were the KV pool of an engine of its own."""
        mine = {key: value for key, value in self.side_pools[name].items() if key != "window"}
        return replace(self, side_pools={}, **({"kind": "mha"} | mine))

    @property
    def node_ends(self) -> list[int]:
        """Where SGLang's tree nodes end, in pages: after each, the windows before it are backed up."""
        return self.checkpoints or [self.pages]

    @property
    def tokens(self) -> list[int]:
        """The prompt: `pages` whole pages."""
        return list(range(self.token_base, self.token_base + self.pages * self.page_size))

    @property
    def extra_config(self) -> dict[str, Any]:
        """What the operator would pass as --hicache-storage-backend-extra-config."""
        config: dict[str, Any] = dict(self.options)
        if self.backend == "dynamic":
            config |= {
                "backend_name": "kvstore",
                "module_path": "hicache_adapter",
                "class_name": "KVStoreHiCache",
                "interface_v1": self.interface_v1,
            }
        if self.tp_lcm_size:
            config["tp_lcm_size"] = self.tp_lcm_size
        return config
