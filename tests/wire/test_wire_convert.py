"""Whatever crosses the link comes out as it went in."""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire import convert
from baton.wire.pb import worker_pb2 as pb
from baton.wire.types import Command, Event, LoadReport, RouterHello, Token, WorkerHello

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**32 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=20),
    bytes: st.binary(min_size=16, max_size=16),
    bool: st.booleans(),
    NoneType: st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that crosses the link."""
    if kind is Token:
        return tokens()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = get_type_hints(kind)
        return st.builds(kind, **{name: values(hint) for name, hint in fields.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if get_origin(kind) in (Union, UnionType):
        return st.one_of([values(option) for option in get_args(kind)])
    if get_origin(kind) is tuple:
        first, second = get_args(kind)
        return st.lists(values(first), max_size=3).map(tuple) if second is ... else st.tuples(values(first), values(second))
    return PLAIN[kind]


def tokens() -> st.SearchStrategy[Token]:
    """Alternatives come with the token's own logprob only."""
    top = values(tuple[tuple[int, float], ...])
    return st.builds(Token, PLAIN[int]) | st.builds(Token, PLAIN[int], PLAIN[float], top)


@given(values(tuple[Command, ...]))
def test_commands(commands: tuple[Command, ...]) -> None:
    raw = convert.pack_up(commands).SerializeToString()
    assert convert.unpack_up(pb.LinkUp.FromString(raw)).commands == commands


@given(values(tuple[Event, ...]), values(LoadReport | None))
def test_events(events: tuple[Event, ...], load: LoadReport | None) -> None:
    raw = convert.pack_down(events, load).SerializeToString()
    down = convert.unpack_down(pb.LinkDown.FromString(raw))
    assert (down.events, down.load) == (events, load)


@given(values(RouterHello), values(WorkerHello))
def test_hellos(router: RouterHello, worker: WorkerHello) -> None:
    up, down = convert.pack_router_hello(router), convert.pack_worker_hello(worker)
    assert convert.unpack_router_hello(pb.LinkUp.FromString(up.SerializeToString())) == router
    assert convert.unpack_worker_hello(pb.LinkDown.FromString(down.SerializeToString())) == worker


@pytest.mark.parametrize("kind", [*get_args(Command), *get_args(Event)])
def test_every_kind_has_a_place_in_the_proto(kind: type) -> None:
    fields = {name for kinds in (pb.Command, pb.Event) for name in kinds.DESCRIPTOR.fields_by_name}
    assert re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() in fields


def test_what_a_newer_peer_sends_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown command"):
        convert.unpack_up(pb.LinkUp(commands=[pb.Command()]))
    with pytest.raises(ValueError, match="unknown event"):
        convert.unpack_down(pb.LinkDown(events=[pb.Event()]))
