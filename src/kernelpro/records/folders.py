"""Where things are kept: what can be made again, and what cannot. Folders are the freedesktop.org ones."""

from __future__ import annotations

import os
from pathlib import Path


def cache(*parts: str) -> Path:
    """For what can be made again."""
    return _home("XDG_CACHE_HOME", ".cache").joinpath("kernelpro", *parts)


def data(*parts: str) -> Path:
    """For what is the user's."""
    return _home("XDG_DATA_HOME", ".local/share").joinpath("kernelpro", *parts)


def _home(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / usual)
