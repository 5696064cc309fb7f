"""The program of every child: it serves requests until the parent closes the channel.

The role of a child determines which requests it serves. The class of a role is imported when a child of that
role starts, so that this module depends on none of these classes.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from kernelpro.lab.languages.torch import path_with_python_scripts
from kernelpro.lab.sandbox.compilation import announced_compilation
from kernelpro.lab.sandbox.process import PROBE_ROLE
from kernelpro.lab.sandbox.stages import StageFailed, describe_exception
from kernelpro.lab.sandbox.wire import Channel, ChannelClosed

Request = dict[str, Any]
"""A request as it arrives: `op` names the method that serves it, the other keys are its parameters."""
Reply = tuple[dict[str, Any], bytes]
"""The JSON head of a reply, and its binary tail."""

ROLES = {
    "candidate": "kernelpro.lab.sandbox.candidate_server:CandidateServer",
    "guarded": "kernelpro.lab.sandbox.guarded_server:GuardedServer",
    "baseline": "kernelpro.lab.sandbox.baseline_server:BaselineServer",
    "build": "kernelpro.lab.sandbox.build_server:BuildServer",
    "profile": "kernelpro.lab.profile.profiling_server:ProfilingServer",
}
"""The class that serves each role, as `module:Class`."""


class RequestServer:
    """The requests that a role serves, one method each."""

    def __init__(self, shared_fds: list[int]):
        self.has_next_request: Callable[[], bool] = lambda: True
        """Whether the next request has arrived."""
        self.send_early: Callable[[dict[str, Any]], None] = lambda head: None
        """Sends a message to the parent before the reply."""


def preload() -> None:
    """Import the modules of the sandbox's own roles, before children are forked."""
    for role in ("candidate", "guarded", "baseline", "build"):
        _class_of(role)


def _class_of(role: str) -> type[RequestServer]:
    module, _, name = ROLES[role].partition(":")
    server: type[RequestServer] = getattr(importlib.import_module(module), name)
    return server


def run(role: str, control: socket.socket, shared_fds: list[int]) -> None:
    """Serve requests until the parent closes the channel."""
    for name in ("SIGTERM", "SIGINT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.environ["PATH"] = path_with_python_scripts()
    channel = Channel(control, trusted=True)
    if role == PROBE_ROLE:
        channel.send({"ok": True})
        return
    server = _class_of(role)(shared_fds)
    server.has_next_request, server.send_early = channel.has_data, channel.send
    channel.send({"ok": True})
    while True:
        try:
            request, tail = channel.receive()
        except ChannelClosed:
            return
        observed = announced_compilation() if request.get("may_compile") else nullcontext()
        try:
            with observed:
                reply, blob = getattr(server, request["op"])(request, tail)
            channel.send({"ok": True, **reply}, blob)
        except StageFailed as error:
            channel.send({"ok": False, "stage": error.stage, "error": str(error)})
        except BaseException as error:  # anything that a candidate raises, including `sys.exit`
            channel.send({"ok": False, "stage": request["op"], "error": describe_exception(error)})
