"""Token ids that remember what they were sampled from, so that a foreign, lost or repeated token gives itself away."""

from __future__ import annotations

Origin = tuple[str, int, tuple[int, ...], object]
"""Request, choice, the output ids before the token, and who sampled it."""

_origins: list[Origin] = []
_ids: dict[Origin, int] = {}


def sample(request: str, choice: int, context: tuple[int, ...], sampler: object) -> int:
    """Another sampler gives another token: the worst of recipes."""
    origin = (request, choice, context, sampler)
    if origin not in _ids:
        _ids[origin] = len(_origins)
        _origins.append(origin)
    return _ids[origin]


def follows(token_id: int, request: str, choice: int, context: tuple[int, ...]) -> bool:
    """Whether the token was sampled for this choice after exactly `context`."""
    return _origins[token_id][:3] == (request, choice, context)
