"""Guards: margins on both sides of every buffer. If one changes, a kernel wrote outside the buffer.

A candidate that passed is called again in a separate process. Margins surround its inputs (in the parent's
shared memory) and its parameters, outputs and scratch buffers (by an allocator in the child: cpu_guards.py
and cuda_guards.py). Margins and new buffers are filled with one byte, which is another one in each call:

    0xFF   NaN in every floating-point type, -1 as an integer
    0x7B   a large positive number
    0xFB   a large negative number

So a result that depends on memory outside a buffer, or on memory that was never written, is wrong in at least
one of these calls. Reads that do not change the result are not detected. Further calls use

    0x3B   a small positive number

because an addition does not change the first three: NaN stays NaN, and the others exceed 1e36 in magnitude.

In the margins of the child's buffers, this byte lies at odd addresses, where every type has its sign and
exponent. The byte at even addresses is another one for each buffer: a kernel that copies past the ends of two
buffers does not write what was there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from kernelpro.lab.sandbox.memory import Slot

MARGIN_BYTES = (1 << 20) + (64 << 10)
"""The size of each margin: an index that is off by a row, or by a megabyte, falls into it."""
FILLS = (0xFF, 0x7B, 0xFB)
"""The byte of margins and new buffers, one for each of the first guarded calls."""
LATER_FILL = 0x3B
"""The byte of margins and new buffers in further calls."""
FAULT = "kernelpro-guard:"
"""The first word of the line that the child prints when a page behind a margin is accessed."""
_MAX_DAMAGES = 64
_MAX_NAME = 120

Side = Literal["before", "after"]


@dataclass(frozen=True)
class Damage:
    """Bytes of one margin that a candidate has overwritten."""

    buffer: str
    """The buffer's name: `output 0`, `input 1`, `parameter weight`, `a scratch buffer`."""
    nbytes: int
    """The buffer's size."""
    side: Side
    first: int
    """Distance of the nearest overwritten byte: 0 is the byte right after the end, or before the start."""
    last: int
    """Distance of the farthest overwritten byte."""

    def __str__(self) -> str:
        edge = "after the end" if self.side == "after" else "before the start"
        count = self.last + 1 - self.first
        gap = f", from {self.first} bytes on" if self.first else ""
        return (
            f"{count} {'byte' if count == 1 else 'bytes'} {edge} of {self.buffer} ({self.nbytes} bytes){gap}"
        )

    def to_json(self) -> dict[str, Any]:
        """The damage as plain data."""
        return dict(vars(self))


def parse_damages(rows: object) -> list[Damage]:
    """The damages that a child reports; raises ValueError if they are malformed."""
    if not isinstance(rows, list) or len(rows) > _MAX_DAMAGES:
        raise ValueError("not a list of damages")
    damages = []
    for row in rows:
        if (
            not isinstance(row, dict)
            or not isinstance(row.get("buffer"), str)
            or any(type(row.get(name)) is not int or row[name] < 0 for name in ("nbytes", "first", "last"))
            or row.get("side") not in ("before", "after")
        ):
            raise ValueError("not a damage")
        damages.append(
            Damage(row["buffer"][:_MAX_NAME], row["nbytes"], row["side"], row["first"], row["last"])
        )
    return damages


def most_telling(damages: list[Damage]) -> list[Damage]:
    """The damages to report: named buffers first, then those nearest to their buffer."""
    return sorted(damages, key=lambda one: (one.buffer.startswith("a scratch"), one.first))[:_MAX_DAMAGES]


def changed_bytes(margin: torch.Tensor, fill: int | torch.Tensor) -> tuple[int, int] | None:
    """The first and the last byte of a margin that differ from its fill."""
    changed = margin != fill
    if not bool(changed.any()):
        return None
    where = changed.nonzero()
    return int(where[0]), int(where[-1])


class InputMargins:
    """The margins in a region of inputs; the parent fills and checks them."""

    def __init__(self, slots: list[Slot], nbytes: int):
        ends = [0, *(slot.offset + slot.span() for slot in slots)]
        starts = [*(slot.offset for slot in slots), nbytes]
        self._slots, self._margins = slots, list(zip(ends, starts, strict=True))

    def fill(self, raw: torch.Tensor, fill: int) -> None:
        """Fill all margins of a region."""
        for start, end in self._margins:
            raw[start:end] = fill

    def damages(self, raw: torch.Tensor, fill: int) -> list[Damage]:
        """The overwritten bytes of all margins. Damage between two inputs is attributed to the nearer one."""
        damages = []
        for index, (start, end) in enumerate(self._margins):
            if (changed := changed_bytes(raw[start:end], fill)) is None:
                continue
            first, last = changed
            after = index == len(self._slots) or (index > 0 and first <= end - start - 1 - last)
            if after:
                damages.append(self._damage(index - 1, "after", first, last))
            else:
                damages.append(self._damage(index, "before", end - start - 1 - last, end - start - 1 - first))
        return damages

    def _damage(self, index: int, side: Side, first: int, last: int) -> Damage:
        return Damage(f"input {index}", self._slots[index].span(), side, first, last)
