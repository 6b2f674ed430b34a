"""Server-sent events out of bytes that arrive in any pieces."""

from __future__ import annotations


class EventReader:
    """Gives the data of each whole event; comments and other fields are skipped. Lines end in LF or CRLF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that `piece` completes."""
        lines = (self._rest + piece if self._rest else piece).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].lstrip(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
