"""Import paths outside the installation: references can import from them, candidates cannot."""

from __future__ import annotations

import os
import sys

PATHS_VARIABLE = "KERNELPRO_PATHS"


def worker_environment() -> dict[str, str]:
    """Variables for a worker: the entries of sys.path outside the installation (the script's and others)."""
    installed = (f"{sys.prefix}{os.sep}", f"{sys.base_prefix}{os.sep}")
    folders = dict.fromkeys(os.path.abspath(path) for path in sys.path)
    return {
        PATHS_VARIABLE: os.pathsep.join(
            path for path in folders if os.path.isdir(path) and not path.startswith(installed)
        )
    }


def child_environment() -> dict[str, str]:
    """Variables for a reference's process: those of its worker."""
    return {PATHS_VARIABLE: os.environ.get(PATHS_VARIABLE, "")}


def extend_sys_path() -> None:
    """Append the paths to sys.path, after all installed packages."""
    sys.path += [
        path for path in os.environ.get(PATHS_VARIABLE, "").split(os.pathsep) if path and path not in sys.path
    ]
