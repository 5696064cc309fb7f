"""What a child is asked for and what it answers: checked for sense before anything is read.

Nothing here talks to a child; participant.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernelpro.lab.measure.timing import Sample
from kernelpro.lab.sandbox.memory import DTYPES, Slot
from kernelpro.records import Status

_MOST_STRIDED = 16
"""An output may be a view into storage this many times its own size."""


class CandidateRejected(Exception):
    """The candidate has decided its own verdict."""

    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Expected:
    """What outputs must look like."""

    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    @property
    def sizes(self) -> list[int]:
        return [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.shapes]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True)
class Answer:
    outputs: list[torch.Tensor]
    sample: Sample
    slots: list[tuple[Slot, str]]


@dataclass(frozen=True)
class Burst:
    outputs: list[list[torch.Tensor]]
    wall_ms: float
    host_ms: float
    """What the child says its host side took for a call."""
    launched: bool
    """Before the clock started, all of it."""


@dataclass(frozen=True)
class Loop:
    """Calls that followed each other until the parent said stop."""

    calls: int
    """The child's claim."""
    seconds: float
    """From the first call to the answer, by the parent's clock."""
    lag: float
    """Seconds from "stop" to the answer."""
    claims: list[list[tuple[Slot, str]]]
    """By buffer set, where the output of its last call lies."""

    @property
    def last(self) -> int:
        """The buffer set of the last call."""
        return (self.calls - 1) % len(self.claims)


def validated(answer: dict[str, Any], expected: Expected) -> list[tuple[Slot, str]]:
    """The child's claims about its outputs, checked for sense before anything is read."""
    try:
        own, native = answer["own_ms"], answer["native_ms"]
        claims = [(Slot.from_json(claim), str(claim["handle"])) for claim in answer["outputs"]]
        sane = (
            type(own) is float
            and type(native) is float
            and own > 0
            and native >= 0
            and all(
                len(slot.shape) == len(slot.stride)
                and slot.dtype in DTYPES
                and min(slot.stride, default=0) >= 0
                and slot.offset >= 0
                for slot, _ in claims
            )
        )
    except (KeyError, TypeError, ValueError):
        sane = False
    if not sane:
        raise CandidateRejected(Status.CHEATING, "the description of the output was forged")
    if len(claims) != len(expected.shapes):
        raise CandidateRejected(
            Status.WRONG, f"returns {len(claims)} tensors, should be {len(expected.shapes)}"
        )
    for index, ((slot, _), (shape, dtype)) in enumerate(zip(claims, expected.shapes, strict=True)):
        if slot.shape != shape:
            raise CandidateRejected(
                Status.WRONG, f"output {index} has shape {list(slot.shape)}, should be {list(shape)}"
            )
        if DTYPES[slot.dtype] != dtype:
            raise CandidateRejected(
                Status.WRONG, f"output {index} is {slot.dtype}, should be {str(dtype).removeprefix('torch.')}"
            )
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        if slot.span() > _MOST_STRIDED * size + (1 << 20):
            raise CandidateRejected(
                Status.WRONG, f"output {index} is spread over {slot.span()} bytes; return a denser tensor"
            )
    return claims
