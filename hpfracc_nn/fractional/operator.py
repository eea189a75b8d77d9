"""Derivatives and integrals of any order, also one that changes with time, of the arrays of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors, selection
from hpfracc_nn.fractional.definitions import (
    Alpha,
    Caputo,
    Definition,
    FourierMultiplier,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
)
from hpfracc_nn.fractional.definitions.definition import check_definition
from hpfracc_nn.fractional.dispatch import (
    Samples,
    apply,
    apply_multiplier,
    backend,
    framework_of,
    load,
    placed,
    preload,
    type_name,
)
from hpfracc_nn.fractional.workloads import OP, workload
from hpfracc_nn.selection import BackendManager, Plan, given_manager

_SPOKEN = {"numpy": "NumPy", "torch": "torch", "jax": "JAX"}
VARIABLE_ORDER_SCHEMES: dict[type[Definition], str] = {
    Caputo: "l1_2",
    RiemannLiouville: "l1_2",
    RiemannLiouvilleIntegral: "trapezoid",
}


def derivative(
    x: Samples,
    definition: Definition | FourierMultiplier,
    *,
    dt: float | Sequence[float] = 1.0,
    t: Samples | None = None,
    dim: int | Sequence[int] | None = None,
    manager: BackendManager | None = None,
) -> Samples:
    """Return the fractional derivative of `x` along `dim`.

    How accurate it is, on smooth samples and on others, depends on the definition's scheme and is said there.
    A sample that is not finite makes its own row NaN from there on, with `side="right"` up to there, on a CPU; on
    devices, in compiled graphs and in JAX its whole row is unspecified. Other rows stay exact.

    Args:
        x: Samples at 0, dt, 2 dt, ..., shape [..., n, ...]. A NumPy array, what NumPy makes one of, a torch tensor, or
            a JAX array. It is never written to. Integers become float64, in torch and JAX the default dtype; the real
            and the imaginary part of complex samples are taken apart.
        definition: Which operator, with its alpha; alpha broadcasts over the axes of `x` other than time.
        dt: Spacing of the samples, in the caller's time unit; positive. For a `FractionalLaplacian` one for all axes,
            or one for each.
        t: Times of the samples in place of `dt`, increasing: [n], or of a shape that broadcasts to that of `x` where
            signals have their own. Definitions that interpolate (Caputo, RiemannLiouville and the integral, schemes
            "l1", "l1_2" and "trapezoid") take them. They have no gradient.
        dim: The time axis, the last by default; for a `FractionalLaplacian` one to three axes, to be given where `x`
            has more than one besides those of alpha.
        manager: Who chooses the kernel; None is the process-wide BackendManager. For a multiplier (`PeriodicWeyl`,
            `PeriodicRiesz`, `FractionalLaplacian`) there is one routine, the FFT, and no choice.

    Returns:
        Same shape, dtype and device as `x`, but floats for integers, and in an axis of length 1 all orders that alpha
            has there; units of x / time**alpha. Half precision is computed in float32.

    Raises:
        TypeError: `x` holds no numbers, is not dense (sparse, nested), or its framework is not supported; `definition`
            is none; `t` is not real.
        ValueError: `dt` is not positive, `dim` is no axis of `x`, or alpha does not broadcast to its others; `t` does
            not increase or does not fit `x`, the definition's scheme needs equal steps, or `dt` is given besides.
        LookupError: No registered kernel accepts this dtype and device.

    Source: that of the definition.

    Examples:
        >>> import numpy as np
        >>> t = np.linspace(0, 1, 101)
        >>> float(derivative(t**2, Caputo(0.5), dt=0.01)[-1].round(4))  # Gamma(3) / Gamma(2.5)
        1.5045
    """
    if isinstance(definition, FourierMultiplier):
        if t is not None:
            raise ValueError(
                f"derivative({type(definition).__name__}, t=...): needs equal steps, as every FFT does; pass dt."
            )
        return apply_multiplier("derivative", x, definition, dt, dim, manager)
    check_definition("derivative", definition)
    return apply("derivative", x, definition, dt, -1 if dim is None else dim, manager, t)  # type: ignore[arg-type]


def integral(
    x: Samples,
    alpha: Alpha | RiemannLiouvilleIntegral,
    *,
    dt: float = 1.0,
    t: Samples | None = None,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Samples:
    """Return the Riemann-Liouville integral of order `alpha` of `x` along `dim`, from the first sample on.

    Of order 2 on smooth samples; alpha = 0 is the identity, alpha = 1 the trapezoid rule.

    Args:
        x: As in `derivative`.
        alpha: The order, in [0, 2], or a RiemannLiouvilleIntegral.
        dt: As in `derivative`.
        t: As in `derivative`.
        dim: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape, dtype and device as `x`; units of x * time**alpha.

    Raises:
        TypeError: As in `derivative`; or `alpha` is a definition that is no integral.
        ValueError: As in `derivative`; or alpha is outside [0, 2].
        LookupError: As in `derivative`.

    Source: Diethelm, The Analysis of Fractional Differential Equations (2010), definition 2.1.

    Examples:
        >>> t = np.linspace(0, 1, 101)
        >>> float(integral(t, 0.5, dt=0.01)[-1].round(4))  # 1 / Gamma(2.5)
        0.7523
    """
    return apply("integral", x, integral_of("integral", alpha), dt, dim, manager, t)


def integral_of(owner: str, alpha: Alpha | RiemannLiouvilleIntegral) -> RiemannLiouvilleIntegral:
    """Return the Riemann-Liouville integral of order `alpha`, or `alpha` itself if it is one.

    Raise TypeError for a definition that is another operator.
    """
    if isinstance(alpha, RiemannLiouvilleIntegral):
        return alpha
    if isinstance(alpha, Definition):
        raise TypeError(
            f"{owner}(alpha={alpha!r}): needs an order or a RiemannLiouvilleIntegral; "
            "pass a derivative to derivative(x, definition)."
        )
    return RiemannLiouvilleIntegral(alpha)


def caputo(
    x: Samples,
    alpha: Alpha,
    *,
    scheme: str = Caputo.scheme,
    bounds: tuple[float, float] | None = None,
    dt: float = 1.0,
    t: Samples | None = None,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Samples:
    """Return `derivative(x, Caputo(alpha, scheme, bounds))`; see there.

    Args:
        x: As in `derivative`.
        alpha: As in `Caputo`.
        scheme: As in `Caputo`.
        bounds: As in `Caputo`.
        dt: As in `derivative`.
        t: As in `derivative`.
        dim: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape, dtype and device as `x`; units of x / time**alpha.

    Raises:
        TypeError: As in `derivative`.
        ValueError: As in `derivative`; or alpha, scheme or bounds are not those of `Caputo`.
        LookupError: As in `derivative`.

    Source: that of `Caputo`.

    Examples:
        >>> t = np.linspace(0, 1, 101)
        >>> float(caputo(t**2, 0.5, dt=0.01)[-1].round(4))  # Gamma(3) / Gamma(2.5) = 1.5045
        1.5045
    """
    return apply("caputo", x, Caputo(alpha, scheme, bounds), dt, dim, manager, t)


def riemann_liouville(
    x: Samples,
    alpha: Alpha,
    *,
    scheme: str = RiemannLiouville.scheme,
    bounds: tuple[float, float] | None = None,
    dt: float = 1.0,
    t: Samples | None = None,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Samples:
    """Return `derivative(x, RiemannLiouville(alpha, scheme, bounds))`; see there.

    Args:
        x: As in `derivative`.
        alpha: As in `RiemannLiouville`.
        scheme: As in `RiemannLiouville`.
        bounds: As in `RiemannLiouville`.
        dt: As in `derivative`.
        t: As in `derivative`.
        dim: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape, dtype and device as `x`; units of x / time**alpha.

    Raises:
        TypeError: As in `derivative`.
        ValueError: As in `derivative`; or alpha, scheme or bounds are not those of `RiemannLiouville`.
        LookupError: As in `derivative`.

    Source: that of `RiemannLiouville`.

    Examples:
        >>> # 1 / Gamma(1/2); Caputo's is 0
        >>> float(riemann_liouville(np.ones(101), 0.5, dt=0.01)[-1].round(4))
        0.5642
    """
    return apply("riemann_liouville", x, RiemannLiouville(alpha, scheme, bounds), dt, dim, manager, t)


def grunwald_letnikov(
    x: Samples,
    alpha: Alpha,
    *,
    scheme: str = GrunwaldLetnikov.scheme,
    bounds: tuple[float, float] | None = None,
    dt: float = 1.0,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Samples:
    """Return `derivative(x, GrunwaldLetnikov(alpha, scheme, bounds))`; see there.

    Args:
        x: As in `derivative`.
        alpha: As in `GrunwaldLetnikov`.
        scheme: As in `GrunwaldLetnikov`.
        bounds: As in `GrunwaldLetnikov`.
        dt: As in `derivative`.
        dim: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape, dtype and device as `x`; units of x / time**alpha.

    Raises:
        TypeError: As in `derivative`.
        ValueError: As in `derivative`; or alpha, scheme or bounds are not those of `GrunwaldLetnikov`.
        LookupError: As in `derivative`.

    Source: that of `GrunwaldLetnikov`.

    Examples:
        >>> # alpha = 1: differences over dt
        >>> grunwald_letnikov([0.0, 1.0, 4.0, 9.0], 1.0, dt=0.5)
        array([ 0.,  2.,  6., 10.])
    """
    return apply("grunwald_letnikov", x, GrunwaldLetnikov(alpha, scheme, bounds), dt, dim, manager)


def choose(
    op: str,
    shape: Sequence[int],
    *,
    framework: str,
    definition: Definition | None = None,
    manager: BackendManager | None = None,
    **facts: Any,
) -> Plan:
    """Return the plan for data of this shape, without the data; the framework's kernels are loaded first.

    Args:
        op: The operation, "toeplitz" for those of this package.
        shape: Shape of the data, [..., n, ...].
        framework: "numpy", "torch" or "jax".
        definition: The operator that "toeplitz" is for; None is Caputo(0.5).
        manager: Who chooses the kernel; None is the process-wide BackendManager.
        facts: What else `workload` takes: dim, dtype, device, needs_gradient, learns_weights, threads; for another
            operation, or with channels and exponentials, what `hpfracc_nn.selection.choose` takes.

    Raises:
        ValueError: There are no kernels for that framework.
        LookupError: No kernel accepts the workload.

    Examples:
        >>> manager = BackendManager(
        ...     Settings(mode="prior", calibration="shipped", disabled="numba")
        ... )
        >>> choose(
        ...     "toeplitz",
        ...     (32, 8, 8192),
        ...     framework="numpy",
        ...     definition=Caputo(0.7),
        ...     manager=manager,
        ... ).algorithm
        'fft'
    """
    load("choose", framework)
    if op == OP and not {"channels", "exponentials"} & set(facts):
        asked = workload(shape, definition, framework=framework, **facts)
        return given_manager("choose", manager).plan(asked)
    return selection.choose(op, shape, framework=framework, manager=manager, **facts)


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
        bounds: Bounds of an alpha in a tensor or JAX array, (0, 1) by default; as in `Definition`.
        dt: Spacing of the samples; positive.
        t: Times of the samples in place of `dt`; as in `derivative`.
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
    if kind not in VARIABLE_ORDER_SCHEMES:
        names = ", ".join(each.__name__ for each in VARIABLE_ORDER_SCHEMES)
        given = getattr(kind, "__name__", repr(kind))
        raise ValueError(f"{owner}(kind={given}): needs one of {names}; pass the class, such as Caputo.")
    values = _read(owner, alpha) if framework_of(type(alpha)) == "numpy" else alpha
    definition = kind(_representative(values), scheme or VARIABLE_ORDER_SCHEMES[kind], bounds)
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
    """Return the smallest and largest of numbers, which suffice to validate them, or a tensor of orders unchanged."""
    if not isinstance(values, np.ndarray):
        return values
    return [float(values.min()), float(values.max())] if values.size else 0.5  # of no samples any order


preload()
