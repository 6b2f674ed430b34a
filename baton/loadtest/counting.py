"""How many tokens a message carries. A server may put several in one, so messages are not tokens.

The first rule that applies to an answer counts all of it, and the report says which:

token_ids  the server names every message's tokens, as ids or as a running total (stream_options.continuous_usage_stats)
text       only the last message says how many there were: they are shared out by the length of each message's text
messages   nothing says: each message counts as one token, and rates may be too low
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.loadtest.record import Answer, Message

TOKEN_IDS, TEXT, MESSAGES = "token_ids", "text", "messages"


def count(answer: Answer) -> tuple[tuple[Message, ...], int, str]:
    """The answer's messages with their tokens, all its tokens, and the rule that counted them."""
    deltas = answer.deltas
    named = [delta.num_tokens for delta in deltas if delta.num_tokens is not None]
    if deltas and len(named) == len(deltas):
        return _messages(answer, named), max(sum(named), answer.output_tokens or 0), TOKEN_IDS
    if answer.output_tokens is not None:
        shares = share(answer.output_tokens, [delta.num_chars for delta in deltas])
        return _messages(answer, shares), answer.output_tokens, TEXT
    return _messages(answer, [1] * len(deltas)), len(deltas), MESSAGES


def share(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts proportional to `weights`, each at least 1 if `total` allows; the largest remainders round up."""
    least = 1 if total >= len(weights) else 0
    rest = total - least * len(weights)
    above = [max(weight, 1) for weight in weights]
    exact = _proportional(total, above)
    # A part's claim is what it should have beyond the least it already has.
    claims = [max(part - least, 0.0) for part in exact]
    scale = rest / sum(claims) if sum(claims) else 0.0
    parts = [int(claim * scale + 1e-9) for claim in claims]
    missing = rest - sum(parts)
    by_remainder = sorted(range(len(claims)), key=lambda i: parts[i] - claims[i] * scale)
    for i in by_remainder[:missing]:
        parts[i] += 1
    return [least + part for part in parts]


def _proportional(total: int, weights: Sequence[int]) -> list[float]:
    whole = sum(weights)
    return [total * weight / whole for weight in weights]


def _messages(answer: Answer, tokens: Sequence[int]) -> tuple[Message, ...]:
    return tuple(Message(delta.at_s, num) for delta, num in zip(answer.deltas, tokens, strict=True))
