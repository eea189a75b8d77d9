"""Orders that change with time: each sample of the result has an order of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.dispatch import Samples, backend, framework_of, placed, type_name
from hpfracc_nn.selection import BackendManager

_SPOKEN = {"numpy": "NumPy", "torch": "torch", "jax": "JAX"}
SCHEMES: dict[type[Definition], str] = {Caputo: "l1_2", RiemannLiouville: "l1_2", RiemannLiouvilleIntegral: "trapezoid"}


def variable_order(
    x: Samples,
    alpha: Any,
    kind: type[Definition] = Caputo,
    *,
    scheme: str | None = None,
    bounds: tuple[float, float] | None = None,
    dt: float = 1.0,
    t: Samples | None = None,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Samples:
    """Return the derivative, or integral, whose order at each sample is that sample's `alpha`.

        y(t_n) = D^alpha(t_n) x at t_n:

    the order is that of the moment at which the result is taken, and weighs all of the past (type I of Lorenzo and
    Hartley). Where alpha is constant it is the operator of that order.

    The weights are no function of the lag. O(n Q) in time and memory for orders of which the memory function decays, Q
    about 50, whether the orders are fixed or learned; O(n**2) for integrals above order 1.

    Args:
        x: Samples; as in `derivative`.
        alpha: The orders, [n], or of a shape that broadcasts to that of `x` with a number for each sample along `dim`.
            All on one side of 1 for derivatives. A tensor may require a gradient, and a JAX array be traced.
        kind: Caputo, RiemannLiouville or RiemannLiouvilleIntegral.
        scheme: One that interpolates: "l1" or "l1_2", which is the default; "trapezoid" for the integral.
        bounds: Of an alpha in a tensor or JAX array, (0, 1) by default; as in `Definition`.
        dt: Spacing of the samples; positive.
        t: Their times in place of `dt`; as in `derivative`.
        dim: The time axis.
        manager: Who chooses the kernel; None is the process-wide BackendManager.

    Returns:
        Same shape, dtype and device as `x`; units of `x / time**alpha(t)`, of an integral `x time**alpha(t)`.

    Raises:
        TypeError: As in `derivative`; or alpha is an array of a framework that is not that of `x`.
        ValueError: As in `derivative`; or alpha has not a number for each sample, or orders on both sides of 1.
        LookupError: As in `derivative`.

    Source: Lorenzo & Hartley, Nonlinear Dynamics 29 (2002) 57; Coimbra, Ann. Phys. 12 (2003) 692.

    Examples:
        >>> t = np.linspace(0, 2, 101)
        >>> y = variable_order(t**2, 0.5 + 0.3 * np.sin(t), dt=0.02)
        >>> float(y[50].round(3))  # 2 / Gamma(3 - alpha(1))
        1.768
    """
    owner = "variable_order"
    if kind not in SCHEMES:
        names = ", ".join(each.__name__ for each in SCHEMES)
        given = getattr(kind, "__name__", repr(kind))
        raise ValueError(f"{owner}(kind={given}): needs one of {names}; pass the class, such as Caputo.")
    values = _read(owner, alpha) if framework_of(type(alpha)) == "numpy" else alpha
    definition = kind(_representative(values), scheme or SCHEMES[kind], bounds)
    x, framework = placed(owner, "x", x, manager, values)
    if framework_of(type(values)) not in ("numpy", framework):
        raise TypeError(
            f"{owner}(alpha of type {type_name(alpha)}): needs an array of floats for a {_SPOKEN[framework]} x; "
            "pass x in the framework of alpha."
        )
    axis = errors.axis(owner, dim, x.ndim)
    if t is None:
        t = errors.positive_step(owner, dt) * np.arange(x.shape[axis])
    elif dt != 1.0:
        raise ValueError(f"{owner}(dt={dt!r}, t=...): needs one of the two; the times say how far apart samples are.")
    return backend(framework).product_integration.apply(owner, x, definition, t, axis, manager, values)


def _read(owner: str, alpha: Any) -> np.ndarray:
    found = np.asarray(alpha)
    if found.dtype.kind not in "iuf" or found.ndim == 0:
        raise TypeError(
            f"{owner}(alpha of dtype {found.dtype}, shape {found.shape}): needs an array of floats, one for each "
            "sample; for one order call derivative."
        )
    return found.astype(np.float64)


def _representative(values: Any) -> Any:
    """Return what the definition must know of the orders: their extremes, or a tensor that it checks itself."""
    if not isinstance(values, np.ndarray):
        return values
    return [float(values.min()), float(values.max())] if values.size else 0.5  # of no samples any order
