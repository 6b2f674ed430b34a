"""KV channels: frames and commits one way, answers the other."""

from __future__ import annotations

from collections.abc import Iterator

from tests.explore import nodes
from tests.explore.world import Channel, Step, World


def steps(world: World) -> Iterator[Step]:
    for number, channel in world.look("kv").by_number.items():
        if channel.to_target and not world.look(channel.target).paused:
            yield to_target, (number,)
        if channel.to_source and not world.look(channel.source).paused:
            yield to_source, (number,)
        if not channel.open and not world.look(channel.source).paused and _senders(world, number):
            yield notice, (number,)


def to_target(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    item = channel.to_target.pop(0)
    _forget_if_spent(world, number)
    nodes.arrived(world, channel.target, number, item)


def to_source(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    nodes.answered(world, channel.source, channel.to_source.pop(0))


def notice(world: World, number: int) -> None:
    """The sender's side finds its channel broken."""
    source = world.look("kv").by_number[number].source
    for lease in _senders(world, number):
        nodes.lose(world, source, lease, "channel_lost")
    _forget_if_spent(world, number)


def shut(world: World, number: int, *, arriving: bool) -> None:
    """Breaks the channel; what was sent before still arrives, or not."""
    channel: Channel = world.own("kv").by_number[number]
    channel.open = False
    channel.to_source.clear()
    if not arriving:
        channel.to_target.clear()
    _forget_if_spent(world, number)


def _senders(world: World, number: int) -> list[bytes]:
    records = world.look(world.look("kv").by_number[number].source).records
    return [
        lease
        for lease, record in records.items()
        if record.channel == number and record.attempt is not None and not record.attempt.over
    ]


def _forget_if_spent(world: World, number: int) -> None:
    channels = world.own("kv")
    channel = channels.by_number[number]
    if not channel.open and not channel.to_target and not _senders(world, number):
        del channels.by_number[number]
