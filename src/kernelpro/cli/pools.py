"""The pool that --pool names."""

from __future__ import annotations

from pathlib import Path

from kernelpro.cli.errors import print_error
from kernelpro.cli.options import PoolOptions
from kernelpro.pools.factory import create_pool
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Job, Target

ELSEWHERE = "or use one elsewhere with --pool spool:DIR or --pool ray:"


def absolute_pool(spec: str) -> str:
    """The pool with the absolute path of a spool, so that it is valid in every working directory."""
    kind, _, rest = spec.partition(":")
    return f"spool:{Path(rest).expanduser().absolute()}" if kind == "spool" and rest else spec


def require_target_option(options: PoolOptions, target: Target | None) -> None:
    """Raise BadInput if no target is given and the pool's workers cannot be asked for their hardware."""
    if target is None and stops_for_results(options.pool, options.wait):
        raise BadInput(
            f"--pool {options.pool}: add --target cuda or --target cpu; its workers cannot be asked"
        )


def open_pool(options: PoolOptions) -> Pool:
    """Open the pool of a command."""
    return create_pool(
        absolute_pool(options.pool), options.sandbox, options.wait, options.gpu_name, print_error
    )


def stops_for_results(pool: str, wait: bool) -> bool:
    """Whether a command exits while its results are outstanding."""
    return pool.startswith("spool:") and not wait


def require_target(pool: Pool, spec: str, target: Target) -> None:
    """Raise BadInput if the pool is local and this machine lacks the target. Other pools report a missing
    target in the results."""
    if spec.partition(":")[0] != "local":
        return
    if error := pool.run(Job("environment", "environment", target=target)).error:
        raise BadInput(f"{error}, {ELSEWHERE}" if target == "cuda" else error)


def worker_hint(pool: str) -> str:
    """How to start a worker for a spool; empty for other pools."""
    kind, _, folder = pool.partition(":")
    return f"; start a worker with `kernelpro worker {folder}` on a machine with the hardware" * (
        kind == "spool"
    )
