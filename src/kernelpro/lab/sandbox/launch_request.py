"""Requests of the launcher to the zygote: modules to import, and children to start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class PreloadRequest:
    """Start a second zygote that imports these modules. Its socket is sent with the request."""

    modules: tuple[str, ...]

    def dumps(self) -> bytes:
        """The request as JSON."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class LaunchRequest:
    """Start one child. The request is sent as JSON, with the child's file descriptors."""

    role: str
    """A key of child.ROLES, or PROBE_ROLE."""
    level: str
    """One of launcher.LEVELS."""
    scratch: str
    """The folder that the child may write to."""
    environment: dict[str, str]
    readable: list[str]
    """Paths below which the child may read and execute."""
    writable: list[str]
    """Paths below which the child may write, in addition to its scratch folder."""
    scratch_bytes: int
    file_bytes: int
    processes: int
    memory_bytes: int | None
    """Limit on the address space; None: no limit."""
    allowed_syscalls: tuple[str, ...] = ()
    """System calls that the filter allows; profilers need some."""
    private_tmp: bool = False
    """Give the child its own writable /tmp (only with namespaces)."""
    triton_cache: str = ""
    """A folder whose content is copied into the child's Triton cache."""

    def dumps(self) -> bytes:
        """The request as JSON."""
        return json.dumps(asdict(self)).encode()


def parse_request(data: bytes) -> PreloadRequest | LaunchRequest:
    """The inverse of `dumps`."""
    fields = json.loads(data)
    return PreloadRequest(**fields) if "modules" in fields else LaunchRequest(**fields)
