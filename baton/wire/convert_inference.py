"""The public gRPC messages to our types and back. Fields of a request keep the HTTP door's names, unset ones are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton.wire.inference import Delta, ModelInfo, TimelineView, TokenLogprob, Update, Usage
from baton.wire.pb import inference_pb2 as pb
from baton.wire.types import FinishReason

_FINISH = {None: pb.FINISH_REASON_UNSPECIFIED, "stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}
_REASONS = {pb.FINISH_REASON_STOP: FinishReason.STOP, pb.FINISH_REASON_LENGTH: FinishReason.LENGTH}
_OPTIONAL = (
    *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)

Fields = dict[str, object]


# --- requests ----------------------------------------------------------------------------------------------------


def fields_of(request: pb.GenerateRequest) -> tuple[Fields, bool]:
    """A request as the validator reads it, and whether it is a chat."""
    chat = request.WhichOneof("input") == "chat"
    fields: Fields = {"stream": True}
    if request.model:
        fields["model"] = request.model
    if chat:
        fields["messages"] = [{"role": message.role, "content": message.content} for message in request.chat.messages]
    elif request.HasField("prompt"):
        fields["prompt"] = request.prompt
    elif request.HasField("token_ids"):
        fields["prompt"] = list(request.token_ids.ids)
    if request.stop:
        fields["stop"] = list(request.stop)
    fields |= {name: value for name in ("n", "timeline", "deadline_s") if (value := getattr(request, name))}
    return fields | _sampling_fields(request.sampling, chat), chat


def _sampling_fields(sampling: pb.Sampling, chat: bool) -> Fields:
    fields: Fields = {name: _number(getattr(sampling, name)) for name in _OPTIONAL if sampling.HasField(name)}
    if sampling.logit_bias:
        fields["logit_bias"] = {token_id: _number(bias) for token_id, bias in sampling.logit_bias.items()}
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if sampling.stop_token_ids:
        fields["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.HasField("logprobs"):
        fields |= {"logprobs": True, "top_logprobs": sampling.logprobs} if chat else {"logprobs": sampling.logprobs}
    return fields


def _number(value: int | float) -> int | float:
    """A 32-bit float as the decimal that was meant: 0.1, not 0.10000000149."""
    return value if isinstance(value, int) else float(f"{value:.7g}")


def request_of(fields: Mapping[str, Any]) -> pb.GenerateRequest:
    """A request from the HTTP door's names: model, prompt (text or ids) or messages, stop, n, timeline, deadline_s, and
    sampling. None is unset. Raises ValueError or TypeError for a name or value that the messages do not have."""
    given = {name: value for name, value in fields.items() if value is not None}
    outer = {name: given.pop(name) for name in ("model", "stop", "n", "timeline", "deadline_s") if name in given}
    prompt, messages = given.pop("prompt", None), given.pop("messages", None)
    request = pb.GenerateRequest(**outer, sampling=pb.Sampling(**given))
    if isinstance(prompt, str):
        request.prompt = prompt
    elif isinstance(prompt, Sequence):
        request.token_ids.ids.extend(prompt)
    elif isinstance(messages, Sequence):
        request.chat.SetInParent()
        request.chat.messages.extend(pb.ChatMessage(**message) for message in messages)
    return request


# --- answers -----------------------------------------------------------------------------------------------------


def update_to_pb(update: Update) -> pb.GenerateResponse:
    message = pb.GenerateResponse(request_id=update.request_id, choices=map(_delta_to_pb, update.deltas))
    if update.usage is not None:
        usage = update.usage
        message.usage.CopyFrom(
            pb.Usage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
            )
        )
    if update.timeline is not None:
        message.timeline.CopyFrom(_timeline_to_pb(update.timeline))
    return message


def update_of(message: pb.GenerateResponse) -> Update:
    usage = message.usage
    return Update(
        request_id=message.request_id,
        deltas=tuple(_delta_of(delta) for delta in message.choices),
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) if message.HasField("usage") else None,
        timeline=_timeline_of(message.timeline) if message.HasField("timeline") else None,
    )


def models_to_pb(models: Sequence[ModelInfo]) -> pb.ListModelsResponse:
    return pb.ListModelsResponse(models=[pb.ModelInfo(id=model.id, max_model_len=model.max_model_len) for model in models])


def models_of(message: pb.ListModelsResponse) -> list[ModelInfo]:
    return [ModelInfo(model.id, model.max_model_len) for model in message.models]


def _delta_to_pb(delta: Delta) -> pb.ChoiceDelta:
    return pb.ChoiceDelta(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=map(_logprob_to_pb, delta.logprobs),
        finish_reason=_FINISH[delta.finish],
    )


def _delta_of(delta: pb.ChoiceDelta) -> Delta:
    return Delta(
        index=delta.index,
        text=delta.text,
        token_ids=tuple(delta.token_ids),
        logprobs=tuple(map(_logprob_of, delta.logprobs)),
        finish=_REASONS.get(delta.finish_reason),
    )


def _logprob_to_pb(entry: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(token=entry.token, id=entry.id, logprob=entry.logprob, top=map(_logprob_to_pb, entry.top))


def _logprob_of(entry: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(entry.token, entry.id, entry.logprob, tuple(map(_logprob_of, entry.top)))


def _timeline_to_pb(timeline: TimelineView) -> pb.Timeline:
    return pb.Timeline(
        spans=[pb.Span(name=name, seconds=seconds) for name, seconds in timeline.spans],
        ttft_s=timeline.ttft_s,
        second_token_s=timeline.second_token_s,
        total_s=timeline.total_s,
        transfer_bytes=timeline.transfer_bytes,
        transport=timeline.transport,
        recoveries=timeline.recoveries,
    )


def _timeline_of(timeline: pb.Timeline) -> TimelineView:
    return TimelineView(
        spans=tuple((span.name, span.seconds) for span in timeline.spans),
        ttft_s=timeline.ttft_s,
        second_token_s=timeline.second_token_s,
        total_s=timeline.total_s,
        transfer_bytes=timeline.transfer_bytes,
        transport=timeline.transport,
        recoveries=timeline.recoveries,
    )
