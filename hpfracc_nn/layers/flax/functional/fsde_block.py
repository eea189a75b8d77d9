"""A stochastic equation as a layer of a network: from the state at 0 to that at t1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy
from hpfracc_nn.layers.flax.functional.core import Params, check_fields, hashable, settle
from hpfracc_nn.layers.flax.functional.equation import AtHalf, Field, Solving
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.layers.order import fixed_orders
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax import fsdeint
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.rules import NOISE_TYPES
from hpfracc_nn.solvers.schemes.stochastic import StochasticScheme
from hpfracc_nn.solvers.schemes.volterra import VolterraWeights
from hpfracc_nn.solvers.sde import SDE
from hpfracc_nn.solvers.stochastic import StochasticMethod
from hpfracc_nn.solvers.stochastic_orders import check_stochastic_orders, stochastic_bounds


@dataclass(frozen=True)
class FSDEBlock(Solving):
    """x to z(t1), where dZ = drift dt + diffusion dW and z(0) = x, or below alpha = 1 the equation with memory.

    That is the stochastic Volterra equation

        z(t) = x + integral of m(t - s) [drift ds + diffusion dW] from 0 to t,
        m(t) = t**(alpha - 1) / Gamma(alpha).

    With diffusion 0 it is the `FDEBlock` of the same drift. Each key has other paths, in training and in evaluation
    alike, because z(t1) is a random variable of the model and not a regulariser: average several calls, or what a
    network makes of them, for a prediction. Backwards the same paths are replayed, by the exact adjoint.

    Attributes:
        drift: Of this core a pure function drift(t, z, variables) of z's shape; of the modules for nnx and for linen a
            module called as drift(t, z), whose parameters are learned.
        diffusion: Likewise, of the noise type's shape.
        noise_type: "additive", "diagonal", "scalar" or "general"; see `StochasticEquation`.
        alpha: The order, or orders along the last of x's axes, in (1/2, 1]; the first value where it is learned, then
            below 1; or an `Alpha`, which then is the order.
        t1: Where the solution is read.
        n_steps: Equal steps up to there.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays, within (1/2, 1); None is (1/2, 1).
        noise: What drives the equation; see `fsdeint`.
        scheme: As in `fsdeint`.
        weights: As in `fsdeint`.
        interpretation: As in `fsdeint`.
        history: As in `fsdeint`.
        adjoint: As in `fsdeint`; forward mode needs False.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Shape:
        Input and output: [..., state], the same; floating. Half precision reaches drift and diffusion as it is, and is
        added up in float32.

    Raises:
        ValueError: An argument is out of range, or things do not go together.
        TypeError: An argument has the wrong type.

    Source: Bennedsen, Lunde & Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> drift, diffusion = (
        ...     lambda t, z, w: jnp.tanh(z @ w),
        ...     lambda t, z, w: 0.1 * jnp.ones_like(z),
        ... )
        >>> core = fjx.functional.FSDEBlock(drift, diffusion, alpha=0.8)
        >>> core(
        ...     core.init(), jnp.ones((4, 16)), (jnp.eye(16), ()), noise_key=jax.random.key(0)
        ... ).shape
        (4, 16)
    """

    drift: Field
    diffusion: Field
    noise_type: str = "diagonal"
    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha = 1.0
    t1: float = 1.0
    n_steps: int = 8
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    noise: Noise = Brownian()  # noqa: RUF009  a frozen value
    scheme: str | StochasticScheme = "euler"
    weights: str | VolterraWeights = "hybrid"
    interpretation: str = "ito"
    history: str | History = "auto"
    adjoint: bool = True
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        owner = "FSDEBlock"
        check_fields(owner, self)
        errors.one_of(owner, "noise_type", self.noise_type, NOISE_TYPES)
        settle(
            self,
            alpha=hashable(self.alpha),
            bounds=hashable(self.bounds),
            t1=errors.real(owner, "t1", self.t1, 0.0, above=True),
            n_steps=errors.count(owner, "n_steps", self.n_steps),
        )
        order = self._order(owner)
        settle(self, order=order, learn_alpha=order is not None)
        method = StochasticMethod.of(owner, self.noise, self.scheme, self.weights, self.interpretation, self.history)
        method.rule(self.noise_type, 0.75 if order is not None else float(fixed_orders(owner, self.alpha).min()))

    def _order(self, owner: str) -> Alpha | None:
        """The learned order, or None."""
        if isinstance(self.alpha, Alpha):
            stochastic_bounds(owner, self.alpha.taken_by(owner, self.bounds, self.alpha.shape))  # type: ignore[arg-type]
            return self.alpha
        values = fixed_orders(owner, self.alpha)
        check_stochastic_orders(owner, self.alpha, values)
        if not self.learn_alpha:
            return None
        return Alpha(hashable(values.tolist()), stochastic_bounds(owner, self.bounds), values.shape, owner=owner)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"order": {"raw": ...}} where alpha is learned, else {}; others are the caller's."""
        return self._order_params(key, param_dtype)

    def __call__(
        self,
        params: Params,
        x: Array,
        variables: tuple[Any, Any] = ((), ()),
        *,
        noise_key: Array,
        key: Array | None = None,
    ) -> Array:
        """Return z(t1), one path for each state of x; same shape and dtype as x.

        Args:
            params: From `init`.
            x: The states at 0.
            variables: What drift and what diffusion are given besides, pytrees of arrays, which gradients may be taken
                in.
            noise_key: Where the noise is drawn.
            key: For an order that is random.
        """
        x = of_numpy(x)
        dtype = computed_in("FSDEBlock", x)
        if 0 in x.shape:
            return x
        fields = (self.drift, self.diffusion)
        if dtype != x.dtype.name:
            fields = (AtHalf(self.drift, x.dtype), AtHalf(self.diffusion, x.dtype))
        states = fsdeint(
            SDE(_Part(fields[0], 0), _Part(fields[1], 1), self.noise_type),
            x.astype(dtype),
            (0.0, self.t1),
            args=variables,
            alpha=self._orders(params, key),
            noise=self.noise,
            scheme=self.scheme,
            weights=self.weights,
            interpretation=self.interpretation,
            history=self.history,
            adjoint=self.adjoint,
            key=noise_key,
            dt=self.t1 / self.n_steps,
            manager=self.manager,
        )
        return states[-1].astype(x.dtype)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Part:
    """A coefficient of a pair that share their variables.

    Attributes:
        f: It.
        place: Of its own variables.
    """

    f: Field
    place: int

    def __call__(self, t: Array, z: Array, variables: tuple[Any, Any]) -> Array:
        return self.f(t, z, variables[self.place])
