"""What a live module or function gives for its example inputs, as a few numbers: whether it is the same elsewhere."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch

from kernelpro.lab import tree

_MOST = 256
"""Elements of an output that are looked at."""
_FAR, _FEW = 0.03, 0.1
"""An element is another if it is off by so much of what they are on the average: more than bfloat16 and TF32 differ by between
devices. So many may be: where something is rounded or the largest is chosen, the last bit decides now and then."""

Told = list[tuple[list[int], torch.Tensor]]


def told(result: Any) -> Told:
    """Of each output its shape and elements at equal distances."""
    leaves: list[torch.Tensor] = []
    tree.pack(result, leaves)
    return [
        (list(leaf.shape), leaf.detach().flatten()[:: max(1, leaf.numel() // _MOST)].cpu()) for leaf in leaves
    ]


def dumps(found: Told) -> str:
    torch.save(found, buffer := io.BytesIO())
    return base64.b64encode(buffer.getvalue()).decode()


def loads(text: str) -> Told:
    found: Told = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    return found


def difference(one: Told, other: Told) -> str:
    """In a few words; empty where there is none."""
    if [shape for shape, _ in one] != [shape for shape, _ in other]:
        return f"outputs of shapes {[shape for shape, _ in other]}, not {[shape for shape, _ in one]}"
    for index, ((_, mine), (_, theirs)) in enumerate(zip(one, other, strict=True)):
        a, b = (
            torch.nan_to_num((torch.view_as_real(t) if t.is_complex() else t).double())
            for t in (mine, theirs)
        )
        others = (
            float(((a - b).abs() > _FAR * a.square().mean().sqrt()).double().mean()) if a.numel() else 0.0
        )
        if others > _FEW:
            return f"{others:.0%} of the elements of output {index} are others"
    return ""
