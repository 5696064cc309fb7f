"""Where jobs are done, as the command line says it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelpro.pools.by_name import pool
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Job

ELSEWHERE = "elsewhere with --pool spool:DIR or --pool ray:"


@dataclass(frozen=True)
class Place:
    pool: str = "local"
    match: str = ""
    wait: bool = False

    @property
    def lasting(self) -> str:
        """The pool's name as it means the same in every working directory: a spool's folder by its whole path."""
        kind, _, rest = self.pool.partition(":")
        return f"spool:{Path(rest).expanduser().absolute()}" if kind == "spool" and rest else self.pool

    def open(self, sandbox: Any) -> Pool:
        return pool(self.lasting, sandbox, self.wait, self.match, complain)

    def require(self, target: Any) -> None:
        """Where nobody can be asked what there is, it must be said."""
        if self.pool.startswith("spool:") and not self.wait and target is None:
            raise BadInput(
                f"--pool {self.pool}: say --target cuda or --target cpu as well; nobody is here to be asked"
            )

    def demand(self, there: Pool, target: Any) -> None:
        """What this machine lacks is said before anything is begun, and where else it may be."""
        if self.pool.partition(":")[0] != "local":
            return
        if error := there.ask(Job("environment", "environment", target=target)).error:
            raise BadInput(f"{error}, {ELSEWHERE}" if target == "cuda" else error)


def complain(text: str) -> None:
    print(f"kernelpro: {text}", file=sys.stderr, flush=True)
