"""`kernelpro knowledge`: what runs have learned."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rich.table import Table

from kernelpro.cli.commands.knowledge import KnowledgeOptions
from kernelpro.cli.errors import print_error
from kernelpro.cli.output import table_console
from kernelpro.memory.knowledge import Knowledge, default_path


def show_knowledge(options: KnowledgeOptions) -> int:
    """Import, export or delete what runs have learned; without an option, print it."""
    knowledge = Knowledge(default_path(), print_error)
    if options.import_file:
        print(f"{knowledge.import_json(Path(options.import_file))} observations added")
    if options.export_file:
        count = knowledge.export_json(Path(options.export_file))
        print(f"{count} observations written to {options.export_file}")
    if options.forget:
        print(f"{knowledge.clear()} observations deleted")
    if options.import_file or options.export_file or options.forget:
        return 0
    table = Table()
    for title in ("method", "bottleneck", "family", "language", "hardware", "gain", "trials", "faster"):
        table.add_column(title, overflow="fold")
    for entry in knowledge.entries():
        if options.json:
            print(json.dumps(entry.to_json()))
        table.add_row(
            entry.method,
            entry.bound,
            entry.family,
            entry.language,
            entry.hardware,
            f"{math.exp(entry.gain):.2f}x",
            str(entry.count),
            str(entry.wins),
        )
    if not options.json:
        table_console().print(table if table.row_count else "nothing has been learned yet")
    return 0
