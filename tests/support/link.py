"""A bad wire for KV: a Connect that passes a gate before each message, and damages the messages that the test chose."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from enum import IntEnum
from pathlib import Path

from baton.wire.errors import TransferError
from baton.wire.types import KvAnswer, KvHello, Timeouts
from kvtransfer.transports.base import Channel, Connect
from tests.support.gate import Gate

LINK_VARIABLE = "TEST_KV_LINK"
_FORMAT = struct.Struct("QQQQ")  # kind, messages to let pass before, messages to damage, port they go to (0: any)
FOR_EVER = 2**32
COMMIT = 2**33
"""As `after`: the next commit is damaged, however many messages go before it."""
_COMMIT_TAG = 3 << 3 | 2  # KvUp{commit = 3}: the first byte of such a message


class Damage(IntEnum):
    """What happens to a message, or to a dial."""

    NONE = 0
    FLIP = 1
    TRUNCATE = 2
    REPEAT = 3
    SWAP = 4
    CUT = 5
    REFUSE = 6


class BadLink:
    """`gate` holds, slows and counts a worker's KV messages; `damage` spoils some. Both ends share it through files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gate = Gate(path.with_name(path.name + ".gate"))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, _FORMAT.size)
        self._memory = mmap.mmap(self._file, _FORMAT.size)

    def damage(self, kind: Damage, num: int = 1, after: int = 0, towards: str = ":0") -> None:
        """The next `num` messages behind the next `after` (or COMMIT) are damaged. REFUSE: so many dials fail, and writes.

        `towards`: a decode worker's address; the default means all of them.
        """
        _FORMAT.pack_into(self._memory, 0, kind, after, num, _port(towards))

    def repair(self) -> None:
        self.damage(Damage.NONE, 0)

    @property
    def damages_left(self) -> int:
        return int(_FORMAT.unpack_from(self._memory)[2])

    def due(self, address: str, *kinds: Damage, message: bytes = b"") -> Damage:
        """The worker's end: what happens to `message`, or to a dial, which goes to `address`; it is counted."""
        kind, after, num, port = _FORMAT.unpack_from(self._memory)
        if kind not in kinds or not num or port not in (0, _port(address)):
            return Damage.NONE
        if after == COMMIT:
            if message[:1] != bytes([_COMMIT_TAG]):
                return Damage.NONE
        elif after:
            _FORMAT.pack_into(self._memory, 0, kind, after - 1, num, port)
            return Damage.NONE
        _FORMAT.pack_into(self._memory, 0, kind, 0, num - 1, port)
        return Damage(kind)

    def wrap(self, connect: Connect) -> Connect:
        """`connect` over this link."""

        async def dial(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
            if self.due(address, Damage.REFUSE):
                raise TransferError("connect", "the test's link is cut")
            return BadChannel(await connect(address, hello, token, timeouts), self, address)

        return dial


class BadChannel:
    """A channel over a bad link."""

    def __init__(self, channel: Channel, link: BadLink, address: str) -> None:
        self.transport = channel.transport
        self._address = address
        self._channel = channel
        self._link = link
        self._kept: bytes | None = None

    async def write(self, message: bytes) -> None:
        await asyncio.to_thread(self._link.gate.step)
        damage = self._link.due(self._address, *Damage, message=message)
        if damage in (Damage.CUT, Damage.REFUSE):
            await self._channel.close()
            raise TransferError("channel_lost", "the test cut the link")
        if damage is Damage.SWAP:
            self._kept = message
            return
        for sent in self._damaged(damage, message):
            await self._channel.write(sent)

    def _damaged(self, damage: Damage, message: bytes) -> list[bytes]:
        kept, self._kept = self._kept, None
        if damage is Damage.FLIP:
            middle = len(message) // 2
            return [message[:middle] + bytes([message[middle] ^ 0x40]) + message[middle + 1 :]]
        if damage is Damage.TRUNCATE:
            return [message[: len(message) * 9 // 10]]
        if damage is Damage.REPEAT:
            return [message, message]
        return [message] if kept is None else [message, kept]

    async def read(self) -> KvAnswer:
        return await self._channel.read()

    async def close(self) -> None:
        await self._channel.close()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
