"""Messages between the parent and its children: a JSON head and an optional binary tail, length-prefixed.

The child is not trusted: nothing is unpickled here, its messages have a maximum length, and every read has a
deadline. Messages to the child may be as long as a model's parameters.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from typing import Any

_PREFIX = struct.Struct("<IQ")
_MAX_HEAD = 16 << 20
_MAX_TAIL = 1 << 30
_MAX_DIGITS = 20
"""Most digits of a number below 2^63, with its sign. Longer numbers are not parsed: int() of millions of
digits takes minutes."""


def _parse_float(text: str) -> float | None:
    """The number; None for infinities and NaN, so that nothing is computed with them."""
    value = float(text)
    return value if math.isfinite(value) else None


def _parse_int(text: str) -> int | None:
    """The number; None if it does not fit into 64 bits."""
    value = int(text) if len(text) <= _MAX_DIGITS else 1 << 63
    return value if abs(value) < 1 << 63 else None


class ChannelClosed(Exception):
    """The other side closed the channel."""


class ReplyTimeout(Exception):
    """No complete message arrived before the deadline."""


class MalformedMessage(Exception):
    """The bytes that arrived are not a valid message."""


class Channel:
    """One end of a socket that carries messages."""

    def __init__(self, sock: socket.socket, trusted: bool = False):
        """`trusted`: the other side is trusted, and its tails may have any length."""
        self.sock, self._trusted = sock, trusted

    def send(self, head: dict[str, Any], tail: bytes = b"") -> None:
        """Send one message; raises ChannelClosed."""
        data = json.dumps(head, separators=(",", ":")).encode()
        try:
            self.sock.sendall(_PREFIX.pack(len(data), len(tail)) + data + tail)
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosed from None

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], bytes]:
        """The next message; raises ChannelClosed, ReplyTimeout or MalformedMessage."""
        deadline = None if seconds is None else time.monotonic() + seconds
        head_size, tail_size = _PREFIX.unpack(self._receive_exactly(_PREFIX.size, deadline))
        if head_size > _MAX_HEAD or (tail_size > _MAX_TAIL and not self._trusted):
            raise MalformedMessage(f"message of {head_size} + {tail_size} bytes")
        text = self._receive_exactly(head_size, deadline)
        tail = self._receive_exactly(tail_size, deadline)
        try:
            head = json.loads(
                text, parse_constant=lambda _: None, parse_float=_parse_float, parse_int=_parse_int
            )
        except (ValueError, RecursionError):
            raise MalformedMessage("message is not JSON") from None
        if not isinstance(head, dict):
            raise MalformedMessage("message is not an object")
        return head, tail

    def has_data(self, seconds: float = 0) -> bool:
        """Whether bytes have arrived that were not received yet; waits for them for at most `seconds`."""
        return bool(select.select([self.sock], [], [], seconds)[0])

    def spin_until_data(self, seconds: float) -> None:
        """Busy-wait for data for at most `seconds`: a core that sleeps wakes up late."""
        deadline = time.monotonic() + seconds
        while not self.has_data() and time.monotonic() < deadline:
            pass

    def _receive_exactly(self, size: int, deadline: float | None) -> bytes:
        parts, missing = [], size
        while missing:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                    raise ReplyTimeout
            try:
                part = self.sock.recv(min(missing, 1 << 20))
            except ConnectionResetError:
                raise ChannelClosed from None
            if not part:
                raise ChannelClosed
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
