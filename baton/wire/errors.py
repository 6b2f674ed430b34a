"""The errors that cross a door, and the one table from them to gRPC status and HTTP.

BatonError
├── InvalidRequest          the client's fault; `param` names the field
│   ├── ContextOverflow     prompt (+ max_tokens) over the context
│   └── UnknownModel
├── Unauthenticated, PermissionDenied
├── Overloaded              try later; `retry_after_s`
│   └── QueueFull
├── Unavailable             no worker, or attempts exhausted; `retry_after_s`
├── DeadlineExceeded        the request's deadline passed
├── Cancelled               the client left
├── PairingRefused          two workers (or a worker and a router) that cannot work together; names field and values
├── TransferError           KV stale, foreign, torn or mislabelled; `reason` is counted
└── Internal                our own fault
"""

from __future__ import annotations

from dataclasses import dataclass


class BatonError(Exception):
    """Base of all. `code` is OpenAI's machine-readable code or None, `param` the request field at fault or None."""

    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class InvalidRequest(BatonError):
    """The request itself is wrong; sending it again will not help."""


class ContextOverflow(InvalidRequest):
    """Prompt, or prompt and max_tokens, do not fit the context; the message names both numbers."""

    code = "context_length_exceeded"


class UnknownModel(InvalidRequest):
    """No such model here."""

    code = "model_not_found"


class Unauthenticated(BatonError):
    """No key, or a wrong one."""

    code = "invalid_api_key"


class PermissionDenied(BatonError):
    """A valid key without the scope, or a peer without the role."""


class Overloaded(BatonError):
    """Too much work right now; `retry_after_s` says when to come back."""

    code = "overloaded"


class QueueFull(Overloaded):
    """The router's waiting queue is at its bound."""

    code = "queue_full"


class Unavailable(BatonError):
    """No worker can serve the request, or its attempts are used up."""

    code = "unavailable"


class DeadlineExceeded(BatonError):
    """The request's deadline passed before it ended."""

    code = "deadline_exceeded"


class Cancelled(BatonError):
    """The client left, or asked for the end."""

    code = "cancelled"


class PairingRefused(BatonError):
    """Two processes that cannot work together: the message names the field and both values."""

    code = "pairing_refused"


class TransferError(BatonError):
    """KV that may not be used. `reason` is one of the counted words (see kvtransfer/protocol/receiver.py)."""

    def __init__(self, reason: str, message: str = ""):
        super().__init__(message or reason)
        self.reason = reason


class Internal(BatonError):
    """A fault of ours: logged with its cause, told to the client without details."""

    code = "internal_error"


@dataclass(frozen=True, slots=True)
class Status:
    """How an error leaves: gRPC status name, HTTP status, OpenAI error type."""

    grpc: str
    http: int
    type: str


# Most specific class first: the first match wins.
STATUS: tuple[tuple[type[BatonError], Status], ...] = (
    (UnknownModel, Status("NOT_FOUND", 404, "invalid_request_error")),
    (ContextOverflow, Status("INVALID_ARGUMENT", 400, "invalid_request_error")),
    (InvalidRequest, Status("INVALID_ARGUMENT", 400, "invalid_request_error")),
    (Unauthenticated, Status("UNAUTHENTICATED", 401, "authentication_error")),
    (PermissionDenied, Status("PERMISSION_DENIED", 403, "permission_error")),
    (Overloaded, Status("RESOURCE_EXHAUSTED", 429, "rate_limit_error")),
    (Unavailable, Status("UNAVAILABLE", 503, "service_unavailable_error")),
    (DeadlineExceeded, Status("DEADLINE_EXCEEDED", 504, "timeout_error")),
    (Cancelled, Status("CANCELLED", 499, "cancelled")),
    (PairingRefused, Status("FAILED_PRECONDITION", 503, "service_unavailable_error")),
    (TransferError, Status("DATA_LOSS", 502, "transfer_error")),
    (BatonError, Status("INTERNAL", 500, "internal_error")),
)


def status_of(error: BatonError) -> Status:
    """The table's row for `error`."""
    return next(status for kind, status in STATUS if isinstance(error, kind))
