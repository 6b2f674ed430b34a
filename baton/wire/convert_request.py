"""Requests and router-to-worker commands: types <-> protobuf."""

from __future__ import annotations

from baton.wire.flat import pack_flat, unpack_flat
from baton.wire.pb import worker_pb2 as pb
from baton.wire.types import (
    Command,
    DecodeTarget,
    End,
    Fence,
    Finish,
    RequestSpec,
    SamplingParams,
    StartDecode,
    StartPrefill,
)


def pack_params(value: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        max_tokens=value.max_tokens,
        temperature=value.temperature,
        top_p=value.top_p,
        top_k=value.top_k,
        min_p=value.min_p,
        presence_penalty=value.presence_penalty,
        frequency_penalty=value.frequency_penalty,
        repetition_penalty=value.repetition_penalty,
        bias_ids=[token_id for token_id, _ in value.logit_bias],
        bias_values=[bias for _, bias in value.logit_bias],
        seed=value.seed,
        min_tokens=value.min_tokens,
        ignore_eos=value.ignore_eos,
        eos_ids=value.eos_ids,
        stop_ids=value.stop_ids,
        num_logprobs=value.num_logprobs,
    )


def unpack_params(message: pb.SamplingParams) -> SamplingParams:
    """Raises ValueError if the bias lists differ in length."""
    return SamplingParams(
        max_tokens=message.max_tokens,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=tuple(zip(message.bias_ids, message.bias_values, strict=True)),
        seed=message.seed,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        eos_ids=tuple(message.eos_ids),
        stop_ids=tuple(message.stop_ids),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
    )


def pack_spec(value: RequestSpec) -> pb.RequestSpec:
    return pb.RequestSpec(
        prompt_ids=value.prompt_ids,
        output_ids=value.output_ids,
        choices=value.choices,
        params=pack_params(value.params),
        tenant=value.tenant,
        deadline_s=value.deadline_s,
    )


def unpack_spec(message: pb.RequestSpec) -> RequestSpec:
    return RequestSpec(
        prompt_ids=tuple(message.prompt_ids),
        params=unpack_params(message.params),
        choices=tuple(message.choices),
        output_ids=tuple(message.output_ids),
        tenant=message.tenant,
        deadline_s=message.deadline_s,
    )


def pack_command(value: Command) -> pb.Command:
    match value:
        case StartDecode(lease, epoch, spec):
            return pb.Command(start_decode=pb.StartDecode(lease=lease, epoch=epoch, spec=pack_spec(spec)))
        case StartPrefill():
            return pb.Command(start_prefill=_pack_start_prefill(value))
        case Fence(lease, epoch, output_ids):
            return pb.Command(fence=pb.Fence(lease=lease, epoch=epoch, output_ids=output_ids))
        case Finish():
            return pb.Command(finish=pack_flat(value, pb.Finish))
        case End(lease):
            return pb.Command(end=pb.End(lease=lease))


def _pack_start_prefill(value: StartPrefill) -> pb.StartPrefill:
    return pb.StartPrefill(
        lease=value.lease,
        epoch=value.epoch,
        spec=pack_spec(value.spec),
        num_cached=value.num_cached,
        decode=pack_flat(value.decode, pb.DecodeTarget) if value.decode is not None else None,
    )


def unpack_command(message: pb.Command) -> Command:
    """Raises ValueError for a command that is not known."""
    match message.WhichOneof("kind"):
        case "start_decode":
            start = message.start_decode
            return StartDecode(start.lease, start.epoch, unpack_spec(start.spec))
        case "start_prefill":
            return _unpack_start_prefill(message.start_prefill)
        case "fence":
            return Fence(message.fence.lease, message.fence.epoch, tuple(message.fence.output_ids))
        case "finish":
            return unpack_flat(message.finish, Finish)
        case "end":
            return End(message.end.lease)
    raise ValueError("unknown command")


def _unpack_start_prefill(message: pb.StartPrefill) -> StartPrefill:
    decode = unpack_flat(message.decode, DecodeTarget) if message.HasField("decode") else None
    return StartPrefill(message.lease, message.epoch, unpack_spec(message.spec), message.num_cached, decode)
