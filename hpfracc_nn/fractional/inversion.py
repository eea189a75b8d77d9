"""The door to the inverse operators: x from y."""

from __future__ import annotations

from typing import Any

from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.inverse import kind_of
from hpfracc_nn.fractional.operator import Samples, checked
from hpfracc_nn.selection import BackendManager


def solve(
    y: Samples,
    definition: Definition,
    *,
    x0: Samples | None = None,
    dx0: Samples | None = None,
    dt: float = 1.0,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Samples:
    """Return x with `derivative(x, definition)` = y along `dim`, in O(n log n): the inverse of the discrete operator.

    It undoes the operator to rounding: in float64 to about 1e-13 of x, for any y. As a deconvolution it is stable,
    because the inverse of a derivative is an integral, and of an integral of order alpha a derivative, which amplifies
    noise by dt**-alpha. Computed in float64; of JAX arrays in float32, and right to its rounding as the inverse
    amplifies it, where the process has not enabled 64 bit types.

    Args:
        y: Values of the operator at 0, dt, 2 dt, ...; as `x` in `derivative`.
        definition: Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral of an order below 1, or a
            DistributedOrder of these; side="left".
        x0: The first sample, a number or of the shape of `y` without `dim`, where y does not tell it: for Caputo and
            the integral; None is 0.
        dx0: The derivative x'(0) in the same way, for Caputo above order 1.
        dt: As in `derivative`.
        dim: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape, dtype and device as `y`; units of `y time**alpha`, for an integral `y / time**alpha`. Differentiable
        in y, a learned alpha, x0 and dx0.

    Raises:
        TypeError: As in `derivative`.
        ValueError: As in `derivative`; the definition has no such inverse; x0 or dx0 is given where y tells it, or
            where no derivative is subtracted; or does not broadcast to the shape of y without `dim`.
        LookupError: As in `derivative`.

    Source: Kung, Numer. Math. 22 (1974) 341, for the reciprocal of the weights' power series.

    Examples:
        >>> x = 1 + np.linspace(0, 1, 101) ** 2
        >>> y = derivative(x, Caputo(0.5), dt=0.01)
        >>> bool(np.allclose(solve(y, Caputo(0.5), x0=1.0, dt=0.01), x))
        True
    """
    y, framework = checked("solve", "y", y, definition, manager)
    _check_start("solve", definition, x0, dx0)
    return _room(framework).solve("solve", y, definition, dt, dim, (x0, dx0), manager)


def _check_start(owner: str, definition: Definition, x0: Samples | None, dx0: Samples | None) -> None:
    kind = kind_of(definition)
    name = kind.__name__
    if x0 is not None and kind not in (Caputo, RiemannLiouvilleIntegral):
        raise ValueError(f"{owner}({name}, x0=...): needs no first sample, which y tells; leave x0 out.")
    if dx0 is not None and not (kind is Caputo and definition.taylor == 2):
        raise ValueError(
            f"{owner}({name}(alpha={definition.alpha}), dx0=...): needs no derivative at the start, which only "
            "Caputo's above order 1 takes away; leave dx0 out."
        )


def _room(framework: str) -> Any:
    """Return the module whose `solve` takes the framework's arrays."""
    room: Any
    if framework == "torch":
        import hpfracc_nn.fractional.torch.inverse as room
    elif framework == "jax":
        import hpfracc_nn.fractional.jax.inverse as room
    else:
        import hpfracc_nn.fractional.numpy.inverse as room
    return room
