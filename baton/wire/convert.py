"""The link's messages: types <-> protobuf. The parts have files of their own: convert_model, convert_request, convert_event."""

from __future__ import annotations

from collections.abc import Sequence

from baton.wire.convert_event import pack_event, unpack_event
from baton.wire.convert_model import pack_info, unpack_info
from baton.wire.convert_request import pack_command, unpack_command
from baton.wire.flat import pack_flat, unpack_flat
from baton.wire.pb import worker_pb2 as pb
from baton.wire.types import (
    MIN_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Command,
    Down,
    Event,
    LoadReport,
    Position,
    RouterHello,
    Up,
    WorkerHello,
)


def pack_router_hello(value: RouterHello) -> pb.LinkUp:
    hello = pb.RouterHello(
        incarnation=value.incarnation,
        link_id=value.link_id,
        live=[pack_flat(position, pb.Position) for position in value.live],
        protocol=PROTOCOL_VERSION,
        min_protocol=MIN_PROTOCOL_VERSION,
    )
    return pb.LinkUp(hello=hello)


def unpack_router_hello(message: pb.LinkUp) -> RouterHello:
    hello = message.hello
    return RouterHello(hello.incarnation, hello.link_id, tuple(unpack_flat(live, Position) for live in hello.live))


def pack_worker_hello(value: WorkerHello) -> pb.LinkDown:
    return pb.LinkDown(hello=pb.WorkerHello(info=pack_info(value.info), resumed=value.resumed, lacking=value.lacking))


def unpack_worker_hello(message: pb.LinkDown) -> WorkerHello:
    hello = message.hello
    return WorkerHello(unpack_info(hello.info), hello.resumed, tuple(hello.lacking))


def pack_up(commands: Sequence[Command]) -> pb.LinkUp:
    return pb.LinkUp(commands=[pack_command(command) for command in commands])


def unpack_up(message: pb.LinkUp) -> Up:
    return Up(tuple(unpack_command(command) for command in message.commands))


def pack_down(events: Sequence[Event], load: LoadReport | None) -> pb.LinkDown:
    message = pb.LinkDown(load=pack_flat(load, pb.LoadReport) if load is not None else None)
    for event in events:
        pack_event(event, message.events.add())
    return message


def unpack_down(message: pb.LinkDown) -> Down:
    load = unpack_flat(message.load, LoadReport) if message.HasField("load") else None
    return Down(tuple([unpack_event(event) for event in message.events]), load)
