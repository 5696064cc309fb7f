"""Where runs and benches are: the folder of runs, and the folder of each bench with its runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput

MAIN = "runs"
"""The name of the main folder of runs in addresses, where others are named after their bench."""


@dataclass(frozen=True)
class Locations:
    """The folders that the page shows."""

    runs_dir: Path
    benches_dir: Path

    def roots(self) -> dict[str, Path]:
        """Folders of runs by name: the main one, then those of benches."""
        return {MAIN: self.runs_dir} | {
            name: folder / "runs" for name, folder in self.benches().items() if (folder / "runs").is_dir()
        }

    def benches(self) -> dict[str, Path]:
        """Folders of benches by name."""
        paths = sorted(self.benches_dir.glob("*/results.jsonl"))
        return {path.parent.name: path.parent for path in paths if path.parent.name != MAIN}

    def run_folders(self) -> list[tuple[str, Path]]:
        """The runs of the main folder, as (name of the root, folder)."""
        return [(MAIN, path.parent) for path in sorted(self.runs_dir.glob("*/run.db"))]

    def run_folder(self, root: str, run: str) -> Path:
        """The folder of a run. Raises BadInput if there is none. No name leads outside the known folders."""
        folder = self.roots().get(root)
        known = {path.parent.name: path.parent for path in folder.glob("*/run.db")} if folder else {}
        if run not in known:
            raise BadInput(f"there is no run {run} in {root}")
        return known[run]

    def open(self, root: str, run: str) -> RunStore:
        """The store of a run. Raises BadInput if there is none."""
        return RunStore(self.run_folder(root, run))
