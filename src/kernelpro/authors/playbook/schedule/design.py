"""The design of a candidate: how each stage of a program is scheduled.

A design is plain data, stored in one comment line of the candidate's source:

    # playbook: {"language": "cpp", "math": "library", "stages": [{"lanes": 16, ...}]}

So the playbook can choose the next move from a candidate's source alone, and a resumed run needs no other
state.
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
    """The smallest power of two that is at least `number`."""
    return 1 << max(ceil(number) - 1, 0).bit_length()


@dataclass(frozen=True)
class StageDesign:
    """The schedule of one stage. A backend ignores fields that do not concern it."""

    order: Literal["rows", "strips", "tiles"] = "rows"
    """`rows`: one row after another, each along its own loops. `strips`: several neighbouring rows at a time,
    element by element. `tiles`: squares of rows and columns; on a GPU, products use tensor cores; in CUDA,
    windows are computed in groups of outputs that share inputs."""
    parallel: bool = True
    """CPU: whether all cores share the rows."""
    schedule: Literal["static", "dynamic"] = "static"
    """CPU: how OpenMP assigns rows to threads."""
    lanes: int = 1
    """CPU: independent partial results of a reduction, which are the width of its vector loop; 1 for a scalar
    loop. GPU, in strips: threads that share a row."""
    cache_row: bool = False
    """Whether a buffer keeps values that several passes over a row need (GPU: registers or shared memory)."""
    online: bool = False
    """CPU: whether variances are computed in one pass (online_reductions.py)."""
    prefetch: bool = False
    """CPU: whether the last pass over a row prefetches the next row."""
    strip: int = 256
    """CPU: rows per strip."""
    tile: int = 32
    """Rows, and columns, of a square tile."""
    packed: bool = False
    """CPU products and convolutions: whether operands are packed in the order of use, and tiles of results
    stay in registers."""
    block_m: int = 60
    """CPU products: rows of a block; of a convolution, output positions."""
    block_n: int = 192
    """CPU: output channels of a block of a convolution."""
    block_k: int = 256
    """CPU products: terms of the sum that are packed at a time."""
    threads: int = 256
    """GPU: threads per block (Triton: 32 times `num_warps`)."""
    coarsening: int = 1
    """GPU: rows that a block processes at a time; element-wise in CUDA: packs per thread; for windows:
    outputs per thread; for transposing tiles in Triton: their side."""
    vector_width: int = 1
    """GPU: elements that a thread loads at a time, where the addresses allow it."""
    split: int = 1
    """GPU: blocks that share one row, or the sum of one tile of a product (split-K); a second kernel combines
    their results."""
    tile_m: int = 128
    """GPU products: rows of a tile."""
    tile_n: int = 128
    """GPU products: columns of a tile."""
    tile_k: int = 32
    """GPU products: terms of the sum in a tile of an operand."""
    whole_rows: bool = False
    """Triton products: whether a tile has all columns, so that reductions over them follow in registers."""
    interleave: bool = False
    """Triton products: whether a tile computes both phases of a transposed convolution with stride 2, and
    stores them interleaved."""
    via_registers: bool = False
    """Triton products of float32: whether an operand that is not contiguous along the sum becomes the left
    one, which tensor cores read from registers."""
    pipeline_stages: int = 3
    """GPU products: buffers for such tiles; loads run ahead by one less."""
    wgmma: bool = False
    """CUDA products on tensor cores: warpgroup instructions fed by TMA, where the operands allow them. Only
    compute capability 9.0 has them."""
    tiles: int = 1
    """CUDA convolutions with a halo and phases: tiles that a block computes one after another. If there are
    several, the block keeps all weights in shared memory."""
    halo: bool = False
    """CUDA convolutions on tensor cores: whether a block copies the part of the input that its outputs read
    once, and takes all taps from it. Then a tile has `coarsening` lines of `tile_m` positions."""


@dataclass(frozen=True)
class Design:
    """The language and the schedules of all stages of a program."""

    language: str
    stages: tuple[StageDesign, ...]
    math: Literal["library", "fast", "approximate"] = "library"
    """Which exp, tanh, erf and log the kernels use. `library`: the language's. `fast`: the backend's,
    accurate to a few units in the last place. `approximate` (GPU): as `fast`, and APPROXIMABLE_FUNCTIONS only
    have float32's absolute accuracy, so that values near zero have few correct digits."""
    precision: Literal["fp32", "tf32"] = "tf32"
    """GPU products: the precision of products of float32 operands."""
    form: str = "own"
    """The form of the task that it schedules (forms.py)."""
    graph: bool = False
    """GPU: whether all kernels are launched as one CUDA graph."""

    def to_comment(self) -> str:
        """The comment line; it leaves out fields with their default value."""
        defaults = asdict(StageDesign())
        stages = [{k: v for k, v in asdict(stage).items() if v != defaults[k]} for stage in self.stages]
        precision = {"precision": self.precision} if self.precision != "tf32" else {}
        form = {"form": self.form} if self.form != "own" else {}
        graph = {"graph": True} if self.graph else {}
        data = {"language": self.language, "math": self.math, **precision, **form, **graph, "stages": stages}
        return _PREFIX + json.dumps(data)

    def with_all_stages(self, **changes: Any) -> Design:
        """The design with these fields changed in every stage."""
        return replace(self, stages=tuple(replace(stage, **changes) for stage in self.stages))


def parse_design(source: str) -> Design:
    """The design of a candidate, with the current (tuned) values of its tunables. Raises NoProposal if the
    playbook did not write the candidate."""
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
