"""Pools as the command line names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernelpro.pools.local import Pool as Local
from kernelpro.pools.local import devices
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput


def pool(
    spec: str,
    sandbox: str = "auto",
    wait: bool = True,
    match: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Pool:
    """`local`, `local:N`: workers on this machine; `spool:DIR`: whoever sees the folder; `ray:`: a Ray cluster.

    `ray:` is the cluster that this machine belongs to, or a new one; `ray:HOST:PORT` one that it can join; `ray://HOST:PORT` one
    that is spoken to from outside.

    `wait`: whether to wait for results that somebody else has to bring, or to leave them outstanding. `match`: only
    hardware whose name contains this. `say` hears of what goes wrong on the way.
    """
    kind, _, rest = spec.partition(":")
    if kind == "local" and (not rest or (rest.isdigit() and int(rest) > 0)):
        return Local(sandbox, devices(match, int(rest or 0)), say)
    if kind == "spool" and rest:
        from kernelpro.pools.spool.pool import Spool

        return Spool(Path(rest), wait, match, say)
    if kind == "ray":
        from kernelpro.pools.on_ray import RayPool

        return RayPool(spec if rest.startswith("//") else rest, sandbox, match, say=say)
    raise BadInput(
        f"--pool {spec}: not a pool; there are local, local:N, spool:DIR, ray:, ray:HOST:PORT and ray://HOST:PORT"
    )
