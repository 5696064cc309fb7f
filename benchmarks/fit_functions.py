"""Fits the polynomials of the playbook's vectorized functions (authors/playbook/cpp/functions.py).

    python benchmarks/fit_functions.py

Each fit minimizes the largest weighted error by Lawson's algorithm: least squares, with weights that grow
where the error is large. The coefficients of a polynomial are then rounded to float32 one by one, lowest
power first; the others are fitted again after each rounding, so that they absorb its error. The quotient of
two polynomials is fitted by Gauss-Newton steps. Needs numpy and mpmath.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

mpmath.mp.prec = 120
NODES, ITERATIONS = 600, 300
HALF_LN2, QUARTER_PI_SQUARED = 0.34657359, 0.61685028
Function = Callable[[mpmath.mpf], mpmath.mpf]


@dataclass(frozen=True)
class Fit:
    """A polynomial that approximates `target` on [low, high]."""

    name: str
    target: Function
    low: float
    high: float
    degree: int
    weight: Function
    """The error is multiplied by it."""

    def samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Chebyshev nodes with the target's values and the weights."""
        angles = (np.arange(NODES) + 0.5) * np.pi / NODES
        points = (self.low + self.high) / 2 + (self.high - self.low) / 2 * np.cos(angles)
        values = [[float(f(mpmath.mpf(float(x)))) for x in points] for f in (self.target, self.weight)]
        return points, np.array(values[0]), np.array(values[1])


def coefficients(fit: Fit) -> tuple[list[np.float32], float]:
    """The coefficients, lowest power first, and the largest weighted error."""
    points, target, weight = fit.samples()
    powers = points[:, None] ** np.arange(fit.degree + 1)
    rounded: list[np.float32] = []
    for k in range(fit.degree + 1):
        rest = target - powers[:, :k] @ np.array(rounded, dtype=float)
        free = lawson(powers[:, k:] * weight[:, None], rest * weight)
        rounded.append(np.float32(free[0]))
    error = (powers @ np.array(rounded, dtype=float) - target) * weight
    return rounded, float(np.abs(error).max())


def lawson(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The solution of matrix @ c = target with the smallest largest error."""
    importance = np.full(len(target), 1 / len(target))
    scale = np.abs(matrix).max(axis=0)
    best, smallest = np.zeros(matrix.shape[1]), np.inf
    for _ in range(ITERATIONS):
        root = np.sqrt(importance)
        solution = np.linalg.lstsq(matrix / scale * root[:, None], target * root, rcond=None)[0] / scale
        error = np.abs(matrix @ solution - target)
        if error.max() < smallest:
            best, smallest = solution, error.max()
        importance = importance * (error + 1e-3 * error.max())
        importance /= importance.sum()
    return best


def quotient(fit: Fit) -> tuple[list[np.float32], list[np.float32], float]:
    """Numerator and denominator of the same degree, lowest power first, and the largest weighted error."""
    points, target, weight = fit.samples()
    basis = np.polynomial.chebyshev.chebvander(
        (2 * points - fit.low - fit.high) / (fit.high - fit.low), fit.degree
    )
    size, below = fit.degree + 1, np.ones(NODES)
    for _ in range(30):  # the linear problem above - target * below = 0, divided by the last denominator
        matrix = np.hstack([basis, -target[:, None] * basis[:, 1:]]) * (weight / below)[:, None]
        solution = np.linalg.lstsq(matrix, target * weight / below, rcond=None)[0]
        below = 1 + basis[:, 1:] @ solution[size:]
    importance, best, smallest = np.ones(NODES), solution, np.inf
    for _ in range(2 * ITERATIONS):
        for _ in range(3):
            above, below = basis @ solution[:size], 1 + basis[:, 1:] @ solution[size:]
            jacobian = np.hstack([basis / below[:, None], -(above / below**2)[:, None] * basis[:, 1:]])
            root = np.sqrt(importance) * weight
            residual = (target - above / below) * root
            solution = solution + np.linalg.lstsq(jacobian * root[:, None], residual, rcond=None)[0]
        above, below = basis @ solution[:size], 1 + basis[:, 1:] @ solution[size:]
        error = np.abs(above / below - target) * weight
        if not np.isfinite(error).all():
            break
        if error.max() < smallest:
            best, smallest = solution, error.max()
        importance = importance * (error + 1e-2 * error.max()) ** 0.7
        importance /= importance.mean()
    parts = best[:size], np.concatenate([[1.0], best[size:]])
    over, under = (Chebyshev(c, [fit.low, fit.high]).convert(kind=Polynomial).coef for c in parts)
    rounded = [[np.float32(c / under[0]) for c in part] for part in (over, under)]
    return rounded[0], rounded[1], float(smallest)


def exp_tail(r: mpmath.mpf) -> mpmath.mpf:
    """(e^r - 1 - r) / r^2."""
    return mpmath.mpf("0.5") if r == 0 else (mpmath.expm1(r) - r) / r**2


def exp2m1_over_x(f: mpmath.mpf) -> mpmath.mpf:
    """(2^f - 1) / f."""
    return mpmath.log(2) if f == 0 else mpmath.expm1(f * mpmath.log(2)) / f


def log1p_tail(f: mpmath.mpf) -> mpmath.mpf:
    """(log(1 + f) - f + f^2 / 2) / f^3."""
    return mpmath.mpf(1) / 3 if abs(f) < 1e-12 else (mpmath.log1p(f) - f + f**2 / 2) / f**3


def erf_exponent(a: mpmath.mpf) -> mpmath.mpf:
    """log2(erfc(a)) / a, so that erf(a) = 1 - 2^(a * this)."""
    return mpmath.log(mpmath.erfc(a), 2) / a


def erf_weight(a: mpmath.mpf) -> mpmath.mpf:
    """The effect of an error of `erf_exponent` on erf, relative to erf."""
    return mpmath.log(2) * a * mpmath.erfc(a) / mpmath.erf(a)


def sin_tail(z: mpmath.mpf) -> mpmath.mpf:
    """(sin(x) - x) / x^3 with z = x^2."""
    x = mpmath.sqrt(z)
    return (mpmath.sin(x) - x) / (x * z)


def cos_tail(z: mpmath.mpf) -> mpmath.mpf:
    """(cos(x) - 1 + x^2 / 2) / x^4 with z = x^2."""
    return (mpmath.cos(mpmath.sqrt(z)) - 1 + z / 2) / z**2


def erf_over_x(z: mpmath.mpf) -> mpmath.mpf:
    """erf(x / sqrt(2)) / x with z = x^2."""
    return mpmath.erf(mpmath.sqrt(z / 2)) / mpmath.sqrt(z)


FITS = (
    Fit("fast_exp_below_0", exp_tail, -HALF_LN2, HALF_LN2, 3, lambda r: r**2 / mpmath.exp(r)),
    Fit("fast_exp", exp_tail, -HALF_LN2, HALF_LN2, 4, lambda r: r**2 / abs(mpmath.expm1(r))),
    Fit("fast_exp2", exp2m1_over_x, -0.5, 0.5, 5, lambda f: 1 / exp2m1_over_x(f)),
    Fit("fast_log", log1p_tail, -0.2928932, 0.4142136, 7, lambda f: f**3 / mpmath.log1p(f)),
    Fit("fast_erf", erf_exponent, 1e-9, 4.0, 8, erf_weight),
    Fit("sine", sin_tail, 1e-9, QUARTER_PI_SQUARED, 2, lambda z: z**1.5 / mpmath.sin(mpmath.sqrt(z))),
    Fit("cosine", cos_tail, 1e-6, QUARTER_PI_SQUARED, 2, lambda z: z**2 / mpmath.cos(mpmath.sqrt(z))),
)
"""fast_expm1 and fast_tanh use the polynomial of fast_exp, fast_erf also that of fast_exp2, and
fast_log1p_exp those of fast_exp_below_0 and fast_log."""
GELU = Fit("fast_gelu", erf_over_x, 1e-12, 5.5**2, 5, lambda z: 1 / erf_over_x(z))


def main() -> None:
    """Prints the coefficients of all fits, lowest power first."""
    for fit in FITS:
        values, error = coefficients(fit)
        print(f"{fit.name} on [{fit.low:.7g}, {fit.high:.7g}]: relative error 2^{math.log2(error):.1f}")
        print("    " + ", ".join(f"{value:.9g}" for value in values))
    over, under, error = quotient(GELU)
    print(f"{GELU.name} on [{GELU.low:.7g}, {GELU.high:.7g}]: relative error 2^{math.log2(error):.1f}")
    for part in (over, under):
        print("    " + ", ".join(f"{value:.9g}" for value in part))


if __name__ == "__main__":
    main()
