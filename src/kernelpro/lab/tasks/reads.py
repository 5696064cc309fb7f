"""Which elements of a task's inputs and parameters a call really reads, seen operator by operator.

1. Each input and parameter is known by its memory; views of it lead there.
2. An operator reads its arguments whole, unless it is known to read less: gathers fetch rows, windows leap over elements, masks
   and factors of zero hide elements, and `zeros_like` asks for a shape alone. Where that cannot be told, nothing counts.
3. What the call itself has written there before need not be read.

So the sum is a lower bound: elements that several operators read count once, and what none reads does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_SHAPE_ALONE = ("_like", "new_")
"""Ends and beginnings of the names of operators that take of a tensor its shape and type only."""
_UNSURE = ("grid_sampler", "nll_loss", "searchsorted", "upsample_")
"""Beginnings of operators whose first argument is read in part, and which part is not worth finding out."""
_FRESH = {
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
_FRESH |= {"masked_scatter_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
"""They write without reading what was there."""


def _rows(chosen: Tensor, args: Any) -> None:
    chosen.index_fill_(0, args[1].flatten().long(), True)


def _cells(chosen: Tensor, args: Any) -> None:
    torch.ops.aten.index_put_(chosen, args[1], chosen.new_ones(()))


def _along(chosen: Tensor, args: Any) -> None:
    chosen.index_fill_(args[1], args[2].flatten().long(), True)


def _places(chosen: Tensor, args: Any) -> None:
    chosen.scatter_(args[1], args[2], True)


def _flat(chosen: Tensor, args: Any) -> None:
    chosen.put_(args[1], torch.ones_like(args[1], dtype=torch.bool))


def _masked(chosen: Tensor, args: Any) -> None:
    chosen.copy_(args[1])


_ROWS = ("embedding", "embedding_renorm_", "_embedding_bag", "_embedding_bag_forward_only")
_CHOICES: dict[str, Callable[[Tensor, Any], None]] = {
    **dict.fromkeys(_ROWS, _rows),
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_"), _cells),
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
        _along,
    ),
    **dict.fromkeys(("gather", "scatter", "scatter_", "scatter_add_", "scatter_reduce_"), _places),
    **dict.fromkeys(
        ("masked_select", "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_"), _masked
    ),
    "take": _flat,
}
"""Which elements of its first argument an operator fetches, or writes to."""
_REPLACE = {"index_put", "index_copy", "index_fill", "scatter", "masked_fill", "masked_scatter"}
"""They give their first argument with those elements replaced: what they read is the rest."""
_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d")


class Part:
    """Some elements of a memory: none, all, or those of a mask."""

    def __init__(self) -> None:
        self.all = False
        self.mask: Tensor | None = None

    def add(self, view: Tensor, chosen: Tensor | None = None) -> None:
        """The elements under this view of the memory, or those of them that are chosen."""
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
        place = _under(self.mask, view)
        if chosen is None:
            place.fill_(True)
            return
        for axis, step in enumerate(view.stride()):
            if step == 0:  # one element of the memory, seen several times
                place, chosen = place.narrow(axis, 0, 1), chosen.any(axis, keepdim=True)
        place.logical_or_(chosen)


def _under(mask: Tensor, view: Tensor) -> Tensor:
    return mask.as_strided(view.shape, view.stride(), view.storage_offset())


class Source:
    """The memory of inputs or parameters, and what a call does to it."""

    def __init__(self, tensor: Tensor, sparse: bool):
        self._memory = tensor.as_strided(
            (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0
        )
        self._sparse = sparse
        """Whether elements of zero need not be read."""
        self._read, self._written = Part(), Part()
        self._most = 0

    def hold(self, tensor: Tensor) -> None:
        """One of the tensors that lie in it."""
        count = int(torch.count_nonzero(tensor)) if self._sparse else tensor.numel()
        self._most += count * tensor.element_size()

    def reads(self, view: Tensor, chosen: Tensor | None) -> None:
        if self._read.all or self._written.all:
            return
        if self._written.mask is not None:
            old = ~_under(self._written.mask, view)
            chosen = old if chosen is None else chosen & old
        self._read.add(view, chosen)

    def writes(self, view: Tensor, chosen: Tensor | None) -> None:
        self._written.add(view, chosen)

    def fits(self, view: Tensor) -> bool:
        """Whether its elements are those of the memory: not so of a complex number's two halves."""
        return view.element_size() == self._memory.element_size()

    def read_bytes(self) -> int:
        read = self._memory.nbytes if self._read.all else self._bytes(self._read.mask, self._sparse)
        return min(self._most, read)

    def written_bytes(self) -> int:
        return self._memory.nbytes if self._written.all else self._bytes(self._written.mask, sparse=False)

    def _bytes(self, mask: Tensor | None, sparse: bool) -> int:
        if mask is None:
            return 0
        return (
            int(torch.count_nonzero(mask & (self._memory != 0) if sparse else mask))
            * self._memory.element_size()
        )


class Reads:
    """What one call reads of `inputs` (of which floating zeros need not be read) and of `parameters`, and what it writes."""

    def __init__(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor]):
        self._sources: dict[int, Source] = {}
        for tensor, sparse in [
            *((t, t.is_floating_point()) for t in inputs),
            *((t, False) for t in parameters),
        ]:
            if tensor.layout is torch.strided and tensor.numel():
                self._sources.setdefault(tensor.untyped_storage()._cdata, Source(tensor, sparse)).hold(tensor)

    def see(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """An operator that has just been executed."""
        name = function._overloadpacket.__name__
        if name.endswith(_SHAPE_ALONE[0]) or name.startswith(_SHAPE_ALONE[1]):
            return
        schema = function._schema.arguments
        for position, value in enumerate(args):
            alias = schema[position].alias_info
            for source, tensor in self._found(value):
                part = _known_part(name, position, tensor, args, result)
                if part is not None and (position or name not in _FRESH):
                    source.reads(*part)
                if part is not None and alias is not None and alias.is_write:
                    source.writes(*part)
        for argument in schema[len(args) :]:
            for source, tensor in self._found(kwargs.get(argument.name)):
                written = argument.alias_info is not None and argument.alias_info.is_write  # out=
                (source.writes if written else source.reads)(tensor, None)

    def _found(self, value: Any) -> Iterator[tuple[Source, Tensor]]:
        for tensor in tensors(value):
            if tensor.layout is torch.strided and tensor.numel():
                source = self._sources.get(tensor.untyped_storage()._cdata)
                if source is not None and source.fits(tensor):
                    yield source, tensor

    def read_bytes(self) -> int:
        return sum(source.read_bytes() for source in self._sources.values())

    def written_bytes(self, outputs: Sequence[Tensor]) -> int:
        """Every output once. One that is an input or parameter, or a view of it, costs what the call has written there."""
        most: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for tensor in outputs:
            if tensor.layout is torch.strided and tensor.numel():
                memory = tensor.untyped_storage()
                place, source = memory._cdata, self._sources.get(memory._cdata)
                most[place] = source.written_bytes() if source else memory.nbytes()
                sizes[place] = sizes.get(place, 0) + tensor.nbytes
        return sum(min(size, most[place]) for place, size in sizes.items())


def tensors(value: Any) -> list[Tensor]:
    """Tensors in an operator's arguments or results."""
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


def _known_part(
    name: str, position: int, tensor: Tensor, args: Any, result: Any
) -> tuple[Tensor, Tensor | None] | None:
    try:
        return _part(name, position, tensor, args, result)
    except (
        RuntimeError,
        IndexError,
        TypeError,
    ):  # arguments in a form that nobody foresaw, or no room for a mask
        return None


def _part(
    name: str, position: int, tensor: Tensor, args: Any, result: Any
) -> tuple[Tensor, Tensor | None] | None:
    """What an operator reads of this argument, or writes to: a view of it, and which of its elements, where not all.

    None where that is not known. Of a tensor without content (`meta`) it is all."""
    if tensor.is_meta:
        return tensor, None
    if name == "where" and position:
        wanted = args[0] if position == 1 else ~args[0]
        return (tensor, wanted.expand(result.shape)) if tensor.shape == result.shape else None
    if name == "mul" and tensor.shape == result.shape and isinstance(other := args[1 - position], Tensor):
        factor = other != 0
        return tensor, None if bool(factor.all()) else factor.expand(result.shape)
    if position:
        return None if _some_of(name, position, tensor, args) else (tensor, None)
    if name.startswith(_UNSURE):
        return (tensor, None) if name.startswith("upsample") and result.numel() > tensor.numel() else None
    if name in ("tril", "triu"):
        return tensor, getattr(torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device), name)(
            *args[1:]
        )
    if name == "convolution" and not args[6]:
        return _one_each(tensor, args[1].shape[2:], args[3], args[5]), None
    if name in _POOLS:
        dilation = args[4] if name.startswith("max") and len(args) > 4 else [1]
        return _one_each(tensor, args[1], args[2] if len(args) > 2 and args[2] else args[1], dilation), None
    return _fetched(name, tensor, args) if name in _CHOICES else (tensor, None)


def _some_of(name: str, position: int, tensor: Tensor, args: Any) -> bool:
    """Whether it gives what is scattered, and is longer than that."""
    if name.startswith("masked_scatter"):
        return position == 2
    return name.startswith("scatter") and position == 3 and tensor.shape != args[2].shape


def _fetched(name: str, tensor: Tensor, args: Any) -> tuple[Tensor, Tensor] | None:
    choose = _CHOICES[name]
    if choose is _masked and torch._C._infer_size(tensor.shape, args[1].shape) != tensor.shape:
        return None  # each element is seen several times, under different masks
    chosen = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    choose(chosen, args)
    return tensor, ~chosen if name in _REPLACE else chosen


def _one_each(
    tensor: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """Where windows leap over elements, one element for each window; else the tensor."""
    steps: list[slice] = []
    for axis, size in enumerate(kernel):
        step, apart = stride[axis % len(stride)], dilation[axis % len(dilation)]
        steps.append(slice(None, None, step if min(size, step // math.gcd(step, apart)) < step else 1))
    return tensor[(slice(None),) * (tensor.dim() - len(steps)) + tuple(steps)]
