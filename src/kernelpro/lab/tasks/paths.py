"""Modules that are not installed: where whoever asks finds them, a reference finds them too. Candidates do not."""

from __future__ import annotations

import os
import sys

NAME = "KERNELPRO_PATHS"


def told() -> dict[str, str]:
    """For the environment of a worker: the script's folder, and what was added to the path."""
    installed = (f"{sys.prefix}{os.sep}", f"{sys.base_prefix}{os.sep}")
    found = dict.fromkeys(os.path.abspath(path) for path in sys.path)
    return {
        NAME: os.pathsep.join(
            path for path in found if os.path.isdir(path) and not path.startswith(installed)
        )
    }


def passed_on() -> dict[str, str]:
    """For the environment of a reference's own process: what its worker was told."""
    return {NAME: os.environ.get(NAME, "")}


def use() -> None:
    """After all others: nothing that is installed is hidden."""
    sys.path += [path for path in os.environ.get(NAME, "").split(os.pathsep) if path and path not in sys.path]
