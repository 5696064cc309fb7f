"""Folders for caches and user data, by the XDG conventions of freedesktop.org."""

from __future__ import annotations

import os
from pathlib import Path


def cache(*parts: str) -> Path:
    """A path in the user's cache directory, for files that can be recreated."""
    return _home("XDG_CACHE_HOME", ".cache").joinpath("kernelpro", *parts)


def data(*parts: str) -> Path:
    """A path in the user's data directory."""
    return _home("XDG_DATA_HOME", ".local/share").joinpath("kernelpro", *parts)


def _home(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default)
