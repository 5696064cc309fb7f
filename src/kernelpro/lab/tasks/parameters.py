"""Parameters: give reference and candidate the same values, and no parameter that is constant.

The judge could not notice that a kernel ignores a bias of zeros or a norm weight of ones. Therefore constants
are replaced while a model is built: a parameter that would be filled with the constant c gets
`nonconstant_values(seed, parameter, c)`. They depend only on the seed, the shape and c. So reference and
candidate get the same values, whatever they call the parameter and in whichever order they create it. A
candidate keeps constants that the reference does not have, such as the weights of an average.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from kernelpro.records import digest

State = dict[str, torch.Tensor]
Constant = tuple[tuple[int, ...], float]
"""The shape of a constant parameter, and its value."""
Source = Literal["by name", "by seed", "none"]
"""Where a candidate's parameters come from: the reference's state (by name) or its own constructor (by seed);
`none` if there are no parameters."""
_PERIOD = 1_048_573
"""Large tensors repeat this many random values. A new matrix is often all zeros before it is initialized, and
drawing 67 million values that are then overwritten took five seconds. The number is prime so that repetitions
do not coincide with rows."""
_FEW = 256
_CHECKSUM_COLUMNS = 4096


def nonconstant_values(seed: int, like: torch.Tensor, value: float) -> torch.Tensor:
    """Random values that replace a constant: N(0, 0.2^2) for 0, else uniform in value * [0.75, 1.25].

    They depend on the seed, the value and the shape of `like`, and have its dtype and device.
    """
    key = int(digest(str(seed), str(tuple(like.shape)), repr(value)), 16) % 2**63
    generator = torch.Generator("cpu").manual_seed(key)
    count = min(like.numel(), _PERIOD)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": "cpu"}
    if value == 0:
        values = 0.2 * torch.randn(count, **options)
    else:
        values = value * (0.75 + 0.5 * torch.rand(count, **options))
    repetitions = -(-like.numel() // max(count, 1))
    return values.to(like).repeat(repetitions)[: like.numel()].view(like.shape)


def constant_of(tensor: torch.Tensor) -> float | None:
    """The value of a floating-point tensor whose elements are all equal and finite; else None."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return None
    flat = tensor.flatten()
    first = flat[0]
    if not bool(torch.isfinite(first)) or not bool((flat[:_FEW] == first).all()):
        return None
    return float(first) if bool((flat == first).all()) else None


def seed_everything(seed: int) -> None:
    """Seed torch, Python and numpy."""
    # torch.manual_seed does the same, but formats the stack trace twice for lazily initialized devices
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


@contextmanager
def seeded_build(seed: int, only: Collection[Constant] | None = None) -> Iterator[set[Constant]]:
    """A context that builds models reproducibly: seeds the generators and replaces constant parameters.

    Returns the constants that were replaced. `only`: replace no others.
    """
    seed_everything(seed)
    new_parameter = nn.Parameter.__new__
    replaced: set[Constant] = set()

    def values_for(tensor: torch.Tensor, value: float) -> torch.Tensor | None:
        constant = tuple(tensor.shape), value
        if only is not None and constant not in only:
            return None
        replaced.add(constant)
        return nonconstant_values(seed, tensor, value)

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        value = constant_of(data) if isinstance(data, torch.Tensor) else None
        values = None if value is None else values_for(data, value)
        return new_parameter(cls, data if values is None else values, requires_grad)

    def constant_(tensor: torch.Tensor, val: float) -> torch.Tensor:
        with torch.no_grad():
            values = values_for(tensor, float(val))
            return tensor.fill_(val) if values is None else tensor.copy_(values)

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
        yield replaced


def construct(
    factory: Any,
    init_inputs: list[Any],
    seed: int,
    device: str = "",
    only: Collection[Constant] | None = None,
) -> tuple[Any, set[Constant]]:
    """Construct a model from the seed; returns the replaced constants, too.

    With `device`, tensors are created there by default. `only`: see `seeded_build`.
    """
    on_device = torch.device(device) if device else nullcontext()
    with torch.no_grad(), seeded_build(seed, only) as replaced, on_device:
        return factory(*init_inputs), replaced


def replace_constants(model: nn.Module, seed: int) -> set[Constant]:
    """Replace the constant parameters of an existing model in place; returns them."""
    replaced: set[Constant] = set()
    with torch.no_grad():
        for tensor in model.parameters():
            if (value := constant_of(tensor)) is not None:
                tensor.copy_(nonconstant_values(seed, tensor, value))
                replaced.add((tuple(tensor.shape), value))
    return replaced


@dataclass(frozen=True)
class StateEntry:
    """The identifying properties of one tensor of a state."""

    shape: tuple[int, ...]
    required: bool
    """Whether a candidate must have it. Integer tensors may be missing: many are counters or positions."""
    storage: int
    """Identifies the memory. Tied tensors share it, and a candidate needs only one of them."""
    checksum: tuple[int, ...]


def describe_state(state: State) -> dict[str, StateEntry]:
    """The entries of a state, by name."""
    numbers: dict[tuple[int, int, torch.Size], int] = {}
    return {
        name: StateEntry(
            tuple(tensor.shape),
            tensor.is_floating_point() or tensor.is_complex(),
            numbers.setdefault(_storage_key(tensor), len(numbers)),
            checksum(tensor),
        )
        for name, tensor in state.items()
    }


def checksum(tensor: torch.Tensor) -> tuple[int, ...]:
    """A checksum of a tensor's bytes and their order; the same on all devices."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = data[: data.numel() // 4 * 4]
    # an offset that is not a multiple of four cannot be viewed as words
    words = (words if words.storage_offset() % 4 == 0 else words.clone()).view(torch.int32)
    rows = words[: words.numel() // _CHECKSUM_COLUMNS * _CHECKSUM_COLUMNS].view(-1, _CHECKSUM_COLUMNS)
    rest = torch.cat([words[rows.numel() :].long(), data[words.numel() * 4 :].long()])
    return tuple(
        int((sums * torch.arange(1, len(sums) + 1, device=sums.device)).sum())
        for sums in (rows.sum(0), rows.sum(1), rest)
    )


def match_state(model: nn.Module, entries: dict[str, StateEntry]) -> tuple[Source, list[str]]:
    """Match a model with the reference's state by names and shapes.

    Returns the source of its parameters, and the names of the tensors whose values differ. A model that does
    not match keeps its own seeded values.
    """
    if not entries:
        return "none", []
    own = _own_state(model)
    fitting = [n for n, entry in entries.items() if n in own and tuple(own[n].shape) == entry.shape]
    available = {entries[name].storage for name in fitting}
    if not fitting or any(entry.required and entry.storage not in available for entry in entries.values()):
        return "by seed", []
    return "by name", [name for name in fitting if checksum(own[name]) != entries[name].checksum]


def copy_state(model: nn.Module, state: State) -> None:
    """Copy these tensors into the model's tensors of the same names."""
    own = _own_state(model)
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def copy_elements(model: nn.Module, name: str, first: int, values: torch.Tensor) -> None:
    """Copy values into consecutive elements of one of the model's tensors."""
    own = _own_state(model)[name]
    with torch.no_grad():
        flat = own.contiguous().view(-1)
        flat[first : first + len(values)] = values.to(flat.device)
        if flat.data_ptr() != own.data_ptr():
            own.copy_(flat.view(own.shape))


def load_reference_state(model: nn.Module, state: State) -> Source:
    """Copy the reference's state into a model with the same names and shapes, else keep its seeded values."""
    source, different = match_state(model, describe_state(state))
    copy_state(model, {name: state[name] for name in different})
    return source


def _own_state(model: nn.Module) -> State:
    parameters, buffers = model.named_parameters, model.named_buffers
    return dict(parameters(remove_duplicate=False)) | dict(buffers(remove_duplicate=False))


def _storage_key(tensor: torch.Tensor) -> tuple[int, int, torch.Size]:
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.shape
