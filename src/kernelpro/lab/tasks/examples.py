"""What a live module or function gives for its example inputs, as a few numbers: whether it is the same elsewhere."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch

from kernelpro.lab import tree

_MOST = 256
"""Elements of an output that are looked at."""
_SAME = 0.03
"""Relative error below which two are the same computation: more than bfloat16 and TF32 differ by between devices."""

Told = list[tuple[list[int], torch.Tensor]]


def told(result: Any) -> Told:
    """Of each output its shape and elements at equal distances."""
    leaves: list[torch.Tensor] = []
    tree.pack(result, leaves)
    return [(list(leaf.shape), leaf.detach().flatten()[:: max(1, leaf.numel() // _MOST)].cpu()) for leaf in leaves]


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
        a, b = (torch.nan_to_num(torch.view_as_real(t) if t.is_complex() else t.double()).double() for t in (mine, theirs))
        if float((a - b).norm()) > _SAME * float(a.norm()):
            return f"output {index} is {float((a - b).norm() / a.norm().clamp_min(1e-300)):.0%} off"
    return ""
