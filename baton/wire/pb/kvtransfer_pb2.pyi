from baton.wire.pb import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KvUp(_message.Message):
    __slots__ = ("hello", "frame", "commit", "run")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    hello: KvHello
    frame: KvFrame
    commit: KvCommit
    run: KvRun
    def __init__(self, hello: _Optional[_Union[KvHello, _Mapping]] = ..., frame: _Optional[_Union[KvFrame, _Mapping]] = ..., commit: _Optional[_Union[KvCommit, _Mapping]] = ..., run: _Optional[_Union[KvRun, _Mapping]] = ...) -> None: ...

class KvDown(_message.Message):
    __slots__ = ("answers", "open", "refusal")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[KvAnswer]
    open: bool
    refusal: KvRefusal
    def __init__(self, answers: _Optional[_Iterable[_Union[KvAnswer, _Mapping]]] = ..., open: _Optional[bool] = ..., refusal: _Optional[_Union[KvRefusal, _Mapping]] = ...) -> None: ...

class KvRefusal(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class KvOffers(_message.Message):
    __slots__ = ("endpoints",)
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[KvEndpoint]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[KvEndpoint, _Mapping]]] = ...) -> None: ...

class KvEndpoint(_message.Message):
    __slots__ = ("transport", "address")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    transport: str
    address: str
    def __init__(self, transport: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class KvHello(_message.Message):
    __slots__ = ("sender", "receiver", "identity", "capabilities")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    sender: bytes
    receiver: bytes
    identity: _worker_pb2.Identity
    capabilities: _worker_pb2.Capabilities
    def __init__(self, sender: _Optional[bytes] = ..., receiver: _Optional[bytes] = ..., identity: _Optional[_Union[_worker_pb2.Identity, _Mapping]] = ..., capabilities: _Optional[_Union[_worker_pb2.Capabilities, _Mapping]] = ...) -> None: ...

class KvFrame(_message.Message):
    __slots__ = ("header", "payload", "block")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    header: KvFrameHeader
    payload: bytes
    block: int
    def __init__(self, header: _Optional[_Union[KvFrameHeader, _Mapping]] = ..., payload: _Optional[bytes] = ..., block: _Optional[int] = ...) -> None: ...

class KvRun(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[KvFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[KvFrame, _Mapping]]] = ...) -> None: ...

class KvFrameHeader(_message.Message):
    __slots__ = ("lease", "epoch", "sequence", "token_start", "token_end", "layer_start", "layer_end", "digest")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_START_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    LAYER_START_FIELD_NUMBER: _ClassVar[int]
    LAYER_END_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    sequence: int
    token_start: int
    token_end: int
    layer_start: int
    layer_end: int
    digest: int
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., token_start: _Optional[int] = ..., token_end: _Optional[int] = ..., layer_start: _Optional[int] = ..., layer_end: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class KvCommit(_message.Message):
    __slots__ = ("lease", "epoch", "index", "first", "cover_start", "cover_end", "num_layers", "num_frames", "digest", "check")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COVER_START_FIELD_NUMBER: _ClassVar[int]
    COVER_END_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    index: int
    first: _containers.RepeatedCompositeFieldContainer[_worker_pb2.FirstToken]
    cover_start: int
    cover_end: int
    num_layers: int
    num_frames: int
    digest: int
    check: int
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., first: _Optional[_Iterable[_Union[_worker_pb2.FirstToken, _Mapping]]] = ..., cover_start: _Optional[int] = ..., cover_end: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_frames: _Optional[int] = ..., digest: _Optional[int] = ..., check: _Optional[int] = ...) -> None: ...

class KvAnswer(_message.Message):
    __slots__ = ("lease", "epoch", "ok", "reason")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    ok: bool
    reason: str
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., ok: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...
