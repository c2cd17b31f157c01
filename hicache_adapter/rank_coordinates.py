"""Where this process stands among the ranks of its engine, read once from what SGLang hands to a storage backend. Its
versions name more and more of it; what an older one does not name is a size of 1.
"""

from typing import Any, NamedTuple


class RankCoordinates(NamedTuple):
    """One rank."""

    model_name: str = ""
    is_mla_model: bool = False
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    dcp_size: int = 1
    tp_lcm_size: int = 0
    """Head groups that a page is to be cut into; 0: one a rank."""
    enable_storage_metrics: bool = False

    @classmethod
    def of(cls, storage_config: Any) -> "RankCoordinates":
        """What SGLang's configuration says."""
        said: dict[str, Any] = {}
        for name, default in cls._field_defaults.items():
            value = getattr(storage_config, name, None)
            if value is not None:
                said[name] = type(default)(value)
        if not hasattr(storage_config, "enable_storage_metrics"):
            said["enable_storage_metrics"] = True  # 0.5.9 and older don't say, and ask only where they are on
        return cls(**said)

    def __str__(self) -> str:
        return (
            f"tp {self.tp_rank}/{self.tp_size} pp {self.pp_rank}/{self.pp_size} "
            f"attn_cp {self.attn_cp_rank}/{self.attn_cp_size}"
        )
