"""Input distributions: the same task with values that expose shortcuts.

All transformations multiply, so that zeros (masks, triangles) stay zero.
"""

from __future__ import annotations

import torch

AS_GIVEN = "as given"
DISTRIBUTIONS = (AS_GIVEN, "x3", "x0.01", "negated", "spikes")

_SPIKE_EXPONENTS = {"spikes": (6.0, 17.0), "mild spikes": (2.0, 6.0)}
"""Spikes are multiplied by 2^u. At 2^17 a value of order one exceeds float16 but not float32 and TF32. A task
that overflows (see tolerance.py) gets the mild spikes."""
_SPIKE_SHARE = 1 / 512
_MIN_SPIKES = 8


def transform(leaves: list[torch.Tensor], distribution: str, seed: int) -> list[torch.Tensor]:
    """Transform the floating-point tensors; others are unchanged."""
    return [
        _transform_leaf(leaf, distribution, seed + i) if leaf.is_floating_point() else leaf
        for i, leaf in enumerate(leaves)
    ]


def _transform_leaf(leaf: torch.Tensor, distribution: str, seed: int) -> torch.Tensor:
    if distribution == AS_GIVEN or not leaf.numel():
        return leaf
    if distribution in _SPIKE_EXPONENTS:
        low, high = _SPIKE_EXPONENTS[distribution]
        generator = torch.Generator(leaf.device).manual_seed(seed)
        count = min(leaf.numel(), max(_MIN_SPIKES, int(leaf.numel() * _SPIKE_SHARE)))
        where = torch.randint(leaf.numel(), (count,), generator=generator, device=leaf.device)
        powers = low + (high - low) * torch.rand(count, generator=generator, device=leaf.device)
        places, which = torch.unique(where, return_inverse=True)
        factors = torch.zeros(len(places), dtype=torch.float64, device=leaf.device)
        # "amax": an index drawn twice stays reproducible
        factors.scatter_reduce_(0, which, torch.exp2(powers.double()), "amax")
        return leaf.clone().put_(places, (leaf.take(places).double() * factors).to(leaf.dtype))
    return leaf * {"x3": 3.0, "x0.01": 0.01, "negated": -1.0}[distribution]
