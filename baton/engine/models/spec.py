"""What a decoder-only model is made of, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: `theta` is the base, `factor` the linear stretch (1 for none)."""

    theta: float
    factor: float = 1.0

    def __str__(self) -> str:
        kind = "default" if self.factor == 1.0 else f"linear:{self.factor:g}"
        return f"{kind} theta={self.theta:g}"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Llama and its like: pre-norm blocks of grouped-query attention and a gated SiLU feed-forward.

    `windows` has one entry a layer: how many last positions it attends to, or None for all. `qk_norm`: queries and keys are
    normed per head before rotation. `tied`: the head is the embedding.
    """

    architecture: str
    vocab_size: int
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    tied: bool
    max_model_len: int
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def problem(self) -> str | None:
        """Why no decoder can be built to this, or None."""
        if self.num_heads % self.num_kv_heads:
            return f"{self.num_heads} query heads cannot share {self.num_kv_heads} KV heads evenly"
        if self.head_dim % 2:
            return f"head_dim {self.head_dim} is odd, and rotary positions turn pairs"
        if len(self.windows) != self.num_layers:
            return f"attention windows are named for {len(self.windows)} of {self.num_layers} layers"
        return None

    def describe(self) -> str:
        """All that shapes the arithmetic apart from rope, in one line: two models that differ here must not share KV."""
        windows = {window: sum(w == window for w in self.windows) for window in dict.fromkeys(self.windows)}
        flags = [name for name in ("tied", "qkv_bias", "out_bias", "mlp_bias", "qk_norm") if getattr(self, name)]
        return " ".join(
            [
                self.architecture,
                f"layers={self.num_layers}",
                f"hidden={self.hidden}",
                f"heads={self.num_heads}/{self.num_kv_heads}x{self.head_dim}",
                f"ffn={self.ffn}",
                f"vocab={self.vocab_size}",
                f"eps={self.norm_eps:g}",
                *(f"window={window}x{count}" for window, count in windows.items() if window is not None),
                *flags,
            ]
        )
