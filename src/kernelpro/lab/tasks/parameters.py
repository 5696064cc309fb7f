"""Parameters: how reference and candidate come to the same ones, none of them trivial.

A kernel that ignores a bias of zeros or a norm weight of ones would go unnoticed, so constants are
replaced while a model is built under a seed: a parameter of shape S that would be the constant c
becomes `stand_in(seed, S, c)`, a function of these three alone. Reference and candidate arrive at the
same values whatever they call the parameter and in whichever order they create it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import nn

from kernelpro.records import digest

State = dict[str, torch.Tensor]


def stand_in(seed: int, shape: torch.Size, value: float) -> torch.Tensor:
    """0 becomes N(0, 0.2^2); any other c is spread over c * [0.75, 1.25], so that it keeps its sign."""
    key = int(digest(str(seed), str(tuple(shape)), repr(value)), 16) % 2**63
    generator = torch.Generator().manual_seed(key)
    if value == 0:
        return 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return value * (0.75 + 0.5 * torch.rand(shape, generator=generator, dtype=torch.float64))


def constant_of(tensor: torch.Tensor) -> float | None:
    """The value of a floating tensor whose elements are all equal and finite; None for any other."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return None
    first = tensor.flatten()[0]
    return float(first) if bool(torch.isfinite(first)) and bool((tensor == first).all()) else None


def seed_everything(seed: int) -> None:
    # torch.manual_seed gives the same, but formats the stack twice, for devices that may come later
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


@contextmanager
def under_seed(seed: int) -> Iterator[None]:
    """Build a model here: random initialisation from the seed, constants replaced."""
    seed_everything(seed)
    new_parameter = nn.Parameter.__new__

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        value = constant_of(data) if isinstance(data, torch.Tensor) else None
        if value is not None:
            data = stand_in(seed, data.shape, value).to(data)
        return new_parameter(cls, data, requires_grad)

    def constant_(tensor: torch.Tensor, val: float) -> torch.Tensor:
        with torch.no_grad():
            return tensor.copy_(stand_in(seed, tensor.shape, float(val)))

    def reset_running_stats(norm: Any) -> None:
        if norm.track_running_stats:
            constant_(norm.running_mean, 0.0)
            constant_(norm.running_var, 1.0)
            norm.num_batches_tracked.zero_()

    replacements = [
        (nn.Parameter, "__new__", staticmethod(parameter)),
        (nn.init, "constant_", constant_),
        (nn.init, "zeros_", lambda tensor: constant_(tensor, 0.0)),
        (nn.init, "ones_", lambda tensor, *_: constant_(tensor, 1.0)),
        (nn.modules.batchnorm._NormBase, "reset_running_stats", reset_running_stats),
    ]
    with ExitStack() as stack:
        for owner, name, new in replacements:
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, new)
        yield


def replace_constants(model: nn.Module, seed: int) -> None:
    """For a model that exists already: replace its constant parameters in place."""
    with torch.no_grad():
        for tensor in model.parameters():
            if (value := constant_of(tensor)) is not None:
                tensor.copy_(stand_in(seed, tensor.shape, value))


def give(model: nn.Module, state: State) -> Literal["by name", "by seed", "none"]:
    """Copy the reference's state into a model that has all its names and shapes; leave any other as its seed made it.

    Integers may be missing: many are counters or positions that a kernel has no use for. Of tied ones, one will do.
    """
    if not state:
        return "none"
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    fitting = {name for name, tensor in state.items() if name in own and own[name].shape == tensor.shape}
    needed = {name for name, tensor in state.items() if tensor.is_floating_point() or tensor.is_complex()}
    there = {_place(state[name]) for name in fitting}
    if not fitting or any(_place(state[name]) not in there for name in needed):
        return "by seed"
    with torch.no_grad():
        for name in fitting:
            own[name].copy_(state[name])
    return "by name"


def _place(tensor: torch.Tensor) -> tuple[int, int, torch.Size]:
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.shape
