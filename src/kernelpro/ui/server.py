"""Serves the pages: on a loopback address, or on another one that requires the token for every request."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn

from kernelpro.records import BadInput
from kernelpro.ui.app import create_app
from kernelpro.ui.locations import Locations
from kernelpro.ui.security import is_loopback

_TRIED_PORTS = 20
_SHUTDOWN_SECONDS = 2


def serve(
    locations: Locations,
    host: str,
    port: int | None,
    announce: Callable[[str], None],
    default_port: int = 8640,
) -> None:
    """Serve until Ctrl-C.

    `port`: None for the first free port from `default_port` on, 0 for any free port. `announce` is called
    with the address that has the token.
    """
    token = secrets.token_urlsafe(24)
    listener = _bind(host, port, default_port)
    server: uvicorn.Server | None = None
    app = create_app(locations, token, is_loopback(host), lambda: bool(server and server.should_exit))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = uvicorn.Server(config)
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{name}]" if ":" in name else name
    announce(f"http://{shown}:{listener.getsockname()[1]}/?token={token}")
    server.run([listener])


def _bind(host: str, port: int | None, default_port: int) -> socket.socket:
    """A listening socket. Raises BadInput if the address cannot be used."""
    ports = range(default_port, default_port + _TRIED_PORTS) if port is None else [port]
    reason = ""
    for candidate in ports:
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while")[0]  # Python repeats the address
    advice = "; choose another --port" if port else ""
    raise BadInput(f"--host {host} --port {ports[0]}: cannot listen there ({reason}{advice})")
