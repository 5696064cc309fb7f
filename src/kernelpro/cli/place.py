"""Where jobs are done, as the command line says it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from kernelpro.pools.by_name import pool
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput


@dataclass(frozen=True)
class Place:
    pool: str = "local"
    match: str = ""
    wait: bool = False

    def open(self, sandbox: Any) -> Pool:
        return pool(self.pool, sandbox, self.wait, self.match, complain)

    def require(self, target: Any) -> None:
        """Where nobody can be asked what there is, it must be said."""
        if self.pool.startswith("spool:") and not self.wait and target is None:
            raise BadInput(f"--pool {self.pool}: say --target cuda or --target cpu as well; nobody is here to be asked")


def complain(text: str) -> None:
    print(f"kernelpro: {text}", file=sys.stderr, flush=True)
