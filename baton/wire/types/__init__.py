"""What crosses a process, as frozen types. No imports but the standard library: every package may use these.

Tokens and blocks are counted, never timed: durations are seconds (float), sent as durations and never as times of day.
"""

from __future__ import annotations

from baton.wire.types.commands import Command, DecodeTarget, End, Fence, Finish, StartDecode, StartPrefill
from baton.wire.types.events import (
    Committed,
    Event,
    Failed,
    Fenced,
    Finished,
    Gone,
    HandedOff,
    Preempted,
    Refused,
    Reserved,
    Spans,
    Tokens,
)
from baton.wire.types.kv import Commit, FrameHeader, KvAnswer, KvEndpoint, KvHello
from baton.wire.types.link import Down, LoadReport, Position, RouterHello, Up, WorkerHello
from baton.wire.types.model import (
    MIN_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Capabilities,
    Identity,
    Incarnation,
    KvLayout,
    LeaseId,
    ModelCard,
    Role,
    WorkerInfo,
)
from baton.wire.types.request import FinishReason, FirstToken, RequestSpec, SamplingParams, Token
from baton.wire.types.settings import Endpoint, Registration, Timeouts

__all__ = [
    "MIN_PROTOCOL_VERSION",
    "PROTOCOL_VERSION",
    "Capabilities",
    "Command",
    "Commit",
    "Committed",
    "DecodeTarget",
    "Down",
    "End",
    "Endpoint",
    "Event",
    "Failed",
    "Fence",
    "Fenced",
    "Finish",
    "FinishReason",
    "Finished",
    "FirstToken",
    "FrameHeader",
    "Gone",
    "HandedOff",
    "Identity",
    "Incarnation",
    "KvAnswer",
    "KvEndpoint",
    "KvHello",
    "KvLayout",
    "LeaseId",
    "LoadReport",
    "ModelCard",
    "Position",
    "Preempted",
    "Refused",
    "Registration",
    "RequestSpec",
    "Reserved",
    "Role",
    "RouterHello",
    "SamplingParams",
    "Spans",
    "StartDecode",
    "StartPrefill",
    "Timeouts",
    "Token",
    "Tokens",
    "Up",
    "WorkerHello",
    "WorkerInfo",
]
