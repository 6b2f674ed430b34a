"""Prefill and decode workers of the explored world, around the real sender and receiver machines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from baton.wire.types import (
    Command,
    Commit,
    End,
    Event,
    Fence,
    Finish,
    Finished,
    FinishReason,
    FirstToken,
    FrameHeader,
    Gone,
    HandedOff,
    KvAnswer,
    LeaseId,
    Position,
    Preempted,
    Refused,
    RequestSpec,
    Reserved,
    StartDecode,
    StartPrefill,
    Token,
    Tokens,
)
from kvtransfer.protocol import receiver as receiving
from kvtransfer.protocol import sender as sending
from kvtransfer.protocol.receiver import Expected, ReceiveLease
from kvtransfer.protocol.sender import SendAttempt
from tests.explore import texts
from tests.explore.snapshot import Part
from tests.explore.world import Channel, InFlight, KvItem, Stamp, Violation, World


def combine(digests: Any) -> int:
    return hash(tuple(digests))


@dataclass
class Record(Part):
    """What a worker keeps of a lease until its end: what it said, to be said again over a resumed link."""

    epoch: int
    spec: RequestSpec
    said: list[Event] = field(default_factory=list)


@dataclass
class PrefillRecord(Record):
    attempt: SendAttempt | None = None  # None: prefill alone
    target: str = ""
    target_incarnation: int = 0
    channel: int | None = None
    computed: int = 0
    over: bool = False


@dataclass
class DecodeRecord(Record):
    lease: ReceiveLease | None = None  # None: refused
    block: int = 0
    channel: int | None = None  # on which the attempt's sender waits
    outputs: dict[int, list[int]] = field(default_factory=dict)  # running choices: output ids
    first: int = 0  # tokens of `outputs` that the router knows from prefill


@dataclass
class Worker(Part):
    name: str
    incarnation: int = 0
    paused: bool = False
    records: dict[LeaseId, Any] = field(default_factory=dict)


@dataclass
class Decode(Worker):
    owners: list[LeaseId | None] = field(default_factory=list)
    blocks: list[dict[int, Stamp | None]] = field(default_factory=list)
    writes: list[InFlight] = field(default_factory=list)
    closing: dict[LeaseId, DecodeRecord] = field(default_factory=dict)  # ended, with writes in flight


def say(world: World, name: str, lease: LeaseId, event: Event) -> None:
    """To the router, if the stream stands; the record keeps it in any case."""
    record = world.own(name).records.get(lease)
    if record is not None:
        record.said.append(event)
    if world.look("link:" + name).open:
        world.own("link:" + name).to_router.append(event)


def again(world: World, name: str, lease: LeaseId, positions: tuple[Position, ...]) -> None:
    """Over a resumed link: every answer, and the tokens that the router lacks."""
    next_index = {position.choice: position.next_index for position in positions}
    link = world.own("link:" + name)
    for event in world.look(name).records[lease].said:
        if not isinstance(event, Tokens):
            link.to_router.append(event)
        elif event.choice in next_index and event.index + len(event.tokens) > next_index[event.choice]:
            skipped = max(0, next_index[event.choice] - event.index)
            link.to_router.append(replace(event, index=event.index + skipped, tokens=event.tokens[skipped:]))


def command(world: World, name: str, message: Command) -> None:
    match message:
        case StartPrefill():
            _start_prefill(world, name, message)
        case StartDecode():
            _start_decode(world, name, message)
        case Fence():
            _fence(world, name, message)
        case Finish():
            record = world.own(name).records.get(message.lease)
            if record is not None:
                record.outputs.pop(message.choice, None)
                _finish_if_quiet(world, name, message.lease)
        case End():
            end(world, name, message.lease)


def end(world: World, name: str, lease: LeaseId) -> None:
    worker = world.own(name)
    record = worker.records.pop(lease, None)
    if isinstance(record, PrefillRecord) and record.attempt is not None:
        _perform_send(world, name, lease, record, record.attempt.end())
        if not record.attempt.unpinned:
            raise Violation(f"{name} ended {lease!r} without unpinning its blocks")
    if isinstance(record, DecodeRecord) and record.lease is not None:
        actions = record.lease.end()
        if not record.lease.freed:
            worker.closing[lease] = record
        _perform_receive(world, name, lease, record, actions)


def end_all(world: World, name: str) -> None:
    for lease in list(world.look(name).records):
        end(world, name, lease)


# --- prefill -----------------------------------------------------------------------------------------------------


def _start_prefill(world: World, name: str, start: StartPrefill) -> None:
    worker = world.own(name)
    known = worker.records.get(start.lease)
    if known is not None:
        if known.epoch >= start.epoch:
            return
        end(world, name, start.lease)
    record = PrefillRecord(start.epoch, start.spec)
    if start.decode is not None:
        record.target, record.target_incarnation = start.decode.address, start.decode.incarnation[0]
        record.attempt = world.scenario.sender(start.lease, start.epoch, start.num_cached, start.spec.total_len, 1, combine)
    worker.records[start.lease] = record


def compute(world: World, name: str, lease: LeaseId) -> None:
    """One more chunk; the last brings the first tokens."""
    record: PrefillRecord = world.own(name).records[lease]
    record.computed = min(record.computed + world.scenario.chunk, record.spec.total_len)
    if record.attempt is not None:
        _perform_send(world, name, lease, record, record.attempt.computed(record.computed))
    if record.computed < record.spec.total_len or record.over:
        return
    index = len(record.spec.output_ids)
    ends = world.scenario.finish_first or index + 1 == record.spec.params.max_tokens
    sampler = (lease, record.epoch)
    first = tuple(
        FirstToken(choice, Token(_sample(lease, choice, record.spec.output_ids, sampler)), FinishReason.STOP if ends else None)
        for choice in record.spec.choices
    )
    for one in first:
        say(world, name, lease, Tokens(lease, record.epoch, one.choice, index, (one.token,)))
        if one.finish is not None:
            say(world, name, lease, Finished(lease, record.epoch, one.choice, one.finish, index + 1))
    if record.attempt is not None:
        _perform_send(world, name, lease, record, record.attempt.sampled(index, first))
    else:
        record.over = True
        say(world, name, lease, HandedOff(lease, record.epoch))


def answered(world: World, name: str, answer: KvAnswer) -> None:
    record = world.own(name).records.get(answer.lease)
    if record is not None and record.attempt is not None:
        _perform_send(world, name, answer.lease, record, record.attempt.answer(answer))


def lose(world: World, name: str, lease: LeaseId, reason: str) -> None:
    record = world.own(name).records[lease]
    _perform_send(world, name, lease, record, record.attempt.lost(reason))


def _perform_send(world: World, name: str, lease: LeaseId, record: PrefillRecord, actions: list[sending.Action]) -> None:
    for action in actions:
        match action:
            case sending.Ship():
                _ship(world, name, lease, record, action)
            case sending.SendCommit():
                _put(world, record, KvItem(action.commit))
            case sending.Report():
                record.over = True
                say(world, name, lease, action.event)
            case sending.Unpin():
                pass


def _ship(world: World, name: str, lease: LeaseId, record: PrefillRecord, ship: sending.Ship) -> None:
    if record.channel is None and not _open(world, name, record):
        lose(world, name, lease, "channel_lost")
        return
    for position in range(ship.token_start, ship.token_end):
        header = record.attempt.frame(position, position + 1, 0, 1) if record.attempt else None
        if header is not None and record.attempt is not None:
            header = replace(header, digest=hash((lease, record.epoch, position)))
            _put(world, record, KvItem(header, (lease, record.epoch, position)))
            _perform_send(world, name, lease, record, record.attempt.sent(header))


def _open(world: World, name: str, record: PrefillRecord) -> bool:
    """The channel of the pair, opened if there is none; decode's other process life refuses."""
    if world.look(record.target).incarnation != record.target_incarnation:
        return False
    channels = world.own("kv")
    for number, channel in channels.by_number.items():
        if channel.open and (channel.source, channel.target) == (name, record.target):
            record.channel = number
            return True
    channels.opened += 1
    record.channel = channels.opened
    channels.by_number[record.channel] = Channel(name, record.target)
    return True


def _put(world: World, record: PrefillRecord, item: KvItem) -> None:
    channel = world.own("kv").by_number.get(record.channel)
    if channel is not None and channel.open:
        channel.to_target.append(item)


# --- decode ------------------------------------------------------------------------------------------------------


def _start_decode(world: World, name: str, start: StartDecode) -> None:
    worker: Decode = world.own(name)
    if start.lease in worker.records:
        return
    record = worker.records[start.lease] = DecodeRecord(start.epoch, start.spec)
    if None not in worker.owners:
        say(world, name, start.lease, Refused(start.lease, start.epoch, "no_blocks"))
        return
    record.block = worker.owners.index(None)
    worker.owners[record.block] = start.lease
    spec = start.spec
    expected = Expected(start.epoch, 0, spec.total_len, len(spec.output_ids), spec.choices)
    record.lease = world.scenario.receiver(start.lease, expected, 1, combine)
    say(world, name, start.lease, Reserved(start.lease, start.epoch, 0))


def _fence(world: World, name: str, fence: Fence) -> None:
    record = world.own(name).records.get(fence.lease)
    if record is None or record.lease is None:
        say(world, name, fence.lease, Gone(fence.lease, fence.epoch))
        return
    total_len = len(record.spec.prompt_ids) + len(fence.output_ids)
    actions = record.lease.fence(fence.epoch, total_len, len(fence.output_ids))
    if record.lease.state is not receiving.State.COMMITTED:
        record.spec = replace(record.spec, output_ids=fence.output_ids)
    _perform_receive(world, name, fence.lease, record, actions)


def arrived(world: World, name: str, number: int, item: KvItem) -> None:
    """A frame or a commit came out of channel `number`."""
    message = item.message
    record = world.own(name).records.get(message.lease)
    if record is None or record.lease is None:
        _answer(world, number, KvAnswer(message.lease, message.epoch, ok=False, reason="unknown_lease"))
        return
    record.channel = number
    lease = record.lease
    actions = lease.commit(message) if isinstance(message, Commit) else lease.frame(message, item.intact)
    _perform_receive(world, name, message.lease, record, actions, item)


def landed(world: World, name: str, at: int) -> None:
    """A write in flight reaches its block."""
    worker: Decode = world.own(name)
    write = worker.writes.pop(at)
    header, content = write.item.message, write.item.content
    record = worker.records.get(header.lease) or worker.closing.get(header.lease)
    if (
        worker.owners[write.block] != header.lease
        or record is None
        or record.lease is None
        or not isinstance(header, FrameHeader)
    ):
        raise Violation(f"{name} wrote into a block that {header.lease!r} does not hold")
    if record.outputs or record.lease.state is receiving.State.COMMITTED:
        raise Violation(f"{name} wrote into blocks that are being read")
    worker.blocks[write.block][header.token_start] = content if write.item.intact else None
    _perform_receive(world, name, header.lease, record, record.lease.written(header.epoch, header.sequence))


def decode(world: World, name: str, lease: LeaseId, choice: int) -> None:
    """One more token of one choice; the first event repeats the commit's."""
    record: DecodeRecord = world.own(name).records[lease]
    ids = record.outputs[choice]
    known = len(ids) - 1 if len(ids) == record.first else len(ids)
    ids.append(_sample(lease, choice, tuple(ids), lease))
    say(world, name, lease, Tokens(lease, record.epoch, choice, known, tuple(Token(id_) for id_ in ids[known:])))
    if len(ids) == record.spec.params.max_tokens:
        record.outputs.pop(choice)
        say(world, name, lease, Finished(lease, record.epoch, choice, FinishReason.LENGTH, len(ids)))
        _finish_if_quiet(world, name, lease)


def preempt(world: World, name: str, lease: LeaseId, choice: int) -> None:
    record: DecodeRecord = world.own(name).records[lease]
    record.outputs.pop(choice)
    say(world, name, lease, Preempted(lease, record.epoch, choice))
    _finish_if_quiet(world, name, lease)


def _finish_if_quiet(world: World, name: str, lease: LeaseId) -> None:
    record = world.own(name).records[lease]
    if not record.outputs and record.lease is not None and record.lease.state is receiving.State.COMMITTED:
        _perform_receive(world, name, lease, record, record.lease.finished())


def _perform_receive(
    world: World, name: str, lease: LeaseId, record: DecodeRecord, actions: list[receiving.Action], item: KvItem | None = None
) -> None:
    worker: Decode = world.own(name)
    for action in actions:
        match action:
            case receiving.Write() if item is not None:
                worker.writes.append(InFlight(item, record.block))
                if not world.scenario.slow_writes:
                    landed(world, name, len(worker.writes) - 1)
            case receiving.Answer() if record.channel is not None:
                _answer(world, record.channel, action.answer)
            case receiving.Report():
                say(world, name, lease, action.event)
            case receiving.Live():
                _join(worker, record, action.commit)
            case receiving.Free():
                _free(worker, lease, record)


def _join(worker: Decode, record: DecodeRecord, commit: Commit) -> None:
    """Reads every cell, as the next decode step will."""
    cells = worker.blocks[record.block]
    for position in range(record.spec.total_len):
        if cells.get(position) != (commit.lease, commit.epoch, position):
            raise Violation(
                f"{worker.name} reads {cells.get(position)} at {position} for epoch {commit.epoch} of {commit.lease!r}"
            )
    record.epoch = commit.epoch
    record.first = commit.index + 1
    record.outputs = {one.choice: [*record.spec.output_ids, one.token.id] for one in commit.first if one.finish is None}


def _free(worker: Decode, lease: LeaseId, record: DecodeRecord) -> None:
    if worker.owners[record.block] != lease:
        raise Violation(f"{worker.name} freed blocks twice")
    worker.owners[record.block] = None
    worker.closing.pop(lease, None)


def _answer(world: World, number: int, answer: KvAnswer) -> None:
    channel = world.own("kv").by_number.get(number)
    if channel is not None and channel.open:
        channel.to_source.append(answer)


def _sample(lease: LeaseId, choice: int, context: tuple[int, ...], sampler: object) -> int:
    return texts.sample(lease.decode().partition("#")[0], choice, context, sampler)
