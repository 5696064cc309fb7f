"""Messages between parent and child."""

from __future__ import annotations

import socket
import time

import pytest

from kernelpro.lab.sandbox import wire
from kernelpro.lab.sandbox.wire import Channel, MalformedMessage


def test_a_child_is_sent_what_it_needs_and_sends_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of a layer may take gigabytes."""
    monkeypatch.setattr(wire, "_MAX_TAIL", 1000)
    here, there = socket.socketpair()
    parent, child = Channel(here), Channel(there, trusted=True)
    parent.send({"op": "load"}, b"x" * 1001)
    assert child.receive(5.0) == ({"op": "load"}, b"x" * 1001)
    child.send({"ok": True}, b"x" * 1001)
    with pytest.raises(MalformedMessage, match="1001 bytes"):
        parent.receive(5.0)
    parent.close()
    child.close()


def test_whole_numbers_arrive_as_long_as_a_clock_needs_them() -> None:
    """Nanoseconds since 1970 have 19 digits: a trace without them is none."""
    here, there = socket.socketpair()
    parent, child = Channel(here), Channel(there)
    for stamp in (time.time_ns(), 2**63 - 1, 1 - 2**63):
        child.send({"at": stamp})
        assert parent.receive(5.0)[0] == {"at": stamp}
    for forged in (2**63, -(2**63), 10**4000):
        child.send({"at": forged})
        assert parent.receive(5.0)[0] == {"at": None}
    parent.close()
    child.close()
