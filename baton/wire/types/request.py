"""One request as a worker sees it, and what it gives back token by token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a choice ended. A worker proposes STOP (end token, stop id) or LENGTH; the router decides."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Complete sampling state apart from ids: every field decided by the router's validator, none optional later.

    `max_tokens` counts output tokens of one choice, output_ids included. `top_k` 0 and `top_p` 1 are off. Presence and
    frequency penalties count output ids only, repetition_penalty prompt and output ids. `num_logprobs` None: none wanted;
    0: the chosen token only. Noise is keyed by (seed, choice, output index, token id). `stop_ids` end a choice like `eos_ids`,
    also under `ignore_eos`; both are masked while fewer than `min_tokens` output tokens exist.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request as a worker sees it: the whole generation state.

    `output_ids` are accepted tokens (recovery); the next output index is `len(output_ids)`, and only a single choice may
    have any. `choices` are choice numbers, (0, ..., n - 1) or one survivor. `deadline_s`: seconds left for the request.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    choices: tuple[int, ...] = (0,)
    output_ids: tuple[int, ...] = ()
    tenant: str = ""
    deadline_s: float = 600.0

    @property
    def total_len(self) -> int:
        """Positions whose KV must exist before the next token is sampled."""
        return len(self.prompt_ids) + len(self.output_ids)


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. `logprob` and `top` (id, logprob; best first) only if asked for, of the raw distribution."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A choice's first token, sampled on prefill; `finish` set when it already ends the choice."""

    choice: int
    token: Token
    finish: FinishReason | None = None
