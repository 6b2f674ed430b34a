"""The seam between moving KV and the wire it moves over.

A transport connects a sender to one life of a receiver and carries messages one way, answers the other, both in order. It knows
no leases: messages are bytes of `kvtransfer.frames` and stay as they are until they arrive or the channel breaks; how they look
on which transport says `kvtransfer.forms`. Retries, deadlines of an attempt and sharing a channel between requests belong to
the layers above.

    Sender ── write(message) ──> Channel ~~~~ wire ~~~~ server ── take(deliveries) ──> Sink (the Receiver)
           <── read() -> answer ──                            <── answers ──
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton.wire.types import Commit, KvAnswer, KvHello, Timeouts
from kvtransfer.frames import Frame, SharedFrame


class Channel(Protocol):
    """A sender's end, connected and greeted. One task writes and one task reads.

    A channel that breaks stays broken: every later call raises TransferError. There is no deadline inside: the caller puts one
    around each call, and a call that was cancelled breaks the channel, since half a message may be on the wire.
    """

    @property
    def transport(self) -> str:
        """How KV moves, as the timeline names it."""
        ...

    async def write(self, message: bytes) -> None:
        """Sends one message of at most about 1 MiB. Returns when the wire has room for the next one: that is the back-pressure.

        The message is a copy that nobody changes: the sender's blocks are not read after it was built.
        Raises TransferError("channel_lost").
        """
        ...

    async def read(self) -> KvAnswer:
        """The receiver's next answer, whichever attempt it is for. Raises TransferError("channel_lost")."""
        ...

    async def close(self) -> None:
        """Gives the connection back. Idempotent; never raises."""
        ...


class Connect(Protocol):
    """Dials: one implementation a transport."""

    async def __call__(self, address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
        """Connects to `address` and says hello, all within `timeouts.connect_s`.

        Raises PairingRefused if the two workers cannot work together, else TransferError: "connect" (nobody answers),
        "wrong_incarnation" (another life answers there), "unauthenticated" (another cluster's token).
        """
        ...


Delivery = Frame | SharedFrame | Commit
"""What follows a hello on a channel, decoded by the transport's server."""


class Sink(Protocol):
    """A receiver as a transport's server sees it: `open` for a channel's first message, then `take` for the others in order."""

    def open(self, hello: KvHello) -> None:
        """Checks a channel's first message. Raises PairingRefused or TransferError: the server says so and hangs up."""
        ...

    async def take(self, deliveries: Sequence[Delivery]) -> list[KvAnswer]:
        """Takes what came next, one or more; the server takes little further until this returned: the receiver's back-pressure.

        Payloads must stay where they are until then: the digest is verified over them (over a copy where a frame is shared) and
        they are copied out. Returns the answers to send.
        """
        ...
