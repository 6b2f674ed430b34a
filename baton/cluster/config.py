"""What a process is told at its start: frozen, whole and checked before anything runs. `sources.py` reads it in."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from baton.wire.types import Role, Timeouts

SECRET = {"secret": True}
"""Marks a field that is read from the environment or a 0600 file only: never a flag, never YAML, never printed."""

Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Dtype = Literal["float32", "int8"]


def _is_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    named = re.fullmatch(r"[\w.-]+|\[[\da-fA-F:.]+\]", host)
    if not (named and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= 65535):
        raise ValueError(f"{address!r} is not host:port, such as 127.0.0.1:9000 or [::1]:9000")
    return address


Address = Annotated[str, AfterValidator(_is_address)]
"""Of a process to dial. Names are looked up at each dial: the host may not be there yet."""


def redacted(text: str) -> str:
    """`text` without what a URL in it says before its host or after its path: fit for messages."""
    return re.sub(r"(://.*)\?.*", r"\1", re.sub(r"://.*@", "://***@", text))


def _is_redis_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is not None:
        raise ValueError("a password does not belong in it; use BATON_REGISTRY_PASSWORD or --registry-password-file")
    whole = re.fullmatch(r"rediss?://([^@/?#]+@)?[^@/?#]+(/\d*)?", url)
    if url and not (whole and parts.hostname and parts.port != 0):
        raise ValueError("must be like redis://host:6379/0, or rediss:// for TLS")
    return url


ModelPath = Annotated[str, Field(description="Hugging Face directory (safetensors) or .gguf file; empty: the bundled model.")]
Host = Annotated[str, Field(description="Address to listen on; any but loopback needs --insecure.")]
ServedName = Annotated[str | None, Field(description="Name that clients use for the model; default: the file's own.")]
ModelLen = Annotated[Count | None, Field(description="Longest prompt plus answer in tokens; default: the model's own limit.")]
Precision = Annotated[Dtype, Field(description="Arithmetic: float32, or int8 (a GGUF file's own 4- and 8-bit groups).")]
KvBlocks = Annotated[Count | Literal["auto"], Field(description="Blocks in the KV pool, or auto: sized from free memory.")]
BlockSize = Annotated[int, Field(gt=0, le=1024, description="Token positions in one KV block.")]
MaxSeqs = Annotated[Count, Field(description="Sequences that run at once on one worker.")]
KvTransport = Annotated[
    Literal["auto", "shm", "tcp", "grpc"],
    Field(description="How KV moves between workers; auto: shm on one host, else tcp, else grpc."),
]
StepTokens = Annotated[Count, Field(description="Token budget of one engine step; longer prompts run in chunks.")]
GrowthReserve = Annotated[int, Field(ge=0, description="Output tokens that a reservation counts ahead.")]
Token = Annotated[str, Field(repr=False, exclude=True, json_schema_extra=SECRET)]
TokenFile = Annotated[str | None, Field(description="File of mode 0600 that holds the cluster token.")]
RegistryUrl = Annotated[
    str,
    AfterValidator(_is_redis_url),
    Field(description="Redis or Valkey that knows the workers, such as redis://host:6379/0."),
]
RegistryPassword = Annotated[str, Field(repr=False, exclude=True, json_schema_extra=SECRET)]
RegistryPasswordFile = Annotated[str | None, Field(description="File of mode 0600 that holds the registry's password.")]
Insecure = Annotated[bool, Field(description="Accept that an address beyond loopback is served without TLS.")]
Waits = Annotated[Timeouts, Field(description="Timeouts in seconds, such as '{request_s: 60}'.")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Field(description="Least level that is logged.")]


class Limits(BaseModel):
    """What a client may ask for, the same at both doors. Lengths in characters, sizes in bytes, durations in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body_bytes: Count = 4 << 20
    header_bytes: Count = 32 << 10
    num_headers: Count = 100
    num_prompts: Count = 64
    num_choices: Count = 128  # prompts x n
    num_stop: Count = 4
    stop_len: Count = 256
    num_top_logprobs: int = Field(default=20, ge=0)
    num_logit_bias: Count = 1024
    schema_bytes: Count = 64 << 10
    schema_s: float = Field(default=1.0, gt=0)
    template_s: float = Field(default=1.0, gt=0)
    template_bytes: Count = 2 << 20
    stream_buffer_bytes: Count = 256 << 10


class Config(BaseModel):
    """Base of the process configs: frozen, unknown names refused, a listening address checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    needs_token: ClassVar[bool] = True

    @model_validator(mode="after")
    def _addresses_are_private_or_said_aloud(self) -> Self:
        for name in ("host", "registry_host"):
            host, insecure = getattr(self, name, "127.0.0.1"), getattr(self, "insecure", False)
            if not (insecure or is_loopback(host)):
                flag = "--" + name.replace("_", "-")
                raise ValueError(
                    f"{flag} {host} can be reached from other machines without TLS; add --insecure or use 127.0.0.1"
                )
        return self


class WorkerConfig(Config):
    """One worker process: one engine that offers one role or both. `port` 0: a free one, told in the ready line."""

    role: Annotated[Role, Field(description="prefill, decode or both.")] = Role.BOTH
    model: ModelPath = ""
    host: Host = "127.0.0.1"
    port: Annotated[Port, Field(description="Port of links, KV and health; 0: any free one.")] = 0
    served_model_name: ServedName = None
    max_model_len: ModelLen = None
    dtype: Precision = "float32"
    kv_blocks: KvBlocks = "auto"
    block_size: BlockSize = 64
    max_num_seqs: MaxSeqs = 64
    max_step_tokens: StepTokens = 512
    growth_reserve: GrowthReserve = 256
    kv_transport: KvTransport = "auto"
    threads: Annotated[Count | None, Field(description="Compute threads; default: one for each CPU in --cpus.")] = None
    cpus: Annotated[tuple[int, ...], Field(description="CPUs the compute threads are pinned to; default: all.")] = ()
    router: Annotated[str, Field(description="Registry address of the router to register with, such as 127.0.0.1:8002.")] = ""
    registry: RegistryUrl = ""
    registry_password: RegistryPassword = ""
    registry_password_file: RegistryPasswordFile = None
    advertise: Annotated[str, Field(description="Host that others reach this worker by; default: --host.")] = ""
    cluster_token: Token = ""
    cluster_token_file: TokenFile = None
    insecure: Insecure = False
    timeouts: Waits = Timeouts()
    log_level: LogLevel = "info"

    @model_validator(mode="after")
    def _registers_once_under_a_real_address(self) -> Self:
        if self.router and self.registry:
            raise ValueError("--router and --registry: register with one of them")
        if (self.router or self.registry) and not self.advertise and is_wildcard(self.host):
            raise ValueError(f"--host {self.host} is no address that others can dial; add --advertise with this machine's own")
        return self

    def advertised(self, port: int) -> str:
        """The address that others dial when this worker listens on `port`."""
        host = self.advertise or self.host
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

    @property
    def drain_s(self) -> float:
        return self.timeouts.drain_s


class RouterConfig(Config):
    """The router process: its two doors, the workers it dials, its limits."""

    workers: Annotated[
        tuple[Address, ...],
        Field(
            description="Address of a worker, such as 127.0.0.1:9000; repeat for more.", json_schema_extra={"flag": "--worker"}
        ),
    ] = ()
    host: Host = "127.0.0.1"
    port: Annotated[Port, Field(description="Port of the HTTP door; 0: any free one.")] = 8000
    grpc_port: Annotated[Port, Field(description="Port of the gRPC door; 0: any free one.")] = 8001
    registry_host: Annotated[str, Field(description="Address where workers register, without --registry.")] = "127.0.0.1"
    registry_port: Annotated[Port, Field(description="Port where workers register, without --registry; 0: any free one.")] = 0
    registry: RegistryUrl = ""
    registry_password: RegistryPassword = ""
    registry_password_file: RegistryPasswordFile = None
    served_model_name: ServedName = None
    queue_limit: Annotated[Count, Field(description="Requests that may wait; the next one gets a 429.")] = 256
    cluster_token: Token = ""
    cluster_token_file: TokenFile = None
    insecure: Insecure = False
    limits: Annotated[Limits, Field(description="Limits for clients, such as '{num_prompts: 8}'.")] = Limits()
    timeouts: Waits = Timeouts()
    log_level: LogLevel = "info"

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        _check_ports(self.port, self.grpc_port)
        return self

    @model_validator(mode="after")
    def _workers_come_from_one_place(self) -> Self:
        if self.workers and self.registry:
            raise ValueError("--worker and --registry: workers come from one of them")
        return self

    @property
    def drain_s(self) -> float:
        return self.timeouts.drain_s


class ServeConfig(Config):
    """`baton serve`: a router and its workers on this machine. Workers listen on free loopback ports."""

    needs_token: ClassVar[bool] = False

    model: ModelPath = ""
    prefill: Annotated[Count, Field(description="Number of prefill workers.")] = 1
    decode: Annotated[Count, Field(description="Number of decode workers.")] = 1
    both: Annotated[int, Field(ge=0, description="Number of workers in both roles, instead of --prefill and --decode.")] = 0
    host: Host = "127.0.0.1"
    port: Annotated[Port, Field(description="Port of the HTTP door; 0: any free one.")] = 8000
    grpc_port: Annotated[Port, Field(description="Port of the gRPC door; 0: any free one.")] = 8001
    served_model_name: ServedName = None
    max_model_len: ModelLen = None
    dtype: Precision = "float32"
    kv_blocks: KvBlocks = "auto"
    block_size: BlockSize = 64
    max_num_seqs: MaxSeqs = 64
    max_step_tokens: StepTokens = 512
    growth_reserve: GrowthReserve = 256
    kv_transport: KvTransport = "auto"
    threads: Annotated[Count | None, Field(description="Compute threads of a worker; default: its share of the CPUs.")] = None
    queue_limit: Annotated[Count, Field(description="Requests that may wait; the next one gets a 429.")] = 256
    cluster_token: Token = ""
    insecure: Insecure = False
    limits: Annotated[Limits, Field(description="Limits for clients, such as '{num_prompts: 8}'.")] = Limits()
    timeouts: Waits = Timeouts()
    log_level: LogLevel = "info"

    @model_validator(mode="after")
    def _roles_are_one_set_up(self) -> Self:
        if self.both and {"prefill", "decode"} & self.model_fields_set:
            raise ValueError(f"--both {self.both} stands instead of --prefill and --decode; give the one or the others")
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        _check_ports(self.port, self.grpc_port)
        return self

    def worker(self, role: Role, cpus: tuple[int, ...]) -> WorkerConfig:
        """The config of one worker of this cluster, on a free loopback port."""
        return WorkerConfig(role=role, cpus=cpus, **self._shared(WorkerConfig, "host", "port", "insecure"))

    def router(self, workers: tuple[str, ...]) -> RouterConfig:
        """The config of this cluster's router."""
        return RouterConfig(workers=workers, **self._shared(RouterConfig))

    def _shared(self, kind: type[Config], *without: str) -> dict[str, Any]:
        names = ServeConfig.model_fields.keys() & kind.model_fields.keys() - set(without)
        return {name: getattr(self, name) for name in names}


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable from this machine alone; names other than localhost count as not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of this machine, and so for none that can be dialled."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _check_ports(port: int, grpc_port: int) -> None:
    if port and port == grpc_port:
        raise ValueError(f"--port and --grpc-port are both {port}; give the doors different ports")
