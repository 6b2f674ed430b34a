"""What an engine is told before it starts; whole and frozen."""

from __future__ import annotations

from dataclasses import dataclass

KV_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`max_step_tokens` is a step's budget: decode rows first, prefill chunks get the rest. `growth_reserve` tokens beyond the
    prompt are promised to each choice. `num_threads` None leaves torch's choice; `cpus` pins the engine thread and its team.
    Raises ValueError on a value that cannot work.
    """

    num_blocks: int
    block_size: int = 64
    max_num_seqs: int = 64
    max_step_tokens: int = 512
    growth_reserve: int = 256
    num_threads: int | None = None
    cpus: tuple[int, ...] = ()
    kv_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_step_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.growth_reserve < 0:
            raise ValueError(f"growth_reserve must not be negative: {self.growth_reserve}")
        if self.kv_dtype not in KV_DTYPES:
            raise ValueError(f"kv_dtype must be one of {', '.join(KV_DTYPES)}, not {self.kv_dtype!r}")

    @property
    def capacity_tokens(self) -> int:
        """KV tokens that the whole pool holds."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)
