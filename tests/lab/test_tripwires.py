"""Tripwires by name."""

from __future__ import annotations

import pytest

from kernelpro.lab.judge import tripwires
from kernelpro.records import TRIPWIRES, BadInput, Options

SOURCES = {
    "gc": "import gc\ngc.get_objects()",
    "frames": "import sys\nsys._getframe()",
    "modules": "import sys\nsys.modules",
    "exec": "exec('1')",
    "processes": "import subprocess",
    "exit": "import atexit",
    "network": "import socket",
    "harness": "import kernelpro.lab.judge",
    "descriptors": "import os\nos.dup2(1, 2)",
    "memory": "import mmap",
    "proc": "'/proc/self/mem'",
    "python": "'PyGILState_Ensure()'",
    "libraries": "'dlopen(name)'",
    "install": "'pip install torch'",
    "patching": "import torch\ntorch.add = None",
}


def test_every_name_is_a_tripwire_and_every_tripwire_has_a_name() -> None:
    assert set(SOURCES) == set(TRIPWIRES) == {wire.name for wire in tripwires._TRIPWIRES} | {"patching"}


@pytest.mark.parametrize(("name", "source"), SOURCES.items())
def test_a_tripwire_rejects_unless_it_is_disabled(name: str, source: str) -> None:
    assert f"--disable-tripwire {name} allows it" in (tripwires.check(source) or "")
    assert tripwires.check(source, (name,)) is None and tripwires.check(source, ("all",)) is None
    assert tripwires.check(source, tuple(other for other in TRIPWIRES if other != name))


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match="unknown tripwire 'gcc': choose from all, gc, frames, "):
        Options(disabled_tripwires=("gc", "gcc"))
    assert Options(disabled_tripwires=("all", *TRIPWIRES))
