"""Latent stochastic equations: a posterior and a prior that share their diffusion, and the divergence between them.

By Girsanov's theorem the measures of two equations with drifts f_q and f_p and one diffusion g differ by

    KL(q || p) = E_q 1/2 int |u|**2 dt,        u = g**-1 (f_q - f_p),

and so do those of Volterra equations, in which the memory function stands before both drift and noise. The integral is
one more entry of the state, of order 1, so that the solver and its adjoint need no special case.

Li, Wong, Chen & Duvenaud, Scalable gradients for stochastic differential equations, AISTATS (2020), section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.solvers.noise import Noise
from hpfracc_nn.solvers.sde import SDE, check_noise
from hpfracc_nn.solvers.torch.fsde import fsdeint

Function = Callable[[Tensor, Tensor], Tensor]


class PathDivergence:
    """The posterior's equation for a state with one more entry at its end, the integral of |u|**2 / 2 so far.

    Args:
        posterior: The posterior's drift f_q(t, y), whose paths are solved for; `fsdeint` refuses other noise than
            Brownian motion.
        prior: The prior's drift f_p(t, y).
        diffusion: The common diffusion g(t, y) of y's shape, nowhere 0: one motion for each entry.

    Shape:
        States [..., entries] become [..., entries + 1], see `state`.

    Source: Li, Wong, Chen & Duvenaud, AISTATS (2020), section 5.

    Examples:
        >>> sde = PathDivergence(
        ...     lambda t, y: 1 - y, lambda t, y: -y, lambda t, y: torch.ones_like(y)
        ... )
        >>> x = fsdeint(sde, sde.state(torch.zeros(64, 2)), torch.linspace(0, 1, 101))
        >>> states, divergence = x[..., :-1], x[-1, ..., -1].mean()
        >>> round(divergence.item(), 4)  # u is 1 in either entry
        1.0
    """

    noise_type = "diagonal"
    needs_brownian = "the divergence is Girsanov's for Brownian motion, and that of another noise is not |u|**2 / 2"

    def __init__(self, posterior: Function, prior: Function, diffusion: Function):
        self.posterior, self.prior, self.given = posterior, prior, diffusion

    def drift(self, t: Tensor, x: Tensor) -> Tensor:
        """Return the drift of the longer state x, [..., entries + 1]: f_q(t, y), and |u|**2 / 2 as the last entry."""
        y = x[..., :-1]
        drift = self.posterior(t, y)
        u = (drift - self.prior(t, y)) / self.given(t, y)
        return torch.cat([drift, u.square().sum(-1, keepdim=True) / 2], -1)

    def diffusion(self, t: Tensor, x: Tensor) -> Tensor:
        """Return the diffusion of the longer state x, [..., entries + 1]: g(t, y), and 0 for the last entry."""
        found = self.given(t, x[..., :-1])
        return torch.cat([found, torch.zeros_like(found[..., :1])], -1)

    @staticmethod
    def state(y0: Tensor) -> Tensor:
        """Return the longer state at the start, [..., entries + 1]: y0, and 0 as the last entry."""
        return torch.cat([y0, torch.zeros_like(y0[..., :1])], -1)

    @staticmethod
    def orders(alpha: float | Tensor, y0: Tensor) -> Tensor | float:
        """Return the order of each entry of the longer state, [entries + 1]: alpha, and 1 for the last.

        For alpha = 1 return 1.0 alone.

        Raises:
            ValueError: alpha is not one number.
        """
        if not isinstance(alpha, Tensor) and alpha == 1:
            return 1.0
        order = torch.as_tensor(alpha, dtype=torch.float64, device=y0.device)
        if order.numel() != 1:
            raise ValueError(
                f"PathDivergence.orders(alpha of shape {tuple(order.shape)}): needs one order; the entries of a state "
                "share it."
            )
        return torch.cat([order.reshape(1).expand(y0.shape[-1]), order.new_ones(1)])


class LatentFSDE(nn.Module):
    """A prior, a posterior and the diffusion that they share, as a variational model of paths.

    Args:
        prior: The prior's drift, called as prior(t, y).
        posterior: The posterior's drift, called as posterior(t, y, context).
        diffusion: The common diffusion, called as diffusion(t, y), of y's shape, nowhere 0.
        alpha: The order, in (1/2, 1], a float or a tensor of one number.
        options: Options of `fsdeint`, such as dt, scheme and interpretation.

    Raises:
        ValueError: The options have a noise that is not Brownian motion, for which the divergence is a different one.

    Source: Li, Wong, Chen & Duvenaud, AISTATS (2020), section 5.

    Examples:
        >>> class Drift(nn.Module):
        ...     def forward(self, t, y, context=0.0):
        ...         return context - y
        >>> model = LatentFSDE(Drift(), Drift(), lambda t, y: torch.ones_like(y))
        >>> states, divergence = model(
        ...     torch.zeros(64, 2), np.linspace(0, 1, 101), context=torch.ones(2)
        ... )
        >>> states.shape, round(divergence.mean().item(), 4)  # 1 / 2 of either entry
        (torch.Size([101, 64, 2]), 1.0)
    """

    def __init__(
        self,
        prior: nn.Module,
        posterior: nn.Module,
        diffusion: nn.Module,
        *,
        alpha: float | Tensor = 1.0,
        **options: Any,
    ):
        super().__init__()
        owner = type(self).__name__
        self.prior = errors.function(owner, "prior", prior)
        self.posterior = errors.function(owner, "posterior", posterior)
        self.diffusion = errors.function(owner, "diffusion", diffusion)
        self.alpha, self.options = alpha, options
        noise = options.get("noise")
        if isinstance(noise, Noise):
            check_noise(type(self).__name__, PathDivergence, noise)

    def forward(
        self,
        y0: Tensor,
        ts: Tensor | Sequence[float],
        context: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the posterior's states, `[times, *y0.shape]`, and the divergence of each path, `[*y0.shape[:-1]]`.

        Args:
            y0: States at the start, [..., entries].
            ts: As in `fsdeint`.
            context: Data for the posterior, such as an encoding of observations: its third argument; gradients flow
                to it.
            generator: As in `fsdeint`.
        """
        sde = PathDivergence(lambda t, y: self.posterior(t, y, context), self.prior, self.diffusion)
        params: list[Tensor] = [each for each in self.parameters() if each.requires_grad]
        if context is not None and context.requires_grad:
            params.append(context)
        found = fsdeint(
            sde,
            sde.state(y0),
            ts,
            alpha=sde.orders(self.alpha, y0),
            generator=generator,
            params=params,
            **self.options,
        )
        return found[..., :-1], found[-1, ..., -1]

    def sample(self, y0: Tensor, ts: Tensor | Sequence[float], *, generator: torch.Generator | None = None) -> Tensor:
        """Return paths of the prior, [times, *y0.shape]; arguments as in `forward`."""
        return fsdeint(SDE(self.prior, self.diffusion), y0, ts, alpha=self.alpha, generator=generator, **self.options)
