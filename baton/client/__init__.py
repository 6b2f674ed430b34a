"""Async Python client of Baton's public gRPC door. Needs no torch.

async with AsyncClient("127.0.0.1:8001") as client:
    async for update in client.generate("Once upon a time", max_tokens=32):
        print("".join(delta.text for delta in update.deltas), end="")
"""

from baton.client.client import AsyncClient, Choice, Completion
from baton.wire.inference import Delta, ModelInfo, TimelineView, TokenLogprob, Update, Usage

__all__ = ["AsyncClient", "Choice", "Completion", "Delta", "ModelInfo", "TimelineView", "TokenLogprob", "Update", "Usage"]
