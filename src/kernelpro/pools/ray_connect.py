"""Connects to a Ray cluster. It checks the address first, because Ray would retry a wrong one for minutes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelpro.records import BadInput

_INSTALL = "pip install -e '.[ray]' in KernelPro's clone"
_CONNECT_SECONDS = 5.0
_HTTP2_PREFACE, _SETTINGS_FRAME = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0"
"""The start of an HTTP/2 connection: the client's preface, and an empty SETTINGS frame (3 bytes of length,
then its type)."""


def import_ray() -> Any:
    """Import `ray`, with usage statistics turned off. Raises BadInput if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise BadInput(f"--pool ray: Ray is not installed: {_INSTALL}") from None
    return ray


def connect(ray: Any, address: str, warn: Callable[[str], None]) -> None:
    """Connect to the cluster at `address`. Without an address: to the cluster of this machine, or to a new
    one, which is started here."""
    option = f"--pool {address if address.startswith('ray://') else f'ray:{address}'}".rstrip(":")
    package = str(Path(__file__).resolve().parents[1])
    settings = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": {"py_modules": [package]}}
    target = address or os.environ.get("RAY_ADDRESS", "")
    if target not in ("", "auto", "local"):
        check_address(option, target)
    try:
        try:
            ray.init(address=target or "auto", **settings)
        except ConnectionError:
            if target:
                raise
            warn(f"{option}: no cluster is running here; starting one on this machine alone")
            ray.init(address="local", **settings)
    except ImportError as error:
        part = "Ray's client" if target.startswith("ray://") else "Ray"
        raise BadInput(f"{option}: {part} is not fully installed: {_INSTALL} ({first_line(error)})") from None
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(f"{option}: the cluster rejected the connection: {first_line(error)}") from None


def check_address(option: str, address: str) -> None:
    """Raise BadInput if no Ray cluster listens at `address`."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"{option}: not an address: use ray:, ray:HOST:PORT or ray://HOST:PORT")
    hint = "is it the address that `ray start --head` printed?"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as connection:
            is_ray = _speaks_http2(connection)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{option}: nothing answers there ({error}); {hint}") from None
    if not is_ray:
        raise BadInput(f"{option}: something listens there, but it is not Ray; {hint}")


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the server speaks HTTP/2, on which Ray's gRPC is based: it then starts with a SETTINGS frame.

    With TLS this cannot be checked.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return True
    try:
        connection.sendall(_HTTP2_PREFACE + _SETTINGS_FRAME)
        return connection.recv(4)[3:] == _SETTINGS_FRAME[3:4]
    except OSError:
        return False


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0]
