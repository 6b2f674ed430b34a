"""How a client wants to sample: the fields both doors share, read and checked against the limits and the model."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from baton.cluster.config import Limits
from baton.wire.errors import InvalidRequest
from baton.wire.types import ModelCard, SamplingParams
from router.schema import Fields, invalid, is_number

MAX_STOP_IDS = 128
MAX_INT = (1 << 31) - 1
TOKEN_ID = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request but for its prompt. `max_tokens` None: not given; `params.max_tokens` is set once the prompt is known."""

    params: SamplingParams
    max_tokens: int | None
    n: int
    stop: tuple[str, ...]
    include_stop: bool
    skip_special: bool
    seeded: bool


def read_asked(fields: Fields, card: ModelCard, limits: Limits, chat: bool) -> Asked:
    """Raises InvalidRequest naming the first field at fault."""
    n = fields.integer("n", 1, limits.num_choices, 1)
    if fields.integer("best_of", 1, limits.num_choices, n) != n:
        raise InvalidRequest("`best_of` is not supported unless it equals `n`; leave it out.", param="best_of")
    return Asked(
        params=_params(fields, card, limits, chat),
        max_tokens=_max_tokens(fields),
        n=n,
        stop=_stop(fields.get("stop"), limits),
        include_stop=fields.boolean("include_stop_str_in_output"),
        skip_special=fields.boolean("skip_special_tokens", True),
        seeded=fields.has("seed"),
    )


def _params(fields: Fields, card: ModelCard, limits: Limits, chat: bool) -> SamplingParams:
    seed = fields.integer("seed", -(1 << 63), (1 << 63) - 1, None)
    return SamplingParams(
        max_tokens=0,
        temperature=fields.number("temperature", 0, 2, 1.0),
        top_p=fields.number("top_p", 0, 1, 1.0, above=True),
        top_k=max(0, fields.integer("top_k", -1, MAX_INT, 0)),
        min_p=fields.number("min_p", 0, 1, 0.0),
        presence_penalty=fields.number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0),
        repetition_penalty=fields.number("repetition_penalty", 0, 100, 1.0, above=True),
        logit_bias=_logit_bias(fields.get("logit_bias"), card, limits),
        seed=secrets.randbits(63) if seed is None else seed % (1 << 64),  # the sampler's seed is 64 bits without sign
        min_tokens=fields.integer("min_tokens", 0, MAX_INT, 0),
        ignore_eos=fields.boolean("ignore_eos"),
        eos_ids=card.eos_ids,
        stop_ids=_stop_ids(fields.get("stop_token_ids"), card),
        num_logprobs=_num_logprobs(fields, limits, chat),
    )


def _max_tokens(fields: Fields) -> int | None:
    old = fields.integer("max_tokens", 1, None, None)
    new = fields.integer("max_completion_tokens", 1, None, None)
    if old is not None and new is not None and old != new:
        raise InvalidRequest("`max_tokens` and `max_completion_tokens` differ; give one.", param="max_tokens")
    return new if old is None else old


def _stop(value: object, limits: Limits) -> tuple[str, ...]:
    if value is None:
        return ()
    stop = [value] if isinstance(value, str) else value
    if not isinstance(stop, list) or len(stop) > limits.num_stop:
        raise invalid("stop", f"must be a string or a list of at most {limits.num_stop} strings", value)
    for text in stop:
        if not isinstance(text, str) or not 0 < len(text) <= limits.stop_len:
            raise invalid("stop", f"must hold strings of 1 to {limits.stop_len} characters", text)
    return tuple(stop)


def _stop_ids(value: object, card: ModelCard) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_STOP_IDS:
        raise invalid("stop_token_ids", f"must be a list of at most {MAX_STOP_IDS} token ids", value)
    check_ids("stop_token_ids", value, card)
    return tuple(value)


def _logit_bias(value: object, card: ModelCard, limits: Limits) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > limits.num_logit_bias:
        raise invalid("logit_bias", f"must be an object of at most {limits.num_logit_bias} token ids", value)
    return tuple(_bias(key, bias, card) for key, bias in value.items())


def _bias(key: object, bias: object, card: ModelCard) -> tuple[int, float]:
    token_id = int(key) if isinstance(key, str) and TOKEN_ID.fullmatch(key) else key
    if type(token_id) is not int or not 0 <= token_id < card.vocab_size:
        raise invalid("logit_bias", f"must have token ids from 0 to {card.vocab_size - 1} as keys", token_id)
    if not is_number(bias) or not -100 <= bias <= 100:
        raise invalid("logit_bias", "must have numbers from -100 to 100 as values", bias)
    return token_id, float(bias)


def _num_logprobs(fields: Fields, limits: Limits, chat: bool) -> int | None:
    """Alternatives per token: chat says it with `logprobs` and `top_logprobs`, completions with a number."""
    if not chat:
        return fields.integer("logprobs", 0, limits.num_top_logprobs, None)
    num_top = fields.integer("top_logprobs", 0, limits.num_top_logprobs, None)
    if fields.boolean("logprobs"):
        return num_top or 0
    if num_top is not None:
        raise InvalidRequest("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    return None


def check_ids(param: str, ids: list[object], card: ModelCard) -> None:
    """Raises InvalidRequest for the first of `ids` that is no token id of the model."""
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < card.vocab_size:
            raise invalid(param, f"must hold token ids from 0 to {card.vocab_size - 1}", token_id)
