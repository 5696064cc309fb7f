"""How a program is carried out: plain data that travels in one comment line of the candidate it describes.

    # playbook: {"language": "cpp", "stages": [{"order": "rows", "lanes": 16, ...}]}

The next move can so be made from any candidate's source, and a killed run needs no other state.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from math import ceil
from typing import Any, Literal

from kernelpro.authors.author import NoProposal

APPROXIMABLE_FUNCTIONS = frozenset({"tanh", "erf", "log1p"})
"""Functions that have a cheap form on GPUs (Design.math_mode)."""
_MARK = "# playbook: "
_CONSTANT = re.compile(r"^([A-Z_]+)(\d+) = (\d+)  # tune", re.MULTILINE)
"""A tunable is called by its field and its stage: LANES0 is stages[0].lanes."""


def power_of_two(number: float) -> int:
    """The next one, from `number` up: most sizes of a design are."""
    return 1 << max(ceil(number) - 1, 0).bit_length()


@dataclass(frozen=True)
class StageDesign:
    order: Literal["rows", "strips", "tiles"] = "rows"
    """rows: each row along its own loops; strips: several neighbouring rows at a time, element by element;
    tiles: squares of rows and columns; products on a GPU: tensor cores; windows in CUDA: outputs that share their inputs."""
    parallel: bool = True
    schedule: Literal["static", "dynamic"] = "static"
    lanes: int = 1
    """Independent partial results of a reduction, and the width of its vector loop; 1: one after another. In strips on a
    GPU: threads that share a row."""
    cache_row: bool = False
    """What several passes over a row compute is kept in a buffer between them."""
    online: bool = False
    """CPU: squares about the mean are summed up in the pass that makes the mean (online.py)."""
    prefetch: bool = False
    """While a row is gone over for the last time, the next one is fetched into the cache."""
    strip: int = 256
    """Rows of a strip."""
    tile: int = 32
    """Rows and columns of a tile."""
    packed: bool = False
    """Products: operands are copied into the order in which they are used, and tiles of results stay in registers."""
    block_m: int = 60
    """Products: rows of a block."""
    block_k: int = 256
    """Products: terms that are added up before the next part of the operands is packed."""
    threads: int = 256
    """GPU: threads of a block (Triton: 32 times its warps)."""
    coarsening: int = 1
    """GPU: rows that a block takes at once; windows: outputs of a thread."""
    vector_width: int = 1
    """GPU: elements a thread loads at once, where addresses allow it."""
    split: int = 1
    """GPU: blocks that share one row, or the sums of a product's tile, their parts joined by a second step."""
    tile_m: int = 128
    """GPU products: rows of a block's tile."""
    tile_n: int = 128
    """GPU products: its columns."""
    tile_k: int = 32
    """GPU products: terms of the sum that are fetched at once."""
    pipeline_stages: int = 3
    """GPU products: how many such fetches are on the way."""


@dataclass(frozen=True)
class Design:
    language: str
    stages: tuple[StageDesign, ...]
    math: Literal["library", "fast", "approximate"] = "library"
    """Whose exp, tanh, erf and log. own: the writer's, to a few units in the last place. cheap, on a GPU: also those of CHEAP by
    their absolute error alone, which is float32's: near zero they have few digits."""
    precision: Literal["fp32", "tf32"] = "tf32"
    """Of float32 operands of a product on a GPU."""

    def to_comment(self) -> str:
        """The comment that says all of it; what is as usual is left out."""
        stages = [{k: v for k, v in asdict(s).items() if v != getattr(_USUAL, k)} for s in self.stages]
        precision = {"precision": self.precision} if self.precision != "tf32" else {}
        return _MARK + json.dumps(
            {"language": self.language, "math": self.math, **precision, "stages": stages}
        )

    def with_all_stages(self, **changes: Any) -> Design:
        return replace(self, stages=tuple(replace(s, **changes) for s in self.stages))


_USUAL = StageDesign()


def parse_design(source: str) -> Design:
    """The design of a candidate, with what tuning has made of it; raises NoIdea for one that the playbook did not write."""
    line = next((line for line in source.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        raise NoProposal(
            "the parent is not the playbook's: it knows no moves for a kernel that somebody else wrote"
        )
    try:
        data = json.loads(line.removeprefix(_MARK))
        known = {f.name for f in fields(StageDesign)}
        stages = [{k: v for k, v in stage.items() if k in known} for stage in data["stages"]]
        for name, place, value in _CONSTANT.findall(source):
            if name.lower() in known and int(place) < len(stages):
                stages[int(place)][name.lower()] = int(value)
        return Design(
            str(data["language"]),
            tuple(StageDesign(**stage) for stage in stages),
            data["math"],
            data.get("precision", "tf32"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NoProposal(f"the parent's playbook line cannot be read ({error})") from None
