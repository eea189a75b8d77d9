"""How the equation of an implicit step is solved: options, without a framework."""

from __future__ import annotations

from dataclasses import dataclass

from hpfracc_nn import errors

TOLERANCES = {"float32": 1e-6, "float64": 1e-13}  # of a solution, by dtype
ROUNDING = 1e3  # times the dtype's own tolerance: what cancels in a stiff f leaves changes up to it
STALLED = 16  # times the dtype's eps: what rounding leaves of a change where nothing cancels
LARGEST_DENSE = 4096  # numbers of a state whose Jacobian is made dense where GMRES does not converge: 128 MiB


@dataclass(frozen=True)
class Newton:
    """Newton's method with a factorised Jacobian that is kept as long as it converges fast.

    States of up to `dense` numbers have a dense Jacobian, made row by row; larger ones are solved by GMRES with
    products only, and up to 4096 numbers by a dense Jacobian after all where GMRES does not converge. The gradient is
    that of the solution, by the implicit function theorem.

    Args:
        tolerance: Of the last change, relative to the largest number of the state; None is 1e-13 in float64 and 1e-6 in
            float32.
        iterations: At most; a step that needs more raises a RuntimeError, and is NaN where JAX traces it.
        dense: Numbers of a state up to which its Jacobian is dense.

    Raises:
        ValueError: A number is out of range.
        TypeError: `iterations` or `dense` is no whole number.

    Source: Hairer & Wanner, Solving Ordinary Differential Equations II (1996), section IV.8; Saad & Schultz, SIAM J.
    Sci. Stat. Comput. 7 (1986) 856, for GMRES.

    Examples:
        >>> # (1 - 1/2) / (1 + 1/2)
        >>> fdeint(lambda t, y: -y, torch.ones(1), [0, 1], 1.0, scheme=Trapezoid(Newton()))[-1]
        tensor([0.3333])
    """

    tolerance: float | None = None
    iterations: int = 50
    dense: int = 1024

    def __post_init__(self) -> None:
        _check("Newton", self.tolerance, self.iterations)
        errors.count("Newton", "dense", self.dense, least=0)


@dataclass(frozen=True)
class FixedPoint:
    """y <- m + w f(y) until it stays: no Jacobian, but it converges only where dt**alpha times its size is below 1.

    Args:
        tolerance: As in `Newton`.
        iterations: At most; a step that needs more raises a RuntimeError, and is NaN where JAX traces it.

    Raises:
        ValueError: A number is out of range.
        TypeError: `iterations` is no whole number.

    Examples:
        >>> fdeint(lambda t, y: -y, torch.ones(1), [0, 1], 1.0, scheme=Trapezoid(FixedPoint()))[
        ...     -1
        ... ]
        tensor([0.3333])
    """

    tolerance: float | None = None
    iterations: int = 200

    def __post_init__(self) -> None:
        _check("FixedPoint", self.tolerance, self.iterations)


Roots = Newton | FixedPoint


def _check(owner: str, tolerance: float | None, iterations: int) -> None:
    if tolerance is not None:
        errors.real(owner, "tolerance", tolerance, 0.0, above=True, example=1e-10)
    errors.count(owner, "iterations", iterations)
