"""Worker and model descriptions: types <-> protobuf."""

from __future__ import annotations

from baton.wire.flat import pack_flat, unpack_flat
from baton.wire.pb import worker_pb2 as pb
from baton.wire.types import Capabilities, Identity, KvLayout, ModelCard, Role, WorkerInfo

_ROLES = {Role.PREFILL: pb.ROLE_PREFILL, Role.DECODE: pb.ROLE_DECODE, Role.BOTH: pb.ROLE_BOTH}
_ROLES_BACK = {number: role for role, number in _ROLES.items()}


def pack_role(value: Role) -> pb.Role:
    return _ROLES[value]


def unpack_role(number: pb.Role) -> Role:
    """Raises ValueError for a role that is not known."""
    if number not in _ROLES_BACK:
        raise ValueError(f"unknown worker role {number}")
    return _ROLES_BACK[number]


def pack_identity(value: Identity) -> pb.Identity:
    return pack_flat(value, pb.Identity)


def unpack_identity(message: pb.Identity) -> Identity:
    return unpack_flat(message, Identity)


def pack_capabilities(value: Capabilities) -> pb.Capabilities:
    return pb.Capabilities(
        layout=pack_flat(value.layout, pb.KvLayout),
        transports=value.transports,
        protocol=value.protocol,
        min_protocol=value.min_protocol,
    )


def unpack_capabilities(message: pb.Capabilities) -> Capabilities:
    layout = unpack_flat(message.layout, KvLayout)
    return Capabilities(layout, tuple(message.transports), message.protocol, message.min_protocol)


def pack_card(value: ModelCard) -> pb.ModelCard:
    return pack_flat(value, pb.ModelCard)


def unpack_card(message: pb.ModelCard) -> ModelCard:
    return ModelCard(
        name=message.name,
        tokenizer_json=message.tokenizer_json,
        chat_template=message.chat_template if message.HasField("chat_template") else None,
        bos_token=message.bos_token if message.HasField("bos_token") else None,
        eos_token=message.eos_token if message.HasField("eos_token") else None,
        eos_ids=tuple(message.eos_ids),
        special_ids=tuple(message.special_ids),
        add_bos=message.add_bos,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
    )


def pack_info(value: WorkerInfo) -> pb.WorkerInfo:
    return pb.WorkerInfo(
        incarnation=value.incarnation,
        role=pack_role(value.role),
        identity=pack_identity(value.identity),
        capabilities=pack_capabilities(value.capabilities),
        card=pack_card(value.card),
        capacity_tokens=value.capacity_tokens,
        max_num_seqs=value.max_num_seqs,
    )


def unpack_info(message: pb.WorkerInfo) -> WorkerInfo:
    """Raises ValueError for a role that is not known."""
    return WorkerInfo(
        incarnation=message.incarnation,
        role=unpack_role(message.role),
        identity=unpack_identity(message.identity),
        capabilities=unpack_capabilities(message.capabilities),
        card=unpack_card(message.card),
        capacity_tokens=message.capacity_tokens,
        max_num_seqs=message.max_num_seqs,
    )
