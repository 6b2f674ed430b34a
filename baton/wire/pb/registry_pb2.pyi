from baton.wire.pb import worker_pb2 as _worker_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("address", "role", "model", "capacity_tokens", "max_num_seqs", "incarnation", "ttl_s")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    address: str
    role: _worker_pb2.Role
    model: str
    capacity_tokens: int
    max_num_seqs: int
    incarnation: bytes
    ttl_s: float
    def __init__(self, address: _Optional[str] = ..., role: _Optional[_Union[_worker_pb2.Role, str]] = ..., model: _Optional[str] = ..., capacity_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WithdrawRequest(_message.Message):
    __slots__ = ("address", "incarnation")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: bytes
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[bytes] = ...) -> None: ...

class WithdrawReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
