"""Synthetic tasks with the irregularities of kernel optimization, generated from a seed.

A kernel has a family of designs, a set of applied methods, and slop (how badly it is written).

1. Four resources (such as arithmetic, memory, latency, launches) each need a time; a kernel starts above
   each resource's own minimum, and a method lowers one of them. The time is the 4-norm over resources:
   units overlap, so a gain shows only where its resource dominates, and each gain shifts the bottleneck. At
   the floor every resource is at its minimum.
2. Methods: gains are heavy-tailed; hard ones are those that gain much. They may need another method first,
   cost another resource (registers for fusion), exclude others (traps), pay only together with the others
   of their group, and interact.
3. Families: each allows some of the methods and has a ceiling of its own; a seed draws a family by
   popularity, and has a few methods already (a strong model starts bold).
4. The author does not know the truth. It draws among the applicable methods by exp(belief / 0.1), where the
   belief mixes the true gain at this kernel (weight: the task's guidance), a lasting prejudice, and the
   moment's noise. What was tried at this node before is drawn three times less. It does two methods at once
   in 20 % of cases, undoes one in 5 %, and hands in a duplicate in 6 %.
5. Failure: by the difficulty of the methods, and by how much the kernel already does. A bug has layers; a
   fix removes one with some chance, and some bugs are misconceptions that no fix removes. Some fixes drop
   the method.
6. Measured time = true time x noise of 1-2 %, never below the floor.

The numbers are calibrated to KernelPro and to single passes of models: a single shot is 0.5-1.9x as fast as
the best baseline; a third of the steps fail; few steps gain more than 1.5x (18 % of those that follow
KernelPro's best diagnostic, 4 % for the worst); 43 failures in a row happen. benchmarks/policies.py prints
the resulting figures.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from kernelpro.search.tree import Tree, TreeNode
from simulation.simulator import SimulatedResult

RESOURCES = 4
METHODS = 24
FAMILIES = 4
_NORM = 4.0


@dataclass(frozen=True)
class LandscapeKind:
    """Parameters of a kind of landscape: probabilities and log-times."""

    chain: float
    """A method needs an earlier one."""
    side: float
    """A method costs another resource."""
    interact: float
    """A pair of methods interacts."""
    slop: float
    """Spread of how well one step is written."""
    seed_fail: tuple[float, float]
    fail: float
    depth: float
    """Log-chance of failure that each method already applied adds."""
    layers: int
    """Largest number of layers of a bug."""
    fix: float
    """Chance that a fix removes a layer."""
    groups: int = 0
    """Groups of two or three methods that pay only together."""
    traps: int = 0
    """Methods that exclude three others."""
    deceptive: bool = False
    """The popular family starts fast and has a low ceiling; the good one is rare, harder and starts slow."""


KINDS: MappingProxyType[str, LandscapeKind] = MappingProxyType(
    {
        "smooth": LandscapeKind(0.2, 0.1, 0.0, 0.03, (0.1, 0.3), 0.12, 0.01, 1, 0.6),
        "rugged": LandscapeKind(0.3, 0.5, 0.25, 0.10, (0.2, 0.4), 0.20, 0.03, 2, 0.5),
        "deceptive": LandscapeKind(
            0.3, 0.2, 0.05, 0.05, (0.2, 0.4), 0.15, 0.02, 1, 0.5, traps=2, deceptive=True
        ),
        "cliff": LandscapeKind(0.2, 0.2, 0.05, 0.05, (0.90, 0.98), 0.35, 0.02, 4, 0.3),
        "combination": LandscapeKind(0.3, 0.2, 0.05, 0.05, (0.2, 0.4), 0.15, 0.02, 2, 0.5, groups=3),
    }
)


@dataclass(frozen=True)
class Method:
    """An optimization that can be applied to a kernel."""

    resource: int
    gain: float
    difficulty: float
    needs: int = 0
    """Mask of methods that must be applied first."""
    excludes: int = 0
    side: tuple[int, float] | None = None
    group: int = 0
    """Mask of its group, itself included; 0: pays alone."""
    prejudice: float = 0.0


@dataclass(frozen=True)
class Family:
    """A family of designs."""

    start: tuple[float, ...]
    """Log-distance of each resource from its minimum."""
    residual: float
    """Log-distance of the family's ceiling from the floor."""
    allowed: int
    popularity: float
    fail: float


@dataclass(frozen=True)
class SimulatedKernel:
    """The hidden state of a candidate."""

    family: int
    mask: int
    slop: float
    step: int = 0
    """Mask of the methods that the author tried to add."""
    layers: int = 0
    """Layers of the bug that are left; 0: it works."""
    fixable: bool = True
    fallback: SimulatedKernel | None = None
    """The kernel that a fix leaves if it drops the method."""


@dataclass
class SyntheticLandscape:
    """A generated task."""

    kind: LandscapeKind
    baseline_ms: float
    floor_ms: float
    shares: tuple[float, ...]
    methods: tuple[Method, ...]
    families: tuple[Family, ...]
    pairs: tuple[tuple[int, float], ...]
    """Mask of two methods, and the log-time that they add together."""
    guidance: float
    noise: float
    _logs: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    def log_time(self, family: int, mask: int) -> float:
        """Log of the time over the floor, without slop; never below 0."""
        cached = self._logs.get((family, mask))
        if cached is not None:
            return cached
        design = self.families[family]
        level, extra = list(design.start), design.residual
        for at, method in enumerate(self.methods):
            if not mask >> at & 1:
                continue
            if method.group & ~mask:
                extra += 0.03
            else:
                level[method.resource] -= method.gain
            if method.side:
                level[method.side[0]] += method.side[1]
        extra += sum(amount for pair, amount in self.pairs if pair & mask == pair)
        power = sum(
            (share * math.exp(max(0.0, at))) ** _NORM for share, at in zip(self.shares, level, strict=True)
        )
        log = math.log(power / sum(share**_NORM for share in self.shares)) / _NORM + extra
        self._logs[family, mask] = max(0.0, log)
        return self._logs[family, mask]

    def true_ms(self, kernel: SimulatedKernel) -> float:
        """The time of a kernel without measurement noise."""
        return self.floor_ms * math.exp(self.log_time(kernel.family, kernel.mask) + kernel.slop)

    def attempt(self, tree: Tree, node: TreeNode, hidden: list[Any], rng: random.Random) -> SimulatedResult:
        """Write and judge the candidate of a pending node."""
        assert node.parent is not None
        if node.action == "seed":
            kernel = self._seed(rng)
        elif node.action == "debug":
            kernel = self._fixed(hidden[node.parent], rng)
        else:
            tried = {hidden[id].step for id in tree.nodes[node.parent].children if id != node.id}
            donated = hidden[node.donor].mask if node.donor is not None else 0
            kernel = self._improved(hidden[node.parent], tried, rng, donated)
        if kernel.layers:
            return SimulatedResult(None, None, kernel)
        true = self.true_ms(kernel)
        return SimulatedResult(max(self.floor_ms, true * math.exp(rng.gauss(0.0, self.noise))), true, kernel)

    def applicable(self, kernel: SimulatedKernel) -> list[int]:
        """The methods that can be applied to a kernel."""
        mask, allowed = kernel.mask, self.families[kernel.family].allowed
        return [
            at
            for at, method in enumerate(self.methods)
            if not mask >> at & 1
            and allowed >> at & 1
            and not method.needs & ~mask
            and not method.excludes & mask
        ]

    def _seed(self, rng: random.Random) -> SimulatedKernel:
        family = rng.choices(range(len(self.families)), [design.popularity for design in self.families])[0]
        kernel = SimulatedKernel(family, 0, rng.expovariate(8.0))
        plain = kernel
        for at in rng.sample(range(len(self.methods)), len(self.methods)):
            if rng.random() < 0.35 and at in self.applicable(kernel):
                kernel = SimulatedKernel(family, kernel.mask | 1 << at, kernel.slop)
        return self._broken(kernel, plain, self.families[family].fail, rng)

    def _improved(
        self, parent: SimulatedKernel, tried: set[int], rng: random.Random, donated: int = 0
    ) -> SimulatedKernel:
        """Add a method or two. `donated`: mask of the donor's methods, which are preferred."""
        draw = rng.random()
        options = self.applicable(parent)
        options = [at for at in options if donated >> at & 1] or options
        slop = max(0.0, parent.slop + rng.gauss(-0.01, self.kind.slop))
        if draw < 0.06:
            return SimulatedKernel(parent.family, parent.mask, parent.slop)
        if draw < 0.11 and parent.mask:
            undone = rng.choice([at for at in range(len(self.methods)) if parent.mask >> at & 1])
            return SimulatedKernel(parent.family, parent.mask & ~(1 << undone), slop, 1 << undone)
        here = self.log_time(parent.family, parent.mask)
        step, success = 0, 1.0 - self.kind.fail
        for _ in range(2 if rng.random() < 0.2 else 1):
            if not options:  # nothing left to apply: the same methods, rewritten
                break
            weights = []
            for at in options:
                method = self.methods[at]
                gain = here - self.log_time(parent.family, parent.mask | 1 << at)
                belief = self.guidance * gain + (1 - self.guidance) * method.prejudice + rng.gauss(0.0, 0.1)
                weights.append(math.exp(belief / 0.1) * (0.33 if 1 << at in tried else 1.0))
            at = rng.choices(options, weights)[0]
            options = [
                option for option in options if option != at and not self.methods[at].excludes >> option & 1
            ]
            step |= 1 << at
            success *= 1.0 - self.methods[at].difficulty
        success *= math.exp(-self.kind.depth * parent.mask.bit_count())
        return self._broken(
            SimulatedKernel(parent.family, parent.mask | step, slop, step), parent, 1.0 - success, rng
        )

    def _broken(
        self, kernel: SimulatedKernel, fallback: SimulatedKernel, chance: float, rng: random.Random
    ) -> SimulatedKernel:
        if rng.random() >= chance:
            return kernel
        layers = rng.randint(1, self.kind.layers)
        return SimulatedKernel(
            kernel.family, kernel.mask, kernel.slop, kernel.step, layers, rng.random() < 0.8, fallback
        )

    def _fixed(self, broken: SimulatedKernel, rng: random.Random) -> SimulatedKernel:
        assert broken.fallback is not None
        if not broken.fixable or rng.random() >= self.kind.fix:
            return broken
        if broken.layers > 1:
            return replace(broken, layers=broken.layers - 1)
        result = broken if rng.random() < 0.85 else broken.fallback
        return SimulatedKernel(broken.family, result.mask, result.slop, broken.step)


def generate(kind: str, seed: int) -> SyntheticLandscape:
    """Generate a task of this kind; the same seed gives the same task."""
    parameters, rng = KINDS[kind], random.Random(f"{kind} {seed}")
    headroom = min(math.log(40.0), max(math.log(1.3), rng.gauss(math.log(4.5), 0.8)))
    floor = math.exp(rng.uniform(math.log(0.02), math.log(5.0)))
    naive = max(0.3, headroom + rng.gauss(0.4, 0.4))
    start = [naive * rng.uniform(0.0, 1.0) for _ in range(RESOURCES)]
    start[rng.randrange(RESOURCES)] = naive
    shares = [rng.uniform(0.3, 1.0) for _ in range(RESOURCES)]
    methods = _methods(parameters, start, naive, rng)
    families = []
    for at, residual in enumerate(
        rng.sample([0.0, *(min(1.0, rng.expovariate(4.0)) for _ in range(FAMILIES - 1))], FAMILIES)
    ):
        share = 0.95 if residual == 0.0 else rng.uniform(0.6, 0.95)
        allowed = sum(1 << method for method in range(METHODS) if rng.random() < share)
        offset, popularity, fail = (
            rng.gauss(0.0, 0.15),
            rng.expovariate(1.0) + 0.1,
            rng.uniform(*parameters.seed_fail),
        )
        if parameters.deceptive:
            residual = headroom * rng.uniform(0.3, 0.7) if at == 0 else 0.0 if at == 1 else residual + 0.2
            offset, popularity = (-0.3, 6.0) if at == 0 else (0.3, 1.0) if at == 1 else (offset, popularity)
            fail += 0.1 if at == 1 else 0.0
        families.append(
            Family(tuple(max(0.0, level + offset) for level in start), residual, allowed, popularity, fail)
        )
    pairs = [
        (1 << a | 1 << b, rng.gauss(0.0, 0.12))
        for a in range(METHODS)
        for b in range(a)
        if rng.random() < parameters.interact
    ]
    return SyntheticLandscape(
        parameters, floor * math.exp(headroom), floor, tuple(shares), tuple(methods), tuple(families),
        tuple(pairs),         guidance=rng.uniform(0.1, 0.6), noise=rng.uniform(0.01, 0.02),
    )  # fmt: skip


def _methods(parameters: LandscapeKind, start: list[float], naive: float, rng: random.Random) -> list[Method]:
    """Draw the methods: gains divide each resource's excess time; methods that gain much are hard."""
    resources = [at % RESOURCES for at in range(METHODS)]
    rng.shuffle(resources)
    weights = [rng.expovariate(1.0) ** 3 for _ in range(METHODS)]
    totals = [
        sum(weight for weight, used in zip(weights, resources, strict=True) if used == resource)
        for resource in range(RESOURCES)
    ]
    reach = [level * rng.uniform(0.9, 1.3) for level in start]
    gains = [reach[r] * w / totals[r] for w, r in zip(weights, resources, strict=True)]
    largest = sorted(range(METHODS), key=lambda at: -gains[at])
    groups, excludes = [0] * METHODS, [0] * METHODS
    rest = largest[: 3 * parameters.groups]
    rng.shuffle(rest)
    for _ in range(parameters.groups):
        members = [rest.pop() for _ in range(rng.choice((2, 3)))]
        for at in members:
            groups[at] = sum(1 << member for member in members)
    for trap in largest[1 : 1 + parameters.traps]:
        for at in rng.sample([method for method in range(METHODS) if method != trap], 3):
            excludes[trap] |= 1 << at
            excludes[at] |= 1 << trap
    methods = []
    for at, gain in enumerate(gains):
        needs = 1 << rng.randrange(at) if at and rng.random() < parameters.chain else 0
        side = ((resources[at] + rng.randrange(1, RESOURCES)) % RESOURCES, gain * rng.uniform(0.1, 0.5))
        difficulty = min(0.7, 0.05 + 0.6 * rng.random() * min(1.0, gain / 0.7))
        paid = side if rng.random() < parameters.side else None
        prejudice = rng.gauss(0.5 * gain, 0.15)
        methods.append(
            Method(
                resources[at],
                gain,
                difficulty,
                needs & ~excludes[at],
                excludes[at],
                paid,
                groups[at],
                prejudice,
            )
        )
    return methods
