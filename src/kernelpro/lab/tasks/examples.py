"""Samples of the outputs of a live module or function, to check that a worker computes the same outputs."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch

from kernelpro.lab import tree

_MAX_SAMPLES = 256
"""Sampled elements per output, approximately."""
_ELEMENT_TOLERANCE, _MAX_DIFFERING = 0.03, 0.1
"""An element differs if its error exceeds 3 % of the output's RMS: results in bfloat16 or TF32 differ less
between devices. Up to 10 % of the elements may differ, because rounding and argmax amplify differences in the
last bit."""

OutputSamples = list[tuple[list[int], torch.Tensor]]


def sample_outputs(result: Any) -> OutputSamples:
    """The shape of each output, and a sample of equally spaced elements."""
    leaves: list[torch.Tensor] = []
    tree.flatten(result, leaves)
    return [
        (list(leaf.shape), leaf.detach().flatten()[:: max(1, leaf.numel() // _MAX_SAMPLES)].cpu())
        for leaf in leaves
    ]


def dumps(samples: OutputSamples) -> str:
    """Samples as base64 text."""
    torch.save(samples, buffer := io.BytesIO())
    return base64.b64encode(buffer.getvalue()).decode()


def loads(text: str) -> OutputSamples:
    """The inverse of `dumps`."""
    samples: OutputSamples = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    return samples


def describe_difference(expected: OutputSamples, actual: OutputSamples) -> str:
    """How two samples differ, in a few words; empty if they agree."""
    if [shape for shape, _ in expected] != [shape for shape, _ in actual]:
        return f"outputs of shapes {[shape for shape, _ in actual]}, not {[shape for shape, _ in expected]}"
    for index, ((_, mine), (_, theirs)) in enumerate(zip(expected, actual, strict=True)):
        a, b = (
            torch.nan_to_num((torch.view_as_real(t) if t.is_complex() else t).double())
            for t in (mine, theirs)
        )
        differing = (
            float(((a - b).abs() > _ELEMENT_TOLERANCE * a.square().mean().sqrt()).double().mean())
            if a.numel()
            else 0.0
        )
        if differing > _MAX_DIFFERING:
            return f"{differing:.0%} of the elements of output {index} differ"
    return ""
