"""Names of KV blocks by content: a chain of digests over token ids, rooted in what must be equal for KV to be equal."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import astuple

from blake3 import blake3

from baton.wire.types import Identity

Digest = bytes
"""32 bytes naming a full block and, through its parent, every token before it."""


def root_digest(identity: Identity, tenant: str) -> Digest:
    """Where a tenant's chains begin: no two identities or tenants ever share a block."""
    return blake3(json.dumps([*astuple(identity), tenant]).encode()).digest()


def block_digest(parent: Digest, token_ids: Sequence[int]) -> Digest:
    """The digest of one full block of `token_ids` after `parent`."""
    return blake3(parent + array("I", token_ids).tobytes()).digest()


def block_digests(root: Digest, token_ids: Sequence[int], block_size: int) -> list[Digest]:
    """Digests of all full blocks of `token_ids`, first to last."""
    digests, parent = [], root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_digest(parent, token_ids[start : start + block_size])
        digests.append(parent)
    return digests
