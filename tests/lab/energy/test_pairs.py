"""The planted pairs of benchmarks/energy.py: they compile for a Hopper, and the compiler leaves their waste in."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kernelpro.lab.languages.cuda import nvcc
from kernelpro.lab.profile import sass

PAIRS = sorted((Path(__file__).parents[3] / "benchmarks" / "energy_pairs").glob("*_behind_*.py"))
WASTE = {
    "arithmetic_behind_memory": ("FFMA", 160),
    "doubles_behind_memory": ("DFMA", 92),
    "dram_behind_arithmetic": ("LDG", 3),
    "l2_behind_arithmetic": ("LDG", 5),
    "spinning_behind_memory": ("ATOMS", 1),
    "tensor_behind_memory": ("HMMA", 16),
}
"""How many of which instruction there are with the most waste; without any there is one load, and of the others a few or none."""


def test_there_are_at_least_five_pairs_with_tasks() -> None:
    assert {path.stem for path in PAIRS} == set(WASTE) and len(PAIRS) >= 5
    for path in PAIRS:
        name = re.search(r"# task: (\w+) \|", path.read_text())
        assert name and (path.parent / f"{name[1]}.py").is_file()
        assert re.search(r"^WASTE = 0$", path.read_text(), re.M), "as it stands, the lean one"


USUAL = ("dram_behind_arithmetic", "spinning_behind_memory", "tensor_behind_memory")
"""What `make test` compiles: each takes seconds."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem not in USUAL)) for path in PAIRS],
)
@pytest.mark.skipif(nvcc() is None or sass.find_tool("nvdisasm") is None, reason="no nvcc or nvdisasm")
def test_the_compiler_leaves_the_waste_in(path: Path, tmp_path: Path) -> None:
    text = re.search(r'r"""(.*?)"""', path.read_text(), re.S)
    assert text
    source, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    source.write_text(text[1].replace("@WASTE@", _most(path)))
    subprocess.run(
        [str(nvcc()), "-std=c++17", "-O3", "-arch=sm_90a", "-cubin", "-o", str(cubin), str(source)],
        check=True,
    )
    listed = subprocess.run(
        [str(sass.find_tool("nvdisasm")), str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    counts = Counter(re.findall(r"^\s+(?:/\*\w+\*/\s+)?(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9]+)", listed, re.M))
    opcode, least = WASTE[path.stem]
    assert counts[opcode] >= least, f"{counts[opcode]} {opcode}"


def _most(path: Path) -> str:
    wastes = re.search(r"wastes: ([\d, ]+)", path.read_text())
    assert wastes
    return wastes[1].split(",")[-1].strip()
