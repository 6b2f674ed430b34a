"""Our errors over the public gRPC door: a status, its text, and details in the trailing metadata."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from baton.wire.errors import STATUS, BatonError, Internal, TransferError

PARAM_KEY = "baton-error-param"
CODE_KEY = "baton-error-code"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""gRPC's own key: when a client may come back."""

Metadata = tuple[tuple[str, str], ...]


def trailing_of(error: BatonError) -> Metadata:
    """The details of `error` as trailing metadata: printable ASCII, as gRPC wants it."""
    pushback = None if error.retry_after_s is None else str(round(error.retry_after_s * 1000))
    details = ((PARAM_KEY, error.param), (CODE_KEY, error.code), (PUSHBACK_KEY, pushback))
    return tuple((key, _ascii(value)) for key, value in details if value is not None)


def error_of(code: grpc.StatusCode, text: str, trailing: Iterable[tuple[str, str | bytes]]) -> BatonError:
    """The error that a server raised. One from elsewhere (a broken channel) becomes one of its status."""
    details = {key: value for key, value in trailing if isinstance(value, str)}
    pushback = details.get(PUSHBACK_KEY, "")
    return _kind(code, details.get(CODE_KEY))(
        text,
        param=details.get(PARAM_KEY),
        code=details.get(CODE_KEY),
        retry_after_s=int(pushback) / 1000 if pushback.isdecimal() else None,
    )


def _kind(code: grpc.StatusCode, detail: str | None) -> type[BatonError]:
    """The class with this status and code; without such a code the least specific one with this status."""
    kinds = [kind for kind, status in STATUS if status.grpc == code.name and kind not in (BatonError, TransferError)]
    named = [kind for general in kinds for kind in (general, *general.__subclasses__()) if kind.code == detail]
    return (named or kinds[::-1] or [Internal])[0]


def _ascii(value: str) -> str:
    return value.encode("ascii", "backslashreplace").decode()
