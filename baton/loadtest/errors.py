"""What ends a load test before it has figures, and what ends one request of it."""

from __future__ import annotations


class BenchError(Exception):
    """The load test cannot run as asked; the message says why and what to change."""


class RequestFailed(Exception):
    """One request failed. `kind` is short and countable, such as `http 429`; `detail` is what the server said."""

    def __init__(self, kind: str, detail: str = ""):
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail
