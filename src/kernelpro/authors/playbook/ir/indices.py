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
class LoopVar:
    """A loop's variable; it runs from 0 up to `extent`."""

    name: str
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, self.extent - 1


@dataclass(frozen=True)
class Quotient:
    dividend: IndexExpr
    divisor: int

    @property
    def bounds(self) -> tuple[int, int]:
        low, high = self.dividend.bounds
        return low // self.divisor, high // self.divisor


@dataclass(frozen=True)
class Remainder:
    dividend: IndexExpr
    divisor: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, self.divisor - 1


@dataclass(frozen=True)
class IndirectIndex:
    """A number that is only known when the kernel runs: an integer expression."""

    value: Any
    """An Expr; see expressions.py."""
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, self.extent - 1


Atom = LoopVar | Quotient | Remainder | IndirectIndex


@dataclass(frozen=True)
class IndexExpr:
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

    def __add__(self, other: IndexExpr | int) -> IndexExpr:
        if isinstance(other, int):
            return IndexExpr(self.terms, self.constant + other)
        return _sum([*self.terms, *other.terms], self.constant + other.constant)

    def __sub__(self, other: IndexExpr | int) -> IndexExpr:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, factor: int) -> IndexExpr:
        if not factor:
            return IndexExpr()
        return IndexExpr(tuple((atom, c * factor) for atom, c in self.terms), self.constant * factor)

    def __floordiv__(self, divisor: int) -> IndexExpr:
        whole, rest = self._split(divisor)
        low, high = rest.bounds
        if low // divisor == high // divisor:
            return whole + low // divisor
        return whole + IndexExpr(((Quotient(rest, divisor), 1),))

    def __mod__(self, divisor: int) -> IndexExpr:
        _, rest = self._split(divisor)
        low, high = rest.bounds
        if low // divisor == high // divisor:
            return rest - low // divisor * divisor
        return IndexExpr(((Remainder(rest, divisor), 1),))

    def _split(self, divisor: int) -> tuple[IndexExpr, IndexExpr]:
        """What `by` divides, divided, and the rest."""
        whole = [(atom, c // divisor) for atom, c in self.terms if c % divisor == 0]
        rest = tuple((atom, c) for atom, c in self.terms if c % divisor)
        return _sum(whole, self.constant // divisor), IndexExpr(rest, self.constant % divisor)

    @property
    def variables(self) -> frozenset[LoopVar]:
        return frozenset(_variables(self))

    @property
    def is_affine(self) -> bool:
        """Only loop variables, no quotient, remainder or loaded number."""
        return all(isinstance(atom, LoopVar) for atom, _ in self.terms)

    def coefficient(self, var: LoopVar) -> int:
        return next((c for atom, c in self.terms if atom == var), 0)

    def substitute(self, new: Mapping[LoopVar, IndexExpr], rewrite: Callable[[Any], Any]) -> IndexExpr:
        """With other indices for variables; `rewrite` does the same inside loaded numbers."""
        made = IndexExpr((), self.constant)
        for atom, factor in self.terms:
            made = made + _substitute_atom(atom, new, rewrite) * factor
        return made


def variable(var: LoopVar) -> IndexExpr:
    """A loop that runs once is no variable."""
    return IndexExpr(((var, 1),)) if var.extent > 1 else IndexExpr()


def indirect(value: Any, extent: int) -> IndexExpr:
    return IndexExpr(((IndirectIndex(value, extent), 1),))


def constant(value: int) -> IndexExpr:
    return IndexExpr((), value)


def _substitute_atom(
    atom: Atom, new: Mapping[LoopVar, IndexExpr], rewrite: Callable[[Any], Any]
) -> IndexExpr:
    if isinstance(atom, LoopVar):
        return new.get(atom, IndexExpr(((atom, 1),)))
    if isinstance(atom, IndirectIndex):
        return indirect(rewrite(atom.value), atom.extent)
    inner = atom.dividend.substitute(new, rewrite)
    return inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor


def _variables(index: IndexExpr) -> Iterator[LoopVar]:
    for atom, _ in index.terms:
        if isinstance(atom, LoopVar):
            yield atom
        elif isinstance(atom, IndirectIndex):
            yield from atom.value.variables
        else:
            yield from _variables(atom.dividend)


def _sum(terms: Iterable[tuple[Atom, int]], value: int) -> IndexExpr:
    factors: dict[Atom, int] = {}
    for atom, factor in terms:
        factors[atom] = factors.get(atom, 0) + factor
    for atom in [a for a in factors if isinstance(a, Remainder)]:
        quotient, factor = Quotient(atom.dividend, atom.divisor), factors[atom]
        if factor and factors.get(quotient) == factor * atom.divisor:
            del factors[atom], factors[quotient]
            return _sum(
                [*factors.items(), *(atom.dividend * factor).terms], value + atom.dividend.constant * factor
            )
    kept = [(atom, factor) for atom, factor in factors.items() if factor]
    return IndexExpr(tuple(sorted(kept, key=lambda term: (-abs(term[1]), repr(term[0])))), value)


def flatten(indices: Sequence[IndexExpr], shape: Sequence[int]) -> IndexExpr:
    """The place in row-major order."""
    flat = IndexExpr()
    for index, size in zip(indices, shape, strict=True):
        flat = flat * size + index
    return flat


def unflatten(flat: IndexExpr, shape: Sequence[int]) -> tuple[IndexExpr, ...]:
    """The inverse of `flatten`."""
    indices: list[IndexExpr] = []
    for size in reversed(shape):
        indices.append(flat % size)
        flat = flat // size
    return tuple(reversed(indices))


def reshape(
    indices: Sequence[IndexExpr], shape: Sequence[int], new_shape: Sequence[int]
) -> tuple[IndexExpr, ...]:
    """Indices into a tensor of shape `into` that address the same element as `indices` do in `shape`."""
    return unflatten(flatten(indices, shape), new_shape)
