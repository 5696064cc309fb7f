"""Input distributions: the same task under values that make shortcuts visible.

All transformations multiply, so that zeros (masks, triangles) and the signs of structure stay where they are.
"""

from __future__ import annotations

import torch

AS_GIVEN = "as given"
DISTRIBUTIONS = (AS_GIVEN, "x3", "x0.01", "negated", "spikes")

_SPIKE_EXPONENTS = {"spikes": (6.0, 17.0), "mild spikes": (2.0, 6.0)}
"""Spikes are multiplied by 2^u. Up to 2^17 a value of order one leaves the range of float16, which
float32 and TF32 hold; a task that cannot bear that (see tolerance.py) is given the mild ones."""
_SPIKE_SHARE = 1 / 512
_FEWEST_SPIKES = 8


def transform(leaves: list[torch.Tensor], distribution: str, seed: int) -> list[torch.Tensor]:
    """The floating tensors under a distribution; others as they are."""
    return [
        _one(leaf, distribution, seed + i) if leaf.is_floating_point() else leaf
        for i, leaf in enumerate(leaves)
    ]


def _one(leaf: torch.Tensor, distribution: str, seed: int) -> torch.Tensor:
    if distribution == AS_GIVEN or not leaf.numel():
        return leaf
    if distribution in _SPIKE_EXPONENTS:
        low, high = _SPIKE_EXPONENTS[distribution]
        generator = torch.Generator(leaf.device).manual_seed(seed)
        count = min(leaf.numel(), max(_FEWEST_SPIKES, int(leaf.numel() * _SPIKE_SHARE)))
        where = torch.randint(leaf.numel(), (count,), generator=generator, device=leaf.device)
        powers = low + (high - low) * torch.rand(count, generator=generator, device=leaf.device)
        places, which = torch.unique(where, return_inverse=True)
        factors = torch.zeros(len(places), dtype=torch.float64, device=leaf.device)
        factors.scatter_reduce_(
            0, which, torch.exp2(powers.double()), "amax"
        )  # a place drawn twice stays reproducible
        return leaf.clone().put_(places, (leaf.take(places).double() * factors).to(leaf.dtype))
    return leaf * {"x3": 3.0, "x0.01": 0.01, "negated": -1.0}[distribution]
