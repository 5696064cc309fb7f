"""First designs for CUDA, and how a design is changed in answer to a finding."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Literal

from kernelpro.authors.playbook.cuda_flat import is_flat
from kernelpro.authors.playbook.cuda_sweep import can_split, scans_of
from kernelpro.authors.playbook.cuda_tiles import crossing
from kernelpro.authors.playbook.cuda_turns import fitting
from kernelpro.authors.playbook.cuda_words import itemsize
from kernelpro.authors.playbook.design import Design, StageDesign
from kernelpro.authors.playbook.indices import Index, Var
from kernelpro.authors.playbook.passes import passes
from kernelpro.authors.playbook.stages import Program, Stage, Store

_SMS = 132
_BUSY = _SMS * 1024
"""Threads that keep the memory of a large GPU busy."""
_EACH = 16
"""Elements of a row that a thread takes, at first."""


def seeds(program: Program) -> list[Design]:
    """Different first designs, the most promising first."""
    best = tuple(_best(stage, program) for stage in program.stages)
    others = [tuple(_other(stage, how, program) for stage, how in zip(program.stages, best, strict=True))]
    others += [tuple(_small(stage, program) for stage in program.stages)]
    made = [Design("cuda", stages) for stages in (best, *others)]
    return list(dict.fromkeys(made))


def _best(stage: Stage, program: Program) -> StageDesign:
    if is_flat(stage):
        return _flat(stage, program)
    return _columns(stage, program) if _order(stage) == "strips" else _rows(stage, program)


def _other(stage: Stage, how: StageDesign, program: Program) -> StageDesign:
    """Element-wise: more on the way; else: what the best design did not do, share rows among blocks or not share them."""
    if is_flat(stage):
        return replace(how, order="rows", together=1 if how.together > 1 else 4)
    if how.split > 1:
        return replace(how, split=1, threads=1024 if how.order == "rows" else how.threads)
    if how.order == "rows":
        threads = min(1024, how.threads * 2)
        return replace(how, threads=threads, together=max(1, how.together // 2))
    return replace(how, vector=1, together=max(1, how.together // how.vector))


def _small(stage: Stage, program: Program) -> StageDesign:
    """Nothing special: small blocks, nothing kept, nothing shared."""
    how = _best(stage, program)
    if is_flat(stage):
        return StageDesign(order="rows", threads=128, vector=how.vector)
    if how.order == "strips":
        return StageDesign(order="strips", threads=128, together=128, vector=1)
    return StageDesign(threads=128, together=4 if stage.rows >= _BUSY // 128 else 1, vector=how.vector, keep=how.keep)


def _flat(stage: Stage, program: Program) -> StageDesign:
    elements = stage.rows * prod(var.extent for var in stage.steps[0].loops)
    vector = _vector(stage, program)
    if crossing(stage):
        return StageDesign(order="tiles", vector=1)
    loads = len({node for step in stage.steps for node in step.value.walk() if node.op == "load"})
    each = 4 if elements >= 8 * _BUSY * vector and loads <= 2 else 2 if elements >= 4 * _BUSY * vector else 1
    return StageDesign(vector=vector, together=each)


def _rows(stage: Stage, program: Program) -> StageDesign:
    """A warp a row, or less, while that keeps a row in few registers; else a block, or several."""
    vector = _vector(stage, program)
    longest = max((step.loops for step in stage.steps), key=lambda loops: prod(v.extent for v in loops), default=())
    length = prod(var.extent for var in longest)
    pieces = max(1, length // fitting(vector, longest))
    lanes = 32 if pieces <= 256 else _power(pieces * vector / _EACH)
    lanes = min(lanes, _power(pieces), 1024)
    threads = max(lanes, 128)
    how = StageDesign(threads=threads, together=threads // lanes, vector=vector, keep=True)
    blocks = -(-stage.rows // how.together)
    if can_split(stage) and blocks < 2 * _SMS and length >= 32768:
        split = min(_power(4 * _SMS / stage.rows), max(1, length // (256 * _EACH)), 128)
        return replace(how, threads=256, together=1, split=split) if split > 1 else how
    return how


def _columns(stage: Stage, program: Program) -> StageDesign:
    length = max((prod(v.extent for v in step.loops) for step in stage.steps), default=1)
    vector = fitting(min(4, _vector(stage, program)), stage.outer)
    windows = any(reduce.guards for reduce in stage.reduces) or length <= 64
    if windows:
        vector = vector if stage.rows >= _BUSY * vector else 1
        return StageDesign(order="strips", threads=256, together=256 * vector, vector=vector)
    while vector > 1 and stage.rows * 16 < _BUSY * vector:
        vector //= 2
    keep = len(passes(stage)) > 1
    lanes = _power(_BUSY * vector / stage.rows)
    lanes = max(lanes, _power(length * vector / 32)) if keep and length * vector <= 32 * 32 else lanes
    lanes = max(1, min(lanes, 16 if not keep else 32, _power(length / 4)))
    how = StageDesign(order="strips", threads=256, together=256 // lanes * vector, vector=vector, keep=keep)
    blocks = stage.rows // how.together
    if can_split(stage) and blocks < 2 * _SMS and length >= 64 * lanes:
        return replace(how, split=max(1, min(_power(4 * _SMS / max(1, blocks)), length // (16 * lanes), 64)))
    return how


def _power(number: float) -> int:
    """The next power of two."""
    made = 1
    while made < number:
        made *= 2
    return made


def _vector(stage: Stage, program: Program) -> int:
    """As many elements of the largest tensor as 16 bytes hold."""
    names = {node.data[0] for root in stage.values for node in root.walk() if node.op == "load"}
    names |= {step.tensor for step in stage.steps if isinstance(step, Store)}
    largest = max((program.tensor(name) for name in names), key=lambda tensor: (tensor.size, -itemsize(tensor.dtype)), default=None)
    return 16 // max(2, itemsize(largest.dtype)) if largest else 1


def _order(stage: Stage) -> Literal["rows", "strips"]:
    """Along whichever loop neighbouring elements lie; windows, which overlap, side by side."""
    if not stage.outer or not any(step.loops for step in stage.steps):
        return "strips" if stage.outer else "rows"
    if any(reduce.guards for reduce in stage.reduces):
        return "strips"
    along = across = 0
    for step in (step for step in stage.steps if step.loops):
        for index in _indices(step):
            run = _run(index, step.loops)
            along += run >= 8
            across += run < 8 and 0 < abs(index.coefficient(stage.outer[-1])) <= 4
    return "strips" if across > along else "rows"


def _indices(step: object) -> list[Index]:
    value = getattr(step, "value")
    found = [node.data[1] for node in value.walk() if node.op == "load"]
    return [*found, step.index] if isinstance(step, Store) else found


def _run(index: Index, loops: tuple[Var, ...]) -> int:
    """Elements that lie side by side along the loops."""
    run = 1
    for var in reversed(loops):
        if abs(index.coefficient(var)) != run:
            break
        run *= var.extent
    return run
