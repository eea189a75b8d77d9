"""A fractional equation, ordinary or stochastic, as a layer of a network: from the state at 0 to that at t1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.layers.block_orders import check_block_bounds, check_block_orders
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.schemes.stochastic import StochasticScheme
from hpfracc_nn.solvers.schemes.volterra import VolterraWeights
from hpfracc_nn.solvers.stochastic import fitting_shape
from hpfracc_nn.solvers.torch.arguments import order_numbers
from hpfracc_nn.solvers.torch.equation import CaputoEquation
from hpfracc_nn.solvers.torch.faults import check_untraced
from hpfracc_nn.solvers.torch.in_graph import check_like
from hpfracc_nn.solvers.torch.neural_fsde import NeuralFSDE, stochastic_order

HALVES = (torch.float16, torch.bfloat16)


class FDEBlock(CaputoEquation):
    """x to z(t1), where D^alpha z = f(t, z) and z(0) = x: a residual network whose steps remember.

    With the rectangle scheme, h = t1 / n_steps and `b_k = ((k + 1)**alpha - k**alpha) / Gamma(1 + alpha)`,

        z_n = x + h**alpha sum over j < n of b_(n - 1 - j) f(j h, z_j).

    At alpha = 1 every b_k is 1, and it is n_steps times z + h f(t, z): a residual network with shared weights. It
    costs n_steps evaluations of f; backwards, by the exact adjoint, only the n_steps + 1 states are kept and f is
    evaluated again.
    Beside a network that is free to change, a learned order is a hyper-parameter and no measurement.

    The layer can stand in `nn.Sequential`. Eager calls are solved as by `fdeint`, with its checks: f may not draw
    random numbers unless adjoint=False. A compiled or exported graph holds every step in plain operations.

    Args:
        f: The right-hand side, called as f(t, z), t a tensor of no axes, z like x; returns z's shape.
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
        device: Of alpha's parameter.
        dtype: Of alpha's parameter; alpha itself is float64.

    Shape:
        Input and output: any, the same; floating. Half precision reaches f as it is, and is added up in float32.

    Raises:
        ValueError: An argument is out of range, x holds a number that is not finite, or f returns another shape.
        TypeError: An argument has the wrong type.
        FloatingPointError: The solution diverges.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (13); Coelho, Costa & Ferras,
        arXiv:2403.02737 (2024).

    Examples:
        >>> class Field(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(16, 16)
        ...
        ...     def forward(self, t, z):
        ...         return torch.tanh(self.net(z))
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 16),
        ...     FDEBlock(Field(), 0.7, n_steps=8),
        ...     torch.nn.Linear(16, 2),
        ... )
        >>> net(torch.randn(4, 8)).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        f: nn.Module,
        alpha: float | Sequence[float] | Alpha = 0.5,
        *,
        t1: float = 1.0,
        n_steps: int = 8,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        scheme: str | Scheme = "rectangle",
        history: str | History = "auto",
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        owner = type(self).__name__
        check_memory(owner, alpha, bounds)
        super().__init__(
            alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            scheme=scheme,
            history=history,
            mesh="uniform",
            n_steps=errors.count(owner, "n_steps", n_steps),
            adjoint=adjoint,
            manager=manager,
            device=device,
            dtype=dtype,
        )
        self.t1 = errors.real(owner, "t1", t1, 0.0, above=True)
        self.f = errors.function(owner, "f", f)

    def forward(self, x: Tensor) -> Tensor:
        """Return z(t1); same shape, dtype and device as x."""
        check_floating(type(self).__name__, x)
        if x.dtype not in HALVES:
            return self.last(self.f, x, self.t1)
        return self.last(partial(at_half, self.f, x.dtype), x.float(), self.t1).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, t1={self.t1:g}"


class FSDEBlock(nn.Module):
    """x to z(t1), where dZ = drift dt + diffusion dW and z(0) = x, or below alpha = 1 the equation with memory.

    That is the stochastic Volterra equation

        z(t) = x + integral of m(t - s) [drift ds + diffusion dW] from 0 to t,
        m(t) = t**(alpha - 1) / Gamma(alpha).

    With diffusion 0 it is the `FDEBlock` of the same drift. Each call draws other paths, in training and after
    `eval()` alike, because z(t1) is a random variable of the model and not a regulariser: average several calls, or
    what a network makes of them, for a prediction. `torch.manual_seed`, or a generator in the call, makes it
    repeatable. Backwards the same paths are replayed, by the exact adjoint. A compiler runs the solve as it is, outside
    of its graph.

    Args:
        drift: Called as drift(t, z), of z's shape; its parameters are learned.
        diffusion: Called as diffusion(t, z), of the noise type's shape; its parameters are learned.
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
        adjoint: As in `fsdeint`.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.
        device: Of alpha's parameter.
        dtype: Of alpha's parameter; alpha itself is float64.

    Shape:
        Input and output: [..., state], the same; floating. With half precision drift and diffusion run under autocast,
        and what they return is added up in float32.

    Raises:
        ValueError: An argument is out of range, or things do not go together.
        TypeError: An argument has the wrong type.
        FloatingPointError: The solution is not finite.

    Source: Bennedsen, Lunde & Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> class Field(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(16, 16)
        ...
        ...     def forward(self, t, z):
        ...         return torch.tanh(self.net(z))
        >>> FSDEBlock(Field(), Field(), alpha=0.8)(torch.randn(4, 16)).shape
        torch.Size([4, 16])
    """

    def __init__(
        self,
        drift: nn.Module,
        diffusion: nn.Module,
        noise_type: str = "diagonal",
        *,
        alpha: float | Sequence[float] | Alpha = 1.0,
        t1: float = 1.0,
        n_steps: int = 8,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        noise: Noise = Brownian(),  # noqa: B008  a frozen value
        scheme: str | StochasticScheme = "euler",
        weights: str | VolterraWeights = "hybrid",
        interpretation: str = "ito",
        history: str | History = "auto",
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.t1 = errors.real(owner, "t1", t1, 0.0, above=True)
        self.n_steps = errors.count(owner, "n_steps", n_steps)
        errors.claim(owner, "learn_alpha", learn_alpha)
        fixed, order = stochastic_order(owner, alpha, learn_alpha, bounds, device, dtype)
        self.equation = NeuralFSDE(
            drift,
            diffusion,
            noise_type,
            alpha=fixed if order is None else order,
            noise=noise,
            scheme=scheme,
            weights=weights,
            interpretation=interpretation,
            history=history,
            dt=self.t1 / self.n_steps,
            adjoint=adjoint,
            manager=manager,
            device=device,
            dtype=dtype,
        )

    @property
    def alpha(self) -> Tensor:
        """The order in real units, float64; of a random one its mean."""
        return self.equation.alpha

    def forward(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return z(t1), one path for each state of x; same shape, dtype and device as x.

        Args:
            x: The states at 0.
            generator: Where the noise is drawn; None is the default generator of x's device.
        """
        check_floating(type(self).__name__, x)
        if x.is_meta or x.numel() == 0:  # nothing to draw for: the shape alone
            return self._unsolved(x)
        if x.dtype in HALVES:
            with torch.autocast(x.device.type, x.dtype):
                return self._solved(x.float(), generator).to(x.dtype)
        return self._solved(x, generator)

    def _unsolved(self, x: Tensor) -> Tensor:
        """Return what has the result's shape, after a look at those of drift and diffusion."""
        owner, t, equation = type(self).__name__, x.new_zeros(()), self.equation
        drift, diffusion = equation.drift(t, x), equation.diffusion(t, x)
        check_like(owner, "drift", drift, x.shape, x.dtype)
        is_tensor = isinstance(diffusion, Tensor)
        shape = fitting_shape(equation.noise_type, diffusion.shape, x.shape) if is_tensor else x.shape
        check_like(owner, "diffusion", diffusion, shape, x.dtype)
        return x + drift + diffusion.sum()  # no numbers: of the empty sum 0

    def _solved(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        states: Tensor = self.equation(x, (0.0, self.t1), generator=generator)
        return states[-1]

    def extra_repr(self) -> str:
        return f"t1={self.t1:g}, n_steps={self.n_steps}"


def check_memory(owner: str, alpha: float | Sequence[float] | Alpha, bounds: tuple[float, float] | None) -> None:
    """Raise unless orders are in (0, 1], where the state at the start is all that a solve begins with."""
    if isinstance(alpha, Alpha):
        check_block_bounds(owner, alpha.bounds)
    else:
        check_block_orders(owner, alpha, order_numbers(owner, alpha), bounds)


def check_floating(owner: str, x: Any) -> None:
    """Raise unless x is a real floating tensor, and nothing traces."""
    check_untraced(owner, "x")
    check_dense(owner, "x", x)
    if not x.is_floating_point():
        raise TypeError(f"{owner}(x of dtype {x.dtype}): needs a floating tensor; convert with x.float().")


def at_half(f: Callable[[Tensor, Tensor], Any], dtype: torch.dtype, t: Tensor, z: Tensor) -> Any:
    """Return f for a state that is added up in float32."""
    found = f(t.to(dtype), z.to(dtype))
    return found.to(z.dtype) if isinstance(found, Tensor) else found
