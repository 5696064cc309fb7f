"""Counts which elements of its inputs and parameters a task must read, operator by operator.

1. Each input and parameter is identified by its memory, so that reads of views count for it.
2. An operator reads its arguments completely unless it is known to read less: gathers read rows, strided
   windows skip elements, masks and zero factors hide elements, and `zeros_like` reads only a shape. If it
   reads an unknown part, nothing counts.
3. Elements that the call itself has written before need not be read.

The result is a lower bound: an element that several operators read counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_COUNTED = 1 << 26
"""Number of elements that are counted at once."""
_SHAPE_ONLY = ("_like", "new_")
"""Suffix and prefix of operators that use only the shape and dtype of a tensor."""
_PARTIAL_READS = ("grid_sampler", "nll_loss", "searchsorted", "upsample_")
"""Prefixes of operators that read an unknown part of their first argument."""
_OVERWRITING = {
    "copy_",
    "fill_",
    "zero_",
    "index_put_",
    "_index_put_impl_",
    "index_copy_",
    "index_fill_",
    "scatter_",
    "masked_fill_",
}
_OVERWRITING |= {"masked_scatter_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
"""Operators that overwrite without reading."""


def _select_rows(chosen: Tensor, args: Any) -> None:
    chosen.index_fill_(0, args[1].flatten().long(), True)


def _select_indexed(chosen: Tensor, args: Any) -> None:
    torch.ops.aten.index_put_(chosen, args[1], chosen.new_ones(()))


def _select_along_axis(chosen: Tensor, args: Any) -> None:
    chosen.index_fill_(args[1], args[2].flatten().long(), True)


def _select_scattered(chosen: Tensor, args: Any) -> None:
    chosen.scatter_(args[1], args[2], True)


def _select_flat(chosen: Tensor, args: Any) -> None:
    chosen.put_(args[1], torch.ones_like(args[1], dtype=torch.bool))


def _select_masked(chosen: Tensor, args: Any) -> None:
    chosen.copy_(args[1])


_ROWS = ("embedding", "embedding_renorm_", "_embedding_bag", "_embedding_bag_forward_only")
_SELECTORS: dict[str, Callable[[Tensor, Any], None]] = {
    **dict.fromkeys(_ROWS, _select_rows),
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_"), _select_indexed),
    **dict.fromkeys(
        (
            "index_select",
            "index_add_",
            "index_reduce_",
            "index_copy",
            "index_copy_",
            "index_fill",
            "index_fill_",
        ),
        _select_along_axis,
    ),
    **dict.fromkeys(("gather", "scatter", "scatter_", "scatter_add_", "scatter_reduce_"), _select_scattered),
    **dict.fromkeys(
        ("masked_select", "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_"), _select_masked
    ),
    "take": _select_flat,
}
"""By operator: marks the elements of its first argument that it reads or writes."""
_REPLACING = {"index_put", "index_copy", "index_fill", "scatter", "masked_fill", "masked_scatter"}
"""Operators that return their first argument with the marked elements replaced: they read the other ones."""
_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d")


def count_nonzero(tensor: Tensor) -> int:
    """The number of nonzero elements, counted in pieces: torch allocates an int64 for each on a GPU."""
    flat = tensor.reshape(-1)
    pieces = range(0, flat.numel(), _COUNTED)
    return sum(int(torch.count_nonzero(flat[first : first + _COUNTED])) for first in pieces)


class ElementSet:
    """A set of elements of a memory region: none, all, or those that a mask marks."""

    def __init__(self) -> None:
        self.all = False
        self.mask: Tensor | None = None

    def add(self, view: Tensor, chosen: Tensor | None = None) -> None:
        """Add the elements of a view; with `chosen`, only those that it marks."""
        memory = view.untyped_storage().nbytes() // view.element_size()
        if (
            chosen is None
            and view.numel() == memory
            and torch.ops.aten.is_non_overlapping_and_dense.default(view)
        ):
            self.all = True
        if self.all:
            return
        if self.mask is None:
            self.mask = torch.zeros(memory, dtype=torch.bool, device=view.device)
        place = _mask_view(self.mask, view)
        if chosen is None:
            place.fill_(True)
            return
        for axis, step in enumerate(view.stride()):
            if step == 0:  # a broadcast element
                place, chosen = place.narrow(axis, 0, 1), chosen.any(axis, keepdim=True)
        place.logical_or_(chosen)


def _mask_view(mask: Tensor, view: Tensor) -> Tensor:
    return mask.as_strided(view.shape, view.stride(), view.storage_offset())


class MemoryRegion:
    """The memory of inputs or parameters, and which elements a call reads and writes."""

    def __init__(self, tensor: Tensor, sparse: bool):
        self._memory = tensor.as_strided(
            (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0
        )
        self._sparse = sparse
        """Whether zeros are excluded from the count."""
        self._read, self._written = ElementSet(), ElementSet()
        self._max_bytes = 0

    def add_tensor(self, tensor: Tensor) -> None:
        """Register a tensor in this region."""
        count = count_nonzero(tensor) if self._sparse else tensor.numel()
        self._max_bytes += count * tensor.element_size()

    def record_read(self, view: Tensor, chosen: Tensor | None) -> None:
        """Record a read of a view, or of the chosen elements."""
        if self._read.all or self._written.all:
            return
        if self._written.mask is not None:
            old = ~_mask_view(self._written.mask, view)
            chosen = old if chosen is None else chosen & old
        self._read.add(view, chosen)

    def record_write(self, view: Tensor, chosen: Tensor | None) -> None:
        """Record a write to a view, or to the chosen elements."""
        self._written.add(view, chosen)

    def matches(self, view: Tensor) -> bool:
        """Whether the view has the region's element size; the real view of a complex tensor does not."""
        return view.element_size() == self._memory.element_size()

    def read_bytes(self) -> int:
        """Bytes that the call reads."""
        read = self._memory.nbytes if self._read.all else self._bytes(self._read.mask, self._sparse)
        return min(self._max_bytes, read)

    def written_bytes(self) -> int:
        """Bytes that the call writes."""
        return self._memory.nbytes if self._written.all else self._bytes(self._written.mask, sparse=False)

    def _bytes(self, mask: Tensor | None, sparse: bool) -> int:
        if mask is None:
            return 0
        count = count_nonzero(mask & (self._memory != 0) if sparse else mask)
        return count * self._memory.element_size()


class ReadTracker:
    """Tracks what a call reads from inputs (floating-point zeros excluded) and parameters, and what it
    writes to them."""

    def __init__(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor]):
        self._regions: dict[int, MemoryRegion] = {}
        for tensor, sparse in [
            *((t, t.is_floating_point()) for t in inputs),
            *((t, False) for t in parameters),
        ]:
            if tensor.layout is torch.strided and tensor.numel():
                self._regions.setdefault(
                    tensor.untyped_storage()._cdata, MemoryRegion(tensor, sparse)
                ).add_tensor(tensor)

    def record(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Record an executed operator."""
        name = function._overloadpacket.__name__
        if name.endswith(_SHAPE_ONLY[0]) or name.startswith(_SHAPE_ONLY[1]):
            return
        schema = function._schema.arguments
        for position, value in enumerate(args):
            alias = schema[position].alias_info
            for source, tensor in self._tracked(value):
                part = _accessed_part(name, position, tensor, args, result)
                if part is not None and (position or name not in _OVERWRITING):
                    source.record_read(*part)
                if part is not None and alias is not None and alias.is_write:
                    source.record_write(*part)
        for argument in schema[len(args) :]:
            for source, tensor in self._tracked(kwargs.get(argument.name)):
                written = argument.alias_info is not None and argument.alias_info.is_write  # out=
                (source.record_write if written else source.record_read)(tensor, None)

    def _tracked(self, value: Any) -> Iterator[tuple[MemoryRegion, Tensor]]:
        for tensor in tensors(value):
            if tensor.layout is torch.strided and tensor.numel():
                source = self._regions.get(tensor.untyped_storage()._cdata)
                if source is not None and source.matches(tensor):
                    yield source, tensor

    def read_bytes(self) -> int:
        """Bytes that the call reads."""
        return sum(source.read_bytes() for source in self._regions.values())

    def written_bytes(self, outputs: Sequence[Tensor]) -> int:
        """The bytes of all outputs. For an output that aliases an input or parameter, only the bytes that the
        call wrote count."""
        most: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for tensor in outputs:
            if tensor.layout is torch.strided and tensor.numel():
                memory = tensor.untyped_storage()
                place, source = memory._cdata, self._regions.get(memory._cdata)
                most[place] = source.written_bytes() if source else memory.nbytes()
                sizes[place] = sizes.get(place, 0) + tensor.nbytes
        return sum(min(size, most[place]) for place, size in sizes.items())


def tensors(value: Any) -> list[Tensor]:
    """Tensors in an operator's arguments or results."""
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


def _accessed_part(
    name: str, position: int, tensor: Tensor, args: Any, result: Any
) -> tuple[Tensor, Tensor | None] | None:
    try:
        return _accessed_elements(name, position, tensor, args, result)
    except (RuntimeError, IndexError, TypeError):  # unexpected arguments, or no memory for a mask
        return None


def _accessed_elements(
    name: str, position: int, tensor: Tensor, args: Any, result: Any
) -> tuple[Tensor, Tensor | None] | None:
    """The elements of an argument that an operator reads or writes: a view, and a mask if not all of it.

    None if they are unknown. Of a meta tensor, all elements count.
    """
    if tensor.is_meta:
        return tensor, None
    if name == "where" and position:
        wanted = args[0] if position == 1 else ~args[0]
        return (tensor, wanted.expand(result.shape)) if tensor.shape == result.shape else None
    if name == "mul" and tensor.shape == result.shape and isinstance(other := args[1 - position], Tensor):
        factor = other != 0
        return tensor, None if bool(factor.all()) else factor.expand(result.shape)
    if position:
        return None if _reads_prefix_only(name, position, tensor, args) else (tensor, None)
    if name.startswith(_PARTIAL_READS):
        return (tensor, None) if name.startswith("upsample") and result.numel() > tensor.numel() else None
    if name in ("tril", "triu"):
        return tensor, getattr(torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device), name)(
            *args[1:]
        )
    if name == "convolution" and not args[6]:
        return _strided_windows(tensor, args[1].shape[2:], args[3], args[5]), None
    if name in _POOLS:
        dilation = args[4] if name.startswith("max") and len(args) > 4 else [1]
        return _strided_windows(
            tensor, args[1], args[2] if len(args) > 2 and args[2] else args[1], dilation
        ), None
    return _selected_elements(name, tensor, args) if name in _SELECTORS else (tensor, None)


def _reads_prefix_only(name: str, position: int, tensor: Tensor, args: Any) -> bool:
    """Whether the argument is a scatter source of which only a part may be read."""
    if name.startswith("masked_scatter"):
        return position == 2
    return name.startswith("scatter") and position == 3 and tensor.shape != args[2].shape


def _selected_elements(name: str, tensor: Tensor, args: Any) -> tuple[Tensor, Tensor] | None:
    choose = _SELECTORS[name]
    if choose is _select_masked and torch._C._infer_size(tensor.shape, args[1].shape) != tensor.shape:
        return None  # each element is broadcast under different masks
    chosen = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    choose(chosen, args)
    return tensor, ~chosen if name in _REPLACING else chosen


def _strided_windows(
    tensor: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The tensor; along axes where strided windows skip elements, only one element for each window."""
    steps: list[slice] = []
    for axis, size in enumerate(kernel):
        step, apart = stride[axis % len(stride)], dilation[axis % len(dilation)]
        steps.append(slice(None, None, step if min(size, step // math.gcd(step, apart)) < step else 1))
    return tensor[(slice(None),) * (tensor.dim() - len(steps)) + tuple(steps)]
