"""The design of a candidate: how each stage of a program is scheduled.

A design is plain data in one comment line of the candidate that it describes:

    # playbook: {"language": "cpp", "math": "library", "stages": [{"lanes": 16, ...}]}

So the playbook can make the next move from a candidate's source alone, and a killed run needs no other state.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from math import ceil
from typing import Any, Literal

from kernelpro.authors.author import NoProposal

APPROXIMABLE_FUNCTIONS = frozenset({"tanh", "erf", "log1p"})
"""Functions with an approximate form on GPUs (Design.math)."""
_PREFIX = "# playbook: "
_TUNABLE = re.compile(r"^([A-Z_]+)(\d+) = (\d+)  # tune", re.MULTILINE)
"""A tunable is named after its field and its stage: LANES0 is stages[0].lanes."""


def power_of_two(number: float) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(ceil(number) - 1, 0).bit_length()


@dataclass(frozen=True)
class StageDesign:
    """The schedule of one stage. A backend ignores the fields that it has no use for."""

    order: Literal["rows", "strips", "tiles"] = "rows"
    """rows: one row after another, each along its own loops. strips: several neighbouring rows at a time,
    element by element. tiles: squares of rows and columns; for products on a GPU, tensor cores; for windows
    in CUDA, outputs that share their inputs."""
    parallel: bool = True
    """CPU: whether the rows are shared between all cores."""
    schedule: Literal["static", "dynamic"] = "static"
    """CPU: how OpenMP assigns rows to threads."""
    lanes: int = 1
    """Independent partial results of a reduction, and the width of its vector loop; 1 for a scalar loop. In
    strips on a GPU: threads that share a row."""
    cache_row: bool = False
    """Whether values that several passes over a row compute are kept in a buffer."""
    online: bool = False
    """CPU: whether variances are computed in one pass (online_reductions.py)."""
    prefetch: bool = False
    """CPU: whether the last pass over a row prefetches the next row."""
    strip: int = 256
    """CPU: rows of a strip."""
    tile: int = 32
    """Rows and columns of a tile."""
    packed: bool = False
    """CPU products: whether operands are packed in the order of use and tiles of results stay in
    registers."""
    block_m: int = 60
    """CPU products: rows of a block."""
    block_k: int = 256
    """CPU products: terms of the sum that are packed at once."""
    threads: int = 256
    """GPU: threads of a block (Triton: 32 times its warps)."""
    coarsening: int = 1
    """GPU: rows that a block processes at once; for windows, outputs of one thread."""
    vector_width: int = 1
    """GPU: elements that a thread loads at once where the addresses allow it."""
    split: int = 1
    """GPU: blocks that share one row, or the sum of one tile of a product; a second step combines their
    results."""
    tile_m: int = 128
    """GPU products: rows of a tile."""
    tile_n: int = 128
    """GPU products: columns of a tile."""
    tile_k: int = 32
    """GPU products: terms of the sum that are loaded at once."""
    interleave: bool = False
    """Triton products: whether a tile has both phases of a transposed convolution with stride 2, and stores
    them next to each other."""
    via_registers: bool = False
    """Triton products of float32: whether an operand that is contiguous across the sum is the left one, which
    tensor cores take from registers."""
    pipeline_stages: int = 3
    """GPU products: how many such loads are in flight."""


@dataclass(frozen=True)
class Design:
    """The language and the schedules of all stages of a program."""

    language: str
    stages: tuple[StageDesign, ...]
    math: Literal["library", "fast", "approximate"] = "library"
    """Which exp, tanh, erf and log are used. library: the language's. fast: the backend's, accurate to a few
    units in the last place. approximate (GPU): also APPROXIMABLE_FUNCTIONS with the absolute error of
    float32, so that values near zero have few correct digits."""
    precision: Literal["fp32", "tf32"] = "tf32"
    """GPU products: how float32 operands are multiplied."""
    form: str = "own"
    """Which program of the task it schedules (forms.py)."""
    graph: bool = False
    """GPU: whether all kernels are launched as one CUDA graph."""

    def to_comment(self) -> str:
        """The comment line; fields with their default value are left out."""
        defaults = asdict(StageDesign())
        stages = [{k: v for k, v in asdict(stage).items() if v != defaults[k]} for stage in self.stages]
        precision = {"precision": self.precision} if self.precision != "tf32" else {}
        form = {"form": self.form} if self.form != "own" else {}
        graph = {"graph": True} if self.graph else {}
        data = {"language": self.language, "math": self.math, **precision, **form, **graph, "stages": stages}
        return _PREFIX + json.dumps(data)

    def with_all_stages(self, **changes: Any) -> Design:
        """The design with the same change of fields in every stage."""
        return replace(self, stages=tuple(replace(stage, **changes) for stage in self.stages))


def parse_design(source: str) -> Design:
    """The design of a candidate, with the tuned values of its constants. Raises NoProposal if the playbook
    did not write the candidate."""
    line = next((line for line in source.splitlines() if line.startswith(_PREFIX)), None)
    if line is None:
        raise NoProposal("the playbook cannot improve a kernel that it did not write (no '# playbook:' line)")
    try:
        data = json.loads(line.removeprefix(_PREFIX))
        names = {field.name for field in fields(StageDesign)}
        stages = [{k: v for k, v in stage.items() if k in names} for stage in data["stages"]]
        for name, number, value in _TUNABLE.findall(source):
            if name.lower() in names and int(number) < len(stages):
                stages[int(number)][name.lower()] = int(value)
        return Design(
            str(data["language"]),
            tuple(StageDesign(**stage) for stage in stages),
            data["math"],
            data.get("precision", "tf32"),
            data.get("form", "own"),
            bool(data.get("graph", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NoProposal(f"the parent's '# playbook:' line is invalid: {error}") from None
