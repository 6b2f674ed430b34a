"""What a router holds of a registry that forgets: who stays, who leaves, and when."""

from __future__ import annotations

import pytest

from baton.cluster.view import Listed, View, Withdrawn
from baton.wire.types import Endpoint, Role

A, B = Endpoint("a:1", Role.PREFILL), Endpoint("b:1", Role.DECODE)
TTL_S = 10.0


@pytest.fixture
def view() -> View:
    view = View(TTL_S)
    assert view.take([Listed(A, 10.0), Listed(B, 4.0)], now=100.0) == {A, B}
    return view


def test_a_registry_that_was_emptied_takes_nobody_away_before_his_time(view):
    assert view.take([], now=103.9) == {A, B}
    assert view.take([], now=104.0) == {A}
    assert view.take([Listed(B, 10.0)], now=105.0) == {A, B}
    assert view.take([Listed(B, 5.0)], now=110.0) == {B}


def test_a_goodbye_counts_at_once_and_a_return_too(view):
    assert view.take([Withdrawn("a:1"), Listed(B, 4.0)], now=101.0) == {B}
    assert view.take([Listed(A, 10.0), Listed(B, 4.0)], now=102.0) == {A, B}


def test_an_address_is_listed_once_with_its_latest_role(view):
    again = Endpoint("a:1", Role.DECODE)
    assert view.take([Listed(again, 10.0), Listed(B, 4.0)], now=101.0) == {again, B}


def test_no_time_passes_while_the_registry_cannot_be_read(view):
    view.interrupt()
    assert view.take([], now=5000.0) == {A, B}
    assert view.take([Listed(A, 10.0)], now=5009.9) == {A, B}
    assert view.take([Listed(A, 10.0)], now=5010.0) == {A}


def test_an_interruption_shortens_no_life():
    view = View(TTL_S)
    view.take([Listed(A, 60.0)], now=0.0)
    view.interrupt()
    assert view.take([], now=1.0) == {A}
    assert view.take([], now=59.0) == {A}
    assert view.take([], now=60.0) == frozenset()
