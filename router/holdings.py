"""What one flow holds at workers: leases attached to its inbox, and claims that count against the workers' room."""

from __future__ import annotations

from baton.wire.link_client import Inbox
from baton.wire.types import LeaseId
from router.placer import Placement
from router.workers import Worker


class Holdings:
    """Owned by one flow, which calls `let_go` at its end: nothing of it stays anywhere."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._attached: set[tuple[Worker, LeaseId]] = set()
        self._placement: Placement | None = None

    def attach(self, worker: Worker, lease: LeaseId) -> None:
        """The lease's events come to the inbox: once for both sides of a worker that prefills and decodes it."""
        if (worker, lease) not in self._attached:
            self._attached.add((worker, lease))
            worker.attach(lease, self._inbox)

    def detach(self, worker: Worker, lease: LeaseId) -> None:
        """The lease was ended at `worker`."""
        self._attached.discard((worker, lease))
        worker.detach(lease)

    def lose(self, worker: Worker) -> None:
        """The worker died: it has nothing of this flow any more, and may be attached anew when it comes back."""
        for held in [held for held in self._attached if held[0] is worker]:
            self.detach(*held)

    def claim(self, placement: Placement) -> None:
        """Takes over the claims; a decode that holds the lease already stays claimed."""
        kept = self._placement.decode if self._placement else None
        self._placement = Placement(placement.lease, placement.prefill, placement.decode or kept)

    def release_prefill(self) -> None:
        """Prefill has sampled, failed or was given up: its place is free for another request."""
        if self._placement is not None:
            self._placement.prefill.release()

    def release(self) -> None:
        """The lease is over at both."""
        if self._placement is not None:
            self._placement.release()

    def let_go(self) -> None:
        """The flow has ended."""
        self.release()
        for held in tuple(self._attached):
            self.detach(*held)
