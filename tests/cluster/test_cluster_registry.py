"""The registry in memory: now, then each change, latest first for a slow reader."""

import asyncio

from baton.cluster.registry import MemoryRegistry
from baton.wire.types import Endpoint, Role

A, B = Endpoint("a:1", Role.PREFILL), Endpoint("b:1", Role.DECODE)


async def test_a_watcher_sees_the_present_and_each_change():
    registry = MemoryRegistry([A])
    watch = registry.watch()
    assert await anext(watch) == {A}
    later = asyncio.create_task(anext(watch))
    await asyncio.sleep(0)
    assert not later.done()
    registry.add(B)
    assert await asyncio.wait_for(later, 10) == {A, B}
    await watch.aclose()


async def test_a_slow_watcher_gets_the_latest_only():
    registry = MemoryRegistry()
    watch = registry.watch()
    assert await anext(watch) == frozenset()
    registry.add(A)
    registry.add(B)
    registry.remove(A)
    assert await anext(watch) == {B}
    await watch.aclose()


async def test_two_watchers_each_see_a_change():
    registry = MemoryRegistry()
    watches = [registry.watch(), registry.watch()]
    for watch in watches:
        await anext(watch)
    waiting = [asyncio.create_task(anext(watch)) for watch in watches]
    await asyncio.sleep(0)
    registry.add(A)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [{A}, {A}]
    for watch in watches:
        await watch.aclose()
