"""The cluster token: what lets one process of a cluster talk to another. Without TLS it guards loopback only."""

from __future__ import annotations

import hmac
import os
import secrets
import stat

TOKEN_VARIABLE = "BATON_CLUSTER_TOKEN"


class TokenError(Exception):
    """A token file that cannot be used; the message says why."""


def draw_token() -> str:
    """A fresh token of 256 random bits."""
    return secrets.token_urlsafe(32)


def same_token(given: str, expected: str) -> bool:
    """Compares in constant time; an empty token equals nothing."""
    return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())


def read_token_file(path: str) -> str:
    """The token in `path`, which nobody but its owner may read. Raises TokenError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TokenError(str(error.strerror)) from error
    with os.fdopen(descriptor) as file:
        # Asked of the open file, so that it cannot be exchanged between the look and the read.
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            raise TokenError(f"mode {mode:04o} lets others read it; run chmod 600")
        token = file.read().strip()
    if not token:
        raise TokenError("it is empty")
    return token
