"""Parameters: how reference and candidate get the same values, none of them constant.

A kernel that ignores a bias of zeros or a norm weight of ones would go unnoticed. So constants are replaced
while a model is built: a parameter of shape S that would be the constant c becomes `nonconstant_values(seed,
S, c)`. Reference and candidate get the same values, whatever they call the parameter and in whichever order
they create it.
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


def nonconstant_values(seed: int, shape: torch.Size, value: float) -> torch.Tensor:
    """N(0, 0.2^2) for 0; for any other c, uniform in c * [0.75, 1.25], which keeps the sign."""
    key = int(digest(str(seed), str(tuple(shape)), repr(value)), 16) % 2**63
    generator = torch.Generator().manual_seed(key)
    if value == 0:
        return 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return value * (0.75 + 0.5 * torch.rand(shape, generator=generator, dtype=torch.float64))


def constant_of(tensor: torch.Tensor) -> float | None:
    """The value of a floating-point tensor whose elements are all equal and finite; else None."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return None
    first = tensor.flatten()[0]
    return float(first) if bool(torch.isfinite(first)) and bool((tensor == first).all()) else None


def seed_everything(seed: int) -> None:
    """Seed torch, Python and numpy."""
    # torch.manual_seed does the same, but formats the stack twice for lazily initialized devices
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


@contextmanager
def seeded_build(seed: int) -> Iterator[None]:
    """Build a model in this context: random initialization from the seed, constants replaced."""
    seed_everything(seed)
    new_parameter = nn.Parameter.__new__

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        value = constant_of(data) if isinstance(data, torch.Tensor) else None
        if value is not None:
            data = nonconstant_values(seed, data.shape, value).to(data)
        return new_parameter(cls, data, requires_grad)

    def constant_(tensor: torch.Tensor, val: float) -> torch.Tensor:
        with torch.no_grad():
            return tensor.copy_(nonconstant_values(seed, tensor.shape, float(val)))

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
    """Replace the constant parameters of an existing model in place."""
    with torch.no_grad():
        for tensor in model.parameters():
            if (value := constant_of(tensor)) is not None:
                tensor.copy_(nonconstant_values(seed, tensor.shape, value))


def load_reference_state(model: nn.Module, state: State) -> Literal["by name", "by seed", "none"]:
    """Copy the reference's state into a model with the same names and shapes; else keep the seeded values.

    Integer tensors may be missing: many are counters or positions that a kernel does not need. Of tied
    parameters, one is enough.
    """
    if not state:
        return "none"
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    fitting = {name for name, tensor in state.items() if name in own and own[name].shape == tensor.shape}
    needed = {name for name, tensor in state.items() if tensor.is_floating_point() or tensor.is_complex()}
    available = {_storage_key(state[name]) for name in fitting}
    if not fitting or any(_storage_key(state[name]) not in available for name in needed):
        return "by seed"
    with torch.no_grad():
        for name in fitting:
            own[name].copy_(state[name])
    return "by name"


def _storage_key(tensor: torch.Tensor) -> tuple[int, int, torch.Size]:
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.shape
