"""A fractional equation as a layer of a network: from the state at 0 to that at t1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.layers.flax.functional.core import Params, check_fields
from hpfracc_nn.layers.flax.functional.equation import CaputoEquation, Field
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.schemes import Scheme


@dataclass(frozen=True)
class FDEBlock(CaputoEquation):
    """x to z(t1), where D^alpha z = f(t, z) and z(0) = x: a residual network whose steps remember.

    With the rectangle scheme, h = t1 / n_steps and `b_k = ((k + 1)**alpha - k**alpha) / Gamma(1 + alpha)`,

        z_n = x + h**alpha sum over j < n of b_(n - 1 - j) f(j h, z_j).

    At alpha = 1 every b_k is 1, and it is n_steps times z + h f(t, z): a residual network with shared weights.
    Beside a network that is free to change, a learned order is a hyper-parameter and no measurement.

    Attributes:
        f: The right-hand side. Of this core a pure function f(t, z, variables) of z's shape; of the modules for nnx and
            for linen a module called as f(t, z), whose parameters are learned.
        alpha: The order, or orders along the last of x's axes, in (0, 1]; the first value where it is learned; or an
            `Alpha`, which then is the order.
        t1: Where the solution is read.
        n_steps: Equal steps up to there.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays, within (0, 1); None is (0, 1).
        scheme: As in `fdeint`; "predictor_corrector" costs twice as much and is more accurate for smooth f.
        history: As in `fdeint`.
        adjoint: As in `fdeint`.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Shape:
        Input and output: any, the same; floating. Half precision reaches f as it is, and is added up in float32.

    Raises:
        ValueError: An argument is out of range, or f returns another shape.
        TypeError: An argument has the wrong type.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (13); Coelho, Costa & Ferras,
        arXiv:2403.02737 (2024).

    Examples:
        >>> core = fjx.functional.FDEBlock(lambda t, z, w: jnp.tanh(z @ w), 0.7, n_steps=8)
        >>> core(core.init(), jnp.ones((4, 16)), jnp.eye(16)).shape
        (4, 16)
    """

    f: Field
    alpha: float | Sequence[float] | Alpha = 0.5
    _: KW_ONLY
    t1: float = 1.0
    n_steps: int = 8
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    scheme: str | Scheme = "rectangle"
    history: str | History = "auto"
    adjoint: bool = True
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        check_fields(type(self).__name__, self)
        self._begin()

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"order": {"raw": ...}} where alpha is learned, else {}; those of f are the caller's."""
        return self._order_params(key, param_dtype)

    def __call__(self, params: Params, x: Array, variables: Any = (), *, key: Array | None = None) -> Array:
        """Return z(t1); same shape and dtype as x.

        Args:
            params: From `init`.
            x: The state at 0.
            variables: What f is given besides, a pytree of arrays, which gradients may be taken in.
            key: For an order that is random.
        """
        return self._last(self.f, variables, x, params, key)
