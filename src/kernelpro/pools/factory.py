"""Creates pools from the names that the command line uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernelpro.pools.local import LocalPool, local_devices
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput


def create_pool(
    spec: str,
    sandbox: str = "auto",
    wait: bool = True,
    gpu_name: str = "",
    warn: Callable[[str], None] = lambda line: None,
) -> Pool:
    """The pool for a `--pool` option.

    `local`, `local:N`: workers on this machine. `spool:DIR`: workers that see the folder. `ray:`: the Ray
    cluster to which this machine belongs, or a new one. `ray:HOST:PORT`: a cluster that this machine can
    join. `ray://HOST:PORT`: a cluster reached through Ray's client.

    `wait`: whether a spool waits for results; otherwise it raises `ResultPending`. `gpu_name`: use only
    hardware whose name contains this text. `warn`: called with a line for each failure of a worker or device.
    """
    kind, _, rest = spec.partition(":")
    if kind == "local" and (not rest or (rest.isdigit() and int(rest) > 0)):
        return LocalPool(sandbox, local_devices(gpu_name, int(rest or 0)), warn)
    if kind == "spool" and rest:
        from kernelpro.pools.spool.pool import SpoolPool

        return SpoolPool(Path(rest), wait, gpu_name, warn)
    if kind == "ray":
        from kernelpro.pools.ray_pool import RayPool

        return RayPool(spec if rest.startswith("//") else rest, sandbox, gpu_name, warn)
    names = "local, local:N, spool:DIR, ray:, ray:HOST:PORT or ray://HOST:PORT"
    raise BadInput(f"--pool {spec}: unknown pool; use {names}")
