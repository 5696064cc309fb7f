"""Index arithmetic: sums of loop variables with whole coefficients, and what reshapes make of them.

An `Index` is kept in one form, so that equal ones compare equal. Quotients and remainders, which reshapes bring in, are
worked out where ranges allow it: with 0 <= j < 8, (8 i + j) / 8 is i, and what stays behind is put together again,
(e / 8) * 8 + e % 8 being e.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Var:
    """A loop's variable; it runs from 0 up to `extent`."""

    name: str
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, self.extent - 1


@dataclass(frozen=True)
class Quotient:
    of: Index
    by: int

    @property
    def bounds(self) -> tuple[int, int]:
        low, high = self.of.bounds
        return low // self.by, high // self.by


@dataclass(frozen=True)
class Remainder:
    of: Index
    by: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, self.by - 1


@dataclass(frozen=True)
class Loaded:
    """A number that is only known when the kernel runs: an integer expression."""

    value: Any
    """An Expr; see expressions.py."""
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, self.extent - 1


Atom = Var | Quotient | Remainder | Loaded


@dataclass(frozen=True)
class Index:
    """constant + the sum of coefficient * atom; made by the functions below, never by hand."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        low = high = self.constant
        for atom, factor in self.terms:
            a, b = atom.bounds
            low += factor * (a if factor > 0 else b)
            high += factor * (b if factor > 0 else a)
        return low, high

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        return _sum([*self.terms, *other.terms], self.constant + other.constant)

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, factor: int) -> Index:
        if not factor:
            return Index()
        return Index(tuple((atom, c * factor) for atom, c in self.terms), self.constant * factor)

    def __floordiv__(self, by: int) -> Index:
        whole, rest = self._split(by)
        low, high = rest.bounds
        if low // by == high // by:
            return whole + low // by
        return whole + Index(((Quotient(rest, by), 1),))

    def __mod__(self, by: int) -> Index:
        _, rest = self._split(by)
        low, high = rest.bounds
        if low // by == high // by:
            return rest - low // by * by
        return Index(((Remainder(rest, by), 1),))

    def _split(self, by: int) -> tuple[Index, Index]:
        """What `by` divides, divided, and the rest."""
        whole = [(atom, c // by) for atom, c in self.terms if c % by == 0]
        rest = tuple((atom, c) for atom, c in self.terms if c % by)
        return _sum(whole, self.constant // by), Index(rest, self.constant % by)

    @property
    def variables(self) -> frozenset[Var]:
        return frozenset(_variables(self))

    @property
    def is_affine(self) -> bool:
        """Only loop variables, no quotient, remainder or loaded number."""
        return all(isinstance(atom, Var) for atom, _ in self.terms)

    def coefficient(self, var: Var) -> int:
        return next((c for atom, c in self.terms if atom == var), 0)

    def substituted(self, new: Mapping[Var, Index], rewrite: Callable[[Any], Any]) -> Index:
        """With other indices for variables; `rewrite` does the same inside loaded numbers."""
        made = Index((), self.constant)
        for atom, factor in self.terms:
            made = made + _renewed(atom, new, rewrite) * factor
        return made


def variable(var: Var) -> Index:
    """A loop that runs once is no variable."""
    return Index(((var, 1),)) if var.extent > 1 else Index()


def loaded(value: Any, extent: int) -> Index:
    return Index(((Loaded(value, extent), 1),))


def constant(value: int) -> Index:
    return Index((), value)


def _renewed(atom: Atom, new: Mapping[Var, Index], rewrite: Callable[[Any], Any]) -> Index:
    if isinstance(atom, Var):
        return new.get(atom, Index(((atom, 1),)))
    if isinstance(atom, Loaded):
        return loaded(rewrite(atom.value), atom.extent)
    inner = atom.of.substituted(new, rewrite)
    return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by


def _variables(index: Index) -> Iterator[Var]:
    for atom, _ in index.terms:
        if isinstance(atom, Var):
            yield atom
        elif isinstance(atom, Loaded):
            yield from atom.value.variables
        else:
            yield from _variables(atom.of)


def _sum(terms: Iterable[tuple[Atom, int]], value: int) -> Index:
    factors: dict[Atom, int] = {}
    for atom, factor in terms:
        factors[atom] = factors.get(atom, 0) + factor
    for atom in [a for a in factors if isinstance(a, Remainder)]:
        quotient, factor = Quotient(atom.of, atom.by), factors[atom]
        if factor and factors.get(quotient) == factor * atom.by:
            del factors[atom], factors[quotient]
            return _sum([*factors.items(), *(atom.of * factor).terms], value + atom.of.constant * factor)
    kept = [(atom, factor) for atom, factor in factors.items() if factor]
    return Index(tuple(sorted(kept, key=lambda term: (-abs(term[1]), repr(term[0])))), value)


def flatten(indices: Sequence[Index], shape: Sequence[int]) -> Index:
    """The place in row-major order."""
    flat = Index()
    for index, size in zip(indices, shape, strict=True):
        flat = flat * size + index
    return flat


def unflatten(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The inverse of `flatten`."""
    indices: list[Index] = []
    for size in reversed(shape):
        indices.append(flat % size)
        flat = flat // size
    return tuple(reversed(indices))


def reshape(indices: Sequence[Index], shape: Sequence[int], into: Sequence[int]) -> tuple[Index, ...]:
    """Indices into a tensor of shape `into` that address the same element as `indices` do in `shape`."""
    return unflatten(flatten(indices, shape), into)
