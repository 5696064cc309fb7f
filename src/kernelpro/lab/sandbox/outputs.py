"""Describes the outputs that a candidate must return, and checks what a child claims about its outputs.

Every claim is checked before the parent reads at the place that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernelpro.lab.sandbox.memory import DTYPES, Slot, dtype_name
from kernelpro.records import Status

_MAX_SPAN_RATIO = 16
"""An output may be a view that spans up to this many times its own size."""
_MAX_CHARACTERS = 300

Claim = tuple[Slot, str]
"""Where a child claims that an output lies: its slot, and on a GPU the IPC handle of its memory."""


class CandidateRejected(Exception):
    """The candidate is rejected for its behavior. Carries a status, other than `passed`, and a reason."""

    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


FORGED_OUTPUTS = "the reply that describes its outputs was forged"


@dataclass(frozen=True)
class OutputSpec:
    """The reference's outputs: shapes and types of the tensors, and how they are nested."""

    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    structure: str = "tensor"
    """See `describe_structure`."""
    strides: tuple[tuple[int, ...], ...] = ()
    """Of each tensor, as the reference returns it."""
    shares_input: tuple[bool, ...] = ()
    """Of each tensor: the reference returns it in the memory of an input."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor."""
        return [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.tensors]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(self.sizes)

    def may_overlap(self, index: int) -> bool:
        """Whether the reference's own tensor has several elements at one place, as `expand` makes."""
        if index >= len(self.strides):
            return False
        shape, dtype = self.tensors[index]
        return Slot(0, shape, self.strides[index], dtype_name(dtype)).span() < self.sizes[index]

    def may_share_input(self, index: int) -> bool:
        """Whether the reference returns this tensor in the memory of an input."""
        return self.shares_input[index : index + 1] == (True,)

    def restrided(self, outputs: list[torch.Tensor]) -> tuple[int, ...]:
        """Numbers of the tensors with other strides than the reference's."""
        return tuple(
            index
            for index, (output, strides) in enumerate(zip(outputs, self.strides, strict=False))
            if any(n > 1 and a != b for n, a, b in zip(output.shape, output.stride(), strides, strict=True))
        )


def describe_structure(value: Any) -> str:
    """How tensors are nested in an output, as text: `tensor`, `(tensor, tensor)`, `[tensor]`, `{name:
    tensor}`. Values beside tensors are part of it: `(tensor, 3)`; of objects only the class."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, tuple):
        items = ", ".join(map(describe_structure, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, list):
        return f"[{', '.join(map(describe_structure, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {describe_structure(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):  # a subclass, such as numpy's, may have another representation
        return repr(float(value))
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text[:_MAX_CHARACTERS]


def check_structure(structure: object, spec: OutputSpec) -> None:
    """Reject outputs that are nested differently from the reference's, such as a list instead of a tuple or
    `[y]` instead of `y`."""
    if not isinstance(structure, str):
        raise CandidateRejected(Status.CHEATING, FORGED_OUTPUTS)
    if structure != spec.structure:
        returned, expected = (text[:_MAX_CHARACTERS] for text in (structure, spec.structure))
        raise CandidateRejected(Status.WRONG, f"returns {returned}, should return {expected}")


def parse_times(reply: dict[str, Any]) -> tuple[float, float]:
    """The milliseconds of a call that the child claims, and the part of them in native code."""
    own_ms, native_ms = reply.get("own_ms"), reply.get("native_ms")
    if type(own_ms) is not float or type(native_ms) is not float or own_ms <= 0 or native_ms < 0:
        raise CandidateRejected(Status.CHEATING, FORGED_OUTPUTS)
    return own_ms, native_ms


def parse_claims(description: Any, spec: OutputSpec) -> list[Claim]:
    """The child's claims about the outputs of one call. Rejects claims that are malformed or do not match
    `spec`."""
    try:
        claims = [(Slot.from_json(item), str(item["handle"])) for item in description]
        sane = all(
            len(slot.shape) == len(slot.stride)
            and slot.dtype in DTYPES
            and min(slot.stride, default=0) >= 0
            and slot.offset >= 0
            for slot, _ in claims
        )
    except (KeyError, TypeError, ValueError):
        sane = False
    if not sane:
        raise CandidateRejected(Status.CHEATING, FORGED_OUTPUTS)
    if len(claims) != len(spec.tensors):
        expected = len(spec.tensors)
        raise CandidateRejected(Status.WRONG, f"returns {len(claims)} tensors, should return {expected}")
    for index, ((slot, _), (shape, dtype)) in enumerate(zip(claims, spec.tensors, strict=True)):
        if slot.shape != shape:
            raise CandidateRejected(
                Status.WRONG, f"output {index} has shape {list(slot.shape)}, should be {list(shape)}"
            )
        if DTYPES[slot.dtype] != dtype:
            name = str(dtype).removeprefix("torch.")
            raise CandidateRejected(Status.WRONG, f"output {index} is {slot.dtype}, should be {name}")
        size = torch.Size(shape).numel() * dtype.itemsize
        if slot.span() < size and not spec.may_overlap(index):
            raise CandidateRejected(
                Status.WRONG,
                f"output {index} is expanded: {slot.span()} bytes of memory for {size} bytes of elements; "
                "the reference writes each of them",
            )
        if slot.span() > _MAX_SPAN_RATIO * size + (1 << 20):
            raise CandidateRejected(
                Status.WRONG,
                f"output {index} is a view that spans {slot.span()} bytes for {size} bytes of data: "
                "return a denser tensor",
            )
    return claims
