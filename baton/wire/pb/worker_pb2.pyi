from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
    ROLE_BOTH: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
ROLE_BOTH: Role

class LinkUp(_message.Message):
    __slots__ = ("hello", "commands")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    hello: RouterHello
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, hello: _Optional[_Union[RouterHello, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class LinkDown(_message.Message):
    __slots__ = ("hello", "events", "load")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    events: _containers.RepeatedCompositeFieldContainer[Event]
    load: LoadReport
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ...) -> None: ...

class RouterHello(_message.Message):
    __slots__ = ("incarnation", "link_id", "live", "protocol", "min_protocol")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LINK_ID_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MIN_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    link_id: bytes
    live: _containers.RepeatedCompositeFieldContainer[Position]
    protocol: int
    min_protocol: int
    def __init__(self, incarnation: _Optional[bytes] = ..., link_id: _Optional[bytes] = ..., live: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., protocol: _Optional[int] = ..., min_protocol: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("lease", "epoch", "choice", "next_index")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    choice: int
    next_index: int
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., choice: _Optional[int] = ..., next_index: _Optional[int] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("info", "resumed", "lacking")
    INFO_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    info: WorkerInfo
    resumed: bool
    lacking: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, info: _Optional[_Union[WorkerInfo, _Mapping]] = ..., resumed: _Optional[bool] = ..., lacking: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("incarnation", "role", "identity", "capabilities", "card", "capacity_tokens", "max_num_seqs")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CARD_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    role: Role
    identity: Identity
    capabilities: Capabilities
    card: ModelCard
    capacity_tokens: int
    max_num_seqs: int
    def __init__(self, incarnation: _Optional[bytes] = ..., role: _Optional[_Union[Role, str]] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., card: _Optional[_Union[ModelCard, _Mapping]] = ..., capacity_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("architecture", "weights_digest", "quantisation", "recipe", "rope", "tokenizer_digest", "template_digest", "max_model_len")
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    QUANTISATION_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    ROPE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    architecture: str
    weights_digest: str
    quantisation: str
    recipe: str
    rope: str
    tokenizer_digest: str
    template_digest: str
    max_model_len: int
    def __init__(self, architecture: _Optional[str] = ..., weights_digest: _Optional[str] = ..., quantisation: _Optional[str] = ..., recipe: _Optional[str] = ..., rope: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., template_digest: _Optional[str] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class KvLayout(_message.Message):
    __slots__ = ("num_layers", "block_size", "num_kv_heads", "head_dim", "dtype")
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    def __init__(self, num_layers: _Optional[int] = ..., block_size: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("layout", "transports", "protocol", "min_protocol")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MIN_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    layout: KvLayout
    transports: _containers.RepeatedScalarFieldContainer[str]
    protocol: int
    min_protocol: int
    def __init__(self, layout: _Optional[_Union[KvLayout, _Mapping]] = ..., transports: _Optional[_Iterable[str]] = ..., protocol: _Optional[int] = ..., min_protocol: _Optional[int] = ...) -> None: ...

class ModelCard(_message.Message):
    __slots__ = ("name", "tokenizer_json", "chat_template", "bos_token", "eos_token", "eos_ids", "special_ids", "add_bos", "vocab_size", "max_model_len")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_IDS_FIELD_NUMBER: _ClassVar[int]
    ADD_BOS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    tokenizer_json: str
    chat_template: str
    bos_token: str
    eos_token: str
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    special_ids: _containers.RepeatedScalarFieldContainer[int]
    add_bos: bool
    vocab_size: int
    max_model_len: int
    def __init__(self, name: _Optional[str] = ..., tokenizer_json: _Optional[str] = ..., chat_template: _Optional[str] = ..., bos_token: _Optional[str] = ..., eos_token: _Optional[str] = ..., eos_ids: _Optional[_Iterable[int]] = ..., special_ids: _Optional[_Iterable[int]] = ..., add_bos: _Optional[bool] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("start_decode", "start_prefill", "fence", "end", "finish")
    START_DECODE_FIELD_NUMBER: _ClassVar[int]
    START_PREFILL_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    start_decode: StartDecode
    start_prefill: StartPrefill
    fence: Fence
    end: End
    finish: Finish
    def __init__(self, start_decode: _Optional[_Union[StartDecode, _Mapping]] = ..., start_prefill: _Optional[_Union[StartPrefill, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class RequestSpec(_message.Message):
    __slots__ = ("prompt_ids", "output_ids", "choices", "params", "tenant", "deadline_s")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedScalarFieldContainer[int]
    params: SamplingParams
    tenant: str
    deadline_s: float
    def __init__(self, prompt_ids: _Optional[_Iterable[int]] = ..., output_ids: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[int]] = ..., params: _Optional[_Union[SamplingParams, _Mapping]] = ..., tenant: _Optional[str] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "bias_ids", "bias_values", "seed", "min_tokens", "ignore_eos", "eos_ids", "stop_ids", "num_logprobs")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_ids: _containers.RepeatedScalarFieldContainer[int]
    bias_values: _containers.RepeatedScalarFieldContainer[float]
    seed: int
    min_tokens: int
    ignore_eos: bool
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    num_logprobs: int
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_ids: _Optional[_Iterable[int]] = ..., bias_values: _Optional[_Iterable[float]] = ..., seed: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., eos_ids: _Optional[_Iterable[int]] = ..., stop_ids: _Optional[_Iterable[int]] = ..., num_logprobs: _Optional[int] = ...) -> None: ...

class StartDecode(_message.Message):
    __slots__ = ("lease", "epoch", "spec")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    spec: RequestSpec
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., spec: _Optional[_Union[RequestSpec, _Mapping]] = ...) -> None: ...

class DecodeTarget(_message.Message):
    __slots__ = ("address", "incarnation")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: bytes
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[bytes] = ...) -> None: ...

class StartPrefill(_message.Message):
    __slots__ = ("lease", "epoch", "spec", "num_cached", "decode")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    spec: RequestSpec
    num_cached: int
    decode: DecodeTarget
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., spec: _Optional[_Union[RequestSpec, _Mapping]] = ..., num_cached: _Optional[int] = ..., decode: _Optional[_Union[DecodeTarget, _Mapping]] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("lease", "epoch", "output_ids")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., output_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    def __init__(self, lease: _Optional[bytes] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("lease", "choice")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    choice: int
    def __init__(self, lease: _Optional[bytes] = ..., choice: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("reserved", "refused", "tokens", "finished", "handed_off", "failed", "fenced", "committed", "gone", "preempted")
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HANDED_OFF_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    reserved: Reserved
    refused: Refused
    tokens: Tokens
    finished: Finished
    handed_off: HandedOff
    failed: Failed
    fenced: Fenced
    committed: Committed
    gone: Gone
    preempted: Preempted
    def __init__(self, reserved: _Optional[_Union[Reserved, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., handed_off: _Optional[_Union[HandedOff, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., gone: _Optional[_Union[Gone, _Mapping]] = ..., preempted: _Optional[_Union[Preempted, _Mapping]] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("lease", "epoch", "num_cached")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    num_cached: int
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., num_cached: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("lease", "epoch", "reason", "message")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    reason: str
    message: str
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "logprob", "top_ids", "top_logprobs")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("choice", "token", "finish")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    choice: int
    token: Token
    finish: str
    def __init__(self, choice: _Optional[int] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., finish: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("lease", "epoch", "choice", "index", "tokens", "spans")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    choice: int
    index: int
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    spans: Spans
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., choice: _Optional[int] = ..., index: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., spans: _Optional[_Union[Spans, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("lease", "epoch", "choice", "reason", "num_tokens", "spans")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    choice: int
    reason: str
    num_tokens: int
    spans: Spans
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., choice: _Optional[int] = ..., reason: _Optional[str] = ..., num_tokens: _Optional[int] = ..., spans: _Optional[_Union[Spans, _Mapping]] = ...) -> None: ...

class HandedOff(_message.Message):
    __slots__ = ("lease", "epoch", "spans")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    spans: Spans
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., spans: _Optional[_Union[Spans, _Mapping]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("lease", "epoch", "reason", "message", "retryable")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    reason: str
    message: str
    retryable: bool
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("lease", "epoch", "num_cached")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    num_cached: int
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., num_cached: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("lease", "epoch", "index", "first")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    index: int
    first: _containers.RepeatedCompositeFieldContainer[FirstToken]
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., first: _Optional[_Iterable[_Union[FirstToken, _Mapping]]] = ...) -> None: ...

class Gone(_message.Message):
    __slots__ = ("lease", "epoch")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class Preempted(_message.Message):
    __slots__ = ("lease", "epoch", "choice")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    epoch: int
    choice: int
    def __init__(self, lease: _Optional[bytes] = ..., epoch: _Optional[int] = ..., choice: _Optional[int] = ...) -> None: ...

class Spans(_message.Message):
    __slots__ = ("queue_s", "compute_s", "transfer_s", "hidden_s", "transfer_bytes", "num_cached", "num_computed", "transport")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    compute_s: float
    transfer_s: float
    hidden_s: float
    transfer_bytes: int
    num_cached: int
    num_computed: int
    transport: str
    def __init__(self, queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., hidden_s: _Optional[float] = ..., transfer_bytes: _Optional[int] = ..., num_cached: _Optional[int] = ..., num_computed: _Optional[int] = ..., transport: _Optional[str] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("num_running", "num_waiting", "kv_blocks_used", "kv_blocks_total", "kv_blocks_cached", "queued_prefill_tokens", "num_leases", "draining", "prompt_tokens_total", "generated_tokens_total", "overrun_tokens_total", "prefix_hit_tokens_total", "prefix_query_tokens_total", "preemptions_total", "transfer_bytes_total", "transfers_total", "transfers_failed_total", "frames_refused_total", "aborted_total", "last_step_s")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OVERRUN_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_QUERY_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FAILED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FRAMES_REFUSED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ABORTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_S_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    kv_blocks_cached: int
    queued_prefill_tokens: int
    num_leases: int
    draining: bool
    prompt_tokens_total: int
    generated_tokens_total: int
    overrun_tokens_total: int
    prefix_hit_tokens_total: int
    prefix_query_tokens_total: int
    preemptions_total: int
    transfer_bytes_total: int
    transfers_total: int
    transfers_failed_total: int
    frames_refused_total: int
    aborted_total: int
    last_step_s: float
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., kv_blocks_used: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., kv_blocks_cached: _Optional[int] = ..., queued_prefill_tokens: _Optional[int] = ..., num_leases: _Optional[int] = ..., draining: _Optional[bool] = ..., prompt_tokens_total: _Optional[int] = ..., generated_tokens_total: _Optional[int] = ..., overrun_tokens_total: _Optional[int] = ..., prefix_hit_tokens_total: _Optional[int] = ..., prefix_query_tokens_total: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., transfer_bytes_total: _Optional[int] = ..., transfers_total: _Optional[int] = ..., transfers_failed_total: _Optional[int] = ..., frames_refused_total: _Optional[int] = ..., aborted_total: _Optional[int] = ..., last_step_s: _Optional[float] = ...) -> None: ...
