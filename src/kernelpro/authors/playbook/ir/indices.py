"""Index expressions: affine sums of loop variables, plus the quotients and remainders that reshapes
introduce.

An `IndexExpr` has one canonical form, so that equal expressions compare equal. The bounds of variables
simplify quotients and remainders: with 0 <= j < 8, (8 i + j) / 8 is i. A quotient and a remainder of the same
dividend are recombined: (e / 8) * 8 + e % 8 is e.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any


@dataclass(frozen=True)
class LoopVar:
    """The variable of a loop; it runs from 0 to `extent` - 1."""

    name: str
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        return 0, self.extent - 1


Loops = tuple[LoopVar, ...]


@dataclass(frozen=True)
class Quotient:
    """dividend // divisor."""

    dividend: IndexExpr
    divisor: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        low, high = self.dividend.bounds
        return low // self.divisor, high // self.divisor


@dataclass(frozen=True)
class Remainder:
    """dividend % divisor."""

    dividend: IndexExpr
    divisor: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        return 0, self.divisor - 1


@dataclass(frozen=True)
class IndirectIndex:
    """An index that the kernel computes from data, such as the row of an embedding table."""

    value: Any
    """An integer Expr; see expressions.py."""
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        return 0, self.extent - 1


Atom = LoopVar | Quotient | Remainder | IndirectIndex


def identity(value: Any) -> Any:
    """The default for `rewrite`: leave the expressions inside an index unchanged."""
    return value


@dataclass(frozen=True)
class IndexExpr:
    """constant + the sum of coefficient * atom over all terms.

    Build it with `variable`, `constant`, `indirect` and arithmetic, which keep the canonical form.
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
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
        divided, rest = self._split(divisor)
        low, high = rest.bounds
        if low // divisor == high // divisor:
            return divided + low // divisor
        return divided + IndexExpr(((Quotient(rest, divisor), 1),))

    def __mod__(self, divisor: int) -> IndexExpr:
        _, rest = self._split(divisor)
        low, high = rest.bounds
        if low // divisor == high // divisor:
            return rest - low // divisor * divisor
        return IndexExpr(((Remainder(rest, divisor), 1),))

    def _split(self, divisor: int) -> tuple[IndexExpr, IndexExpr]:
        """The quotient of the terms that `divisor` divides, and the remaining terms."""
        divided = [(atom, c // divisor) for atom, c in self.terms if c % divisor == 0]
        rest = tuple((atom, c) for atom, c in self.terms if c % divisor)
        return _sum(divided, self.constant // divisor), IndexExpr(rest, self.constant % divisor)

    @property
    def variables(self) -> frozenset[LoopVar]:
        """The loop variables it depends on, also through quotients, remainders and indirect indices."""
        return frozenset(_variables(self))

    @property
    def is_affine(self) -> bool:
        """Whether it has loop variables only: no quotient, remainder or indirect index."""
        return all(isinstance(atom, LoopVar) for atom, _ in self.terms)

    def coefficient(self, var: LoopVar) -> int:
        """The coefficient of a loop variable; 0 if the variable is not a term by itself."""
        return next((c for atom, c in self.terms if atom == var), 0)

    def substitute(
        self, replacements: Mapping[LoopVar, IndexExpr], rewrite: Callable[[Any], Any] = identity
    ) -> IndexExpr:
        """Replaces loop variables; `rewrite` maps the expressions inside indirect indices."""
        result = IndexExpr((), self.constant)
        for atom, factor in self.terms:
            result = result + _substitute_atom(atom, replacements, rewrite) * factor
        return result


def variable(var: LoopVar) -> IndexExpr:
    """The index of a loop; 0 for a loop with one iteration."""
    return IndexExpr(((var, 1),)) if var.extent > 1 else IndexExpr()


def indirect(value: Any, extent: int) -> IndexExpr:
    """An index that the kernel computes from data."""
    return IndexExpr(((IndirectIndex(value, extent), 1),))


def constant(value: int) -> IndexExpr:
    """An index without variables."""
    return IndexExpr((), value)


def _substitute_atom(
    atom: Atom, replacements: Mapping[LoopVar, IndexExpr], rewrite: Callable[[Any], Any]
) -> IndexExpr:
    if isinstance(atom, LoopVar):
        return replacements.get(atom, IndexExpr(((atom, 1),)))
    if isinstance(atom, IndirectIndex):
        return indirect(rewrite(atom.value), atom.extent)
    dividend = atom.dividend.substitute(replacements, rewrite)
    return dividend // atom.divisor if isinstance(atom, Quotient) else dividend % atom.divisor


def _variables(index: IndexExpr) -> Iterator[LoopVar]:
    for atom, _ in index.terms:
        if isinstance(atom, LoopVar):
            yield atom
        elif isinstance(atom, IndirectIndex):
            yield from atom.value.variables
        else:
            yield from _variables(atom.dividend)


def _sum(terms: Iterable[tuple[Atom, int]], value: int) -> IndexExpr:
    """The canonical sum: one term for each atom, in a fixed order, with quotient and remainder recombined."""
    factors: dict[Atom, int] = {}
    for atom, factor in terms:
        factors[atom] = factors.get(atom, 0) + factor
    for atom in [a for a in factors if isinstance(a, Remainder)]:
        quotient, factor = Quotient(atom.dividend, atom.divisor), factors[atom]
        if factor and factors.get(quotient) == factor * atom.divisor:
            del factors[atom], factors[quotient]
            scaled = atom.dividend * factor
            return _sum([*factors.items(), *scaled.terms], value + scaled.constant)
    nonzero = [(atom, factor) for atom, factor in factors.items() if factor]
    return IndexExpr(tuple(sorted(nonzero, key=lambda term: (-abs(term[1]), repr(term[0])))), value)


def iterations(loops: Sequence[LoopVar]) -> int:
    """How often the body of a loop nest runs."""
    return prod(var.extent for var in loops)


def extents(loops: Sequence[LoopVar]) -> tuple[int, ...]:
    """The shape that a loop nest covers."""
    return tuple(var.extent for var in loops)


def flat_index(loops: Sequence[LoopVar]) -> IndexExpr:
    """The number of the current iteration of a loop nest."""
    return flatten([variable(var) for var in loops], extents(loops))


def flatten(indices: Sequence[IndexExpr], shape: Sequence[int]) -> IndexExpr:
    """The offset of an element in row-major order."""
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


def unflatten_loops(loops: Sequence[LoopVar], flat: IndexExpr) -> dict[LoopVar, IndexExpr]:
    """The variables of a loop nest as functions of the iteration's number `flat`."""
    return dict(zip(loops, unflatten(flat, extents(loops)), strict=True))


def reshape(
    indices: Sequence[IndexExpr], shape: Sequence[int], new_shape: Sequence[int]
) -> tuple[IndexExpr, ...]:
    """Indices into a tensor of `new_shape` that address the same element as `indices` do in `shape`. If the
    shapes differ only in dimensions of size 1, the other indices stay as they are, even beyond the shape."""
    long = [(index, size) for index, size in zip(indices, shape, strict=True) if size > 1]
    if [size for _, size in long] == [size for size in new_shape if size > 1]:
        kept = (index for index, _ in long)
        return tuple(next(kept) if size > 1 else constant(0) for size in new_shape)
    return unflatten(flatten(indices, shape), new_shape)
