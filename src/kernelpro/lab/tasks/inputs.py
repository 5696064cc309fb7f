"""Input distributions: the inputs of a task with values that expose shortcuts.

In all distributions zeros (masks, triangles) stay zero; padded rows have more zeros.
"""

from __future__ import annotations

import math

import torch

AS_GIVEN = "as given"
ODD_ROWS, PADDED_ROWS, EQUAL_ROWS = "odd rows", "padded rows", "equal rows"
FAR_FROM_ZERO = "far from zero"
INFINITIES, NEGATIVE_INFINITIES = "infinities", "negative infinities"
WITH_INFINITIES = (INFINITIES, NEGATIVE_INFINITIES)
DISTRIBUTIONS = (
    AS_GIVEN,
    "x3",
    "x0.01",
    "negated",
    "spikes",
    ODD_ROWS,
    FAR_FROM_ZERO,
    PADDED_ROWS,
    EQUAL_ROWS,
    INFINITIES,
)
WITH_OFFSETS = (ODD_ROWS, FAR_FROM_ZERO)
"""Distributions in which a variance can cancel: of rows, or of columns, images and whole tensors."""
FALLBACKS = {"spikes": "mild spikes", INFINITIES: NEGATIVE_INFINITIES}
"""Replacements of distributions that do not suit a task: mild spikes if spikes overflow, and negative
infinities alone if infinities of both signs have no defined result."""

_SPIKE_EXPONENTS = {"spikes": (6.0, 17.0), "mild spikes": (2.0, 6.0)}
"""Range of u: a spike is an element multiplied by 2^u. At 2^17, a value of order one overflows float16 but
neither float32 nor TF32. A task that overflows (see tolerance.py) gets the mild spikes."""
_SPIKE_SHARE = 1 / 512
_MIN_SPIKES = 8
OFFSET = 1024.0
"""An offset is this multiple of the input's RMS. In float32, (mean of squares) - (square of
the mean) then has no correct digits; a variance computed from differences to the mean still has four."""
_EQUAL_FACTOR = 16.0
"""Queries and keys that are 16 times as large have scores that are 256 times as large. If all keys are equal,
a third of the queries has only scores below -88, where exp underflows in float32, but none below -10000."""
_INFINITE_SHARE = 1 / 4096
_MIN_INFINITE = 8
_PIECE = 1 << 24
"""Number of elements that are transformed at once."""


def transform(
    leaves: list[torch.Tensor], distribution: str, seed: int, in_place: bool = False
) -> list[torch.Tensor]:
    """Transform the floating-point tensors; others are unchanged.

    `in_place`: the caller no longer needs the originals. Tensors that share their memory with no other tensor
    are then overwritten, because large tasks leave no memory for another copy.
    """
    if distribution == EQUAL_ROWS:
        return _with_equal_rows(leaves)
    return [
        _transform_leaf(leaf, distribution, seed + i, in_place) if leaf.is_floating_point() else leaf
        for i, leaf in enumerate(leaves)
    ]


def _transform_leaf(leaf: torch.Tensor, distribution: str, seed: int, in_place: bool) -> torch.Tensor:
    if distribution == AS_GIVEN or not leaf.numel():
        return leaf
    generator = torch.Generator(leaf.device).manual_seed(seed)
    leaf = leaf if in_place and _is_exclusive(leaf) else leaf.clone()
    if distribution in _SPIKE_EXPONENTS:
        return _with_spikes(leaf, *_SPIKE_EXPONENTS[distribution], generator)
    if distribution == ODD_ROWS:
        return _with_odd_rows(leaf, generator)
    if distribution == FAR_FROM_ZERO:
        return _with_offset(leaf, generator)
    if distribution == PADDED_ROWS:
        return _with_padded_rows(leaf, generator)
    if distribution in WITH_INFINITIES:
        return _with_infinities(leaf, distribution == NEGATIVE_INFINITIES, generator)
    return leaf.mul_({"x3": 3.0, "x0.01": 0.01, "negated": -1.0}[distribution])


def _is_exclusive(leaf: torch.Tensor) -> bool:
    """Whether no other tensor shares its memory, and no two elements do."""
    alone = _references(leaf) == _references(torch.empty(1, device=leaf.device))
    return alone and bool(torch.ops.aten.is_non_overlapping_and_dense.default(leaf))


def _references(tensor: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def _with_spikes(leaf: torch.Tensor, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    count = min(leaf.numel(), max(_MIN_SPIKES, int(leaf.numel() * _SPIKE_SHARE)))
    where = torch.randint(leaf.numel(), (count,), generator=generator, device=leaf.device)
    powers = low + (high - low) * torch.rand(count, generator=generator, device=leaf.device)
    places, which = torch.unique(where, return_inverse=True)
    factors = torch.zeros(len(places), dtype=torch.float64, device=leaf.device)
    # "amax" keeps the result reproducible if an index is drawn twice
    factors.scatter_reduce_(0, which, torch.exp2(powers.double()), "amax")
    return leaf.put_(places, (leaf.take(places).double() * factors).to(leaf.dtype))


def _with_odd_rows(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Add a large offset to a quarter of the rows, and make another quarter constant.

    The constants are powers of two. Their sums are exact in any order, so that no honest kernel loses digits.
    """
    if leaf.dim() < 2:
        return leaf
    draws = torch.rand((*leaf.shape[:-1], 1), generator=generator, device=leaf.device)
    signs = torch.where(draws < 0.125, -1.0, 1.0)
    rms = torch.linalg.vector_norm(leaf, dtype=torch.float32) / math.sqrt(leaf.numel())
    offset = (OFFSET * rms * signs).to(leaf.dtype)
    step = max(1, _PIECE // (leaf.numel() // leaf.shape[0]))
    for first_row in range(0, leaf.shape[0], step):
        rows = slice(first_row, first_row + step)
        part, draw = leaf[rows], draws[rows]
        first = part[..., :1].float()
        constant = torch.exp2(first.abs().clamp(2.0**-10, 2.0**10).log2().round()).copysign(first)
        odd = torch.where(draw < 0.25, part + offset[rows], part)
        odd = torch.where(draw > 0.75, constant.to(leaf.dtype).expand_as(part), odd)
        leaf[rows] = torch.where(part == 0, part, odd)
    return leaf


def _with_offset(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Add the same large offset to all values."""
    if leaf.numel() < 2:
        return leaf
    rms = torch.linalg.vector_norm(leaf, dtype=torch.float32) / math.sqrt(leaf.numel())
    sign = torch.randint(2, (1,), generator=generator, device=leaf.device) * 2 - 1
    offset = (OFFSET * rms * sign).to(leaf.dtype)
    step = max(1, _PIECE // (leaf.numel() // leaf.shape[0]))
    for part in torch.split(leaf, step):
        part += torch.where(part == 0, 0, offset)
    return leaf


def _with_padded_rows(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A quarter of the rows is zero, an eighth starts and an eighth ends with zeros; the rest as given."""
    if leaf.dim() < 2:
        return leaf
    draws, cuts = (
        torch.rand((*leaf.shape[:-1], 1), generator=generator, device=leaf.device) for _ in range(2)
    )
    places = torch.arange(leaf.shape[-1], device=leaf.device) / leaf.shape[-1]
    step = max(1, _PIECE // (leaf.numel() // leaf.shape[0]))
    for first_row in range(0, leaf.shape[0], step):
        rows = slice(first_row, first_row + step)
        draw, cut = draws[rows], cuts[rows]
        padded = (draw < 0.25) | ((draw > 0.75) & ((draw < 0.875) ^ (places > cut)))
        leaf[rows].masked_fill_(padded, 0)
    return leaf


def _with_equal_rows(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """All rows of each matrix are its first row, and every value is multiplied by _EQUAL_FACTOR.

    If there are several matrices, the rows of the first one, which are mostly queries, stay different.
    """
    matrices = [i for i, leaf in enumerate(leaves) if leaf.is_floating_point() and leaf.dim() >= 2]
    equal = matrices[1:] or matrices
    transformed = []
    for index, leaf in enumerate(leaves):
        if index in matrices:
            rows = leaf[..., :1, :].expand_as(leaf) if index in equal else leaf
            leaf = torch.where(leaf == 0, leaf, rows * _EQUAL_FACTOR)
        transformed.append(leaf)
    return transformed


def _with_infinities(leaf: torch.Tensor, negative: bool, generator: torch.Generator) -> torch.Tensor:
    """Make a few elements infinite."""
    count = min(leaf.numel(), max(_MIN_INFINITE, int(leaf.numel() * _INFINITE_SHARE)))
    where = torch.randint(leaf.numel(), (count,), generator=generator, device=leaf.device)
    values = leaf.take(where)
    infinite = torch.full_like(values, -torch.inf) if negative else values.sign() * torch.inf
    return leaf.put_(where, torch.where(values == 0, values, infinite))
