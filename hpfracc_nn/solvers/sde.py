"""A stochastic equation as its functions: what `fsdeint` asks of one, and the plainest way to write one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Coefficient = Callable[..., Any]  # of t and y, and in JAX of `args` too where there are some


class StochasticEquation(Protocol):
    """dX = drift(t, X) dt + diffusion(t, X) dZ, or with a memory function before both where alpha < 1.

    Attributes:
        noise_type: "additive" (the diffusion does not depend on y: of y's shape, one motion for each entry, or
            `[*y.shape, m]`, m motions for each state along y's last axis), "diagonal" (of y's shape, and each entry
            depends on the same entry of y alone where a scheme stands on it), "scalar" (`[*y.shape, 1]`, one motion for
            all entries of a state) or "general" (`[*y.shape, m]`).

    An equation that only Brownian motion may drive says why in an attribute `needs_brownian`.

    Examples:
        >>> class OrnsteinUhlenbeck:
        ...     noise_type = "additive"
        ...
        ...     def drift(self, t, y):
        ...         return -y
        ...
        ...     def diffusion(self, t, y):
        ...         return torch.full_like(y, 0.5)
        >>> x = fsdeint(OrnsteinUhlenbeck(), torch.zeros(20_000), np.linspace(0, 1, 101))
        >>> round(x[-1].var().item(), 2)  # (1 - exp(-2)) / 8 = 0.108
        0.11
    """

    @property
    def noise_type(self) -> str: ...

    def drift(self, t: Any, y: Any) -> Any:
        """Return f(t, y), of y's shape."""
        ...

    def diffusion(self, t: Any, y: Any) -> Any:
        """Return g(t, y), of the noise type's shape."""
        ...


@dataclass(frozen=True)
class SDE:
    """A stochastic equation of two functions.

    Args:
        drift: f(t, y), of y's shape, in units of y / time.
        diffusion: g(t, y), of the noise type's shape, in units of y / those of the noise; see `StochasticEquation`.
        noise_type: "additive", "diagonal", "scalar" or "general"; the solver refuses any other.

    Examples:
        >>> sde = SDE(lambda t, y: 0.2 * y, lambda t, y: 0.1 * y)  # a price
        >>> x = fsdeint(sde, torch.ones(20_000), np.linspace(0, 1, 101))
        >>> round(x[-1].mean().item(), 2)  # exp(0.2) = 1.2214
        1.22
    """

    drift: Coefficient
    diffusion: Coefficient
    noise_type: str = "diagonal"
