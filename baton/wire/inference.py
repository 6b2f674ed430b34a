"""What the public gRPC door says, as frozen types: the router fills them, the client reads them. Durations in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from baton.wire.types import FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    """Counted from accepted tokens: the prompt once whatever `n`, the output of all choices (an end token counts)."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A request's timeline as a client sees it: named spans in order, and the sums that they add up to."""

    spans: tuple[tuple[str, float], ...] = ()
    ttft_s: float = 0.0
    second_token_s: float = 0.0
    total_s: float = 0.0
    transfer_bytes: int = 0
    transport: str = ""
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's bytes and natural log probability; `top` are the likeliest at its place, best first."""

    token: bytes
    id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice gained. `finish` is set in the choice's last delta."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """One message of an answer. `usage` and, if asked for, `timeline` come in the last one only."""

    request_id: str
    deltas: tuple[Delta, ...] = ()
    usage: Usage | None = None
    timeline: TimelineView | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model. `max_model_len`: tokens of prompt and output together, at most."""

    id: str
    max_model_len: int
