"""The registry on Redis 6 or later, or Valkey: several routers share one view. The only module that knows redis.

baton:worker:ADDRESS   JSON of one worker, with a time to live; after a goodbye {"gone": true}
baton:workers          set of the addresses that may have a record
channel baton:workers  an address whose record changed: a hint to read at once; the readings alone are trusted
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from baton.cluster.view import Listed, View, Withdrawn
from baton.wire.registry import RegistryError
from baton.wire.types import Endpoint, Registration, Role

log = logging.getLogger(__name__)

WORKERS = "baton:workers"
RECORD = "baton:worker:"

REPLY_S = 1.0
"""How long an operation may take, and a dial."""
READ_S = 1.0
"""How often the whole registry is read."""
GATHER_S = 0.05
"""How long a hint waits for others: a burst of changes is one reading."""

ANNOUNCE = """
local changed = redis.call('GET', KEYS[1]) ~= ARGV[1]
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
if changed then redis.call('PUBLISH', KEYS[2], ARGV[3]) end
"""
WITHDRAW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  redis.call('PUBLISH', KEYS[2], ARGV[3])
end
"""
READ = """
local entries = {}
for _, address in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local record = redis.call('GET', ARGV[1] .. address)
  if record then
    table.insert(entries, {address, record, redis.call('PTTL', ARGV[1] .. address)})
  else
    redis.call('SREM', KEYS[1], address)
  end
end
return entries
"""


class RedisAnnouncer:
    """Implements Announcer: the worker's record, written whole each time, so that a Redis that forgot it has it again."""

    def __init__(self, url: str, password: str) -> None:
        self.name = f"the registry {url}"
        self._redis = _connect(url, password)

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        address, ttl_ms = registration.address, round(ttl_s * 1000)
        await self._run(ANNOUNCE, RECORD + address, WORKERS, _record(registration), str(ttl_ms), address)

    async def withdraw(self, registration: Registration) -> None:
        address, goodbye = registration.address, json.dumps({"gone": True})
        await self._run(WITHDRAW, RECORD + address, WORKERS, _record(registration), goodbye, address)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _run(self, script: str, *keys_and_values: str) -> None:
        async with _answering(self.name):
            await _evaluate(self._redis, script, 2, *keys_and_values)


class RedisRegistry:
    """Implements Registry: reads every record once a second, or at once when a hint comes. `ttl_s`: see View."""

    def __init__(self, url: str, password: str, ttl_s: float) -> None:
        self._name = f"the registry {url}"
        self._url, self._password, self._ttl_s = url, password, ttl_s
        self._away = False
        self.error: str | None = f"{self._name} has not answered yet"

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        view, shown = View(self._ttl_s), None
        while True:
            try:
                async with self._session() as (redis, hints):
                    while True:
                        workers = view.take(await self._read(redis), time.monotonic())
                        self._note(None)
                        if workers != shown:
                            shown = workers
                            yield workers
                        await self._hinted(hints)
            except RegistryError as error:
                self._note(str(error))
                view.interrupt()
            await asyncio.sleep(READ_S * random.uniform(0.5, 1.0))

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[tuple[Redis, PubSub]]:
        async with _connect(self._url, self._password) as redis, redis.pubsub() as hints:
            async with _answering(self._name):
                await hints.subscribe(WORKERS)
            yield redis, hints

    async def _read(self, redis: Redis) -> list[Listed | Withdrawn]:
        async with _answering(self._name):
            entries = await _evaluate(redis, READ, 1, WORKERS, RECORD)
        return list(_entries(entries))

    async def _hinted(self, hints: PubSub) -> None:
        """Returns when it is time to read again."""
        with _translated(self._name):
            if await hints.get_message(ignore_subscribe_messages=True, timeout=READ_S * random.uniform(0.8, 1.0)):
                await asyncio.sleep(GATHER_S)
                while await hints.get_message(ignore_subscribe_messages=True, timeout=0):
                    pass

    def _note(self, error: str | None) -> None:
        if error and not self._away:
            log.warning("%s; serving goes on with the workers that are known", error)
        elif self._away and not error:
            log.info("%s answers again", self._name)
        self.error, self._away = error, error is not None


def _connect(url: str, password: str) -> Redis:
    """Connects when first used. Failures are told at once: waiting and trying again is the callers' part."""
    client: Redis = Redis.from_url(
        url,
        password=password or None,
        socket_timeout=REPLY_S,
        socket_connect_timeout=REPLY_S,
        retry=Retry(NoBackoff(), 0),
    )
    return client


async def _evaluate(redis: Redis, script: str, num_keys: int, *keys_and_values: str) -> Any:
    return await redis.eval(script, num_keys, *keys_and_values)


@asynccontextmanager
async def _answering(name: str) -> AsyncIterator[None]:
    """Bounds an operation, dial and authentication included."""
    with _translated(name):
        async with asyncio.timeout(2 * REPLY_S):
            yield


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise RegistryError(f"{name} does not answer: {error or 'no word in time'}") from error


# --- records ----------------------------------------------------------------------------------------------------------


def _record(registration: Registration) -> str:
    return json.dumps(
        {
            "role": registration.role,
            "model": registration.model,
            "capacity_tokens": registration.capacity_tokens,
            "max_num_seqs": registration.max_num_seqs,
            "incarnation": registration.incarnation.hex(),
        }
    )


def _entries(read: Sequence[tuple[bytes, bytes, int]]) -> Iterator[Listed | Withdrawn]:
    for address, record, rest_ms in read:
        entry = _entry(address.decode(errors="replace"), record, rest_ms / 1000)
        if entry is not None:
            yield entry


def _entry(address: str, record: bytes, rest_s: float) -> Listed | Withdrawn | None:
    """None for a record that is not ours to understand: an unknown role, another program's value."""
    try:
        fields = json.loads(record)
        if fields.get("gone"):
            return Withdrawn(address)
        return Listed(Endpoint(address, Role(fields["role"])), rest_s)
    except (ValueError, KeyError, AttributeError) as error:
        log.debug("the record of %s is left out: %r", address, error)
        return None
