"""Increments that are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.noise import Noise, Shape, State
from hpfracc_nn.solvers.noise.source import Source


@dataclass(frozen=True, eq=False)
class Given(Noise):
    """A noise whose increments are at hand: measured, drawn elsewhere, or made by other means.

    Args:
        values: An array of the framework that solves, [n_steps, *shape]; [n_steps, 2, *shape] where a scheme has two
            streams, which are the increments, and independent numbers of the same law beside them. A solve that asks
            for another shape raises a ValueError.
        holder: Paths are Hoelder continuous with each exponent below this.
        brownian: Whether the increments are those of Brownian motion, which schemes of higher order stand on.

    Examples:
        >>> dw = torch.full((100, 1), 0.01)  # a path that goes straight from 0 to 1
        >>> fsdeint(
        ...     SDE(lambda t, y: 0 * y, lambda t, y: y),
        ...     torch.ones(1),
        ...     np.linspace(0, 1, 101),
        ...     noise=Given(dw),
        ... )[-1]
        tensor([2.7048])
        >>> round(1.01**100, 4)
        2.7048
    """

    values: Any
    holder: float = 0.5
    brownian: bool = True

    name: ClassVar[str] = "given"
    is_whole: ClassVar[bool] = True

    @property
    def is_brownian(self) -> bool:  # type: ignore[override]
        """Whether they are said to be."""
        return self.brownian

    @property
    def regularity(self) -> float:
        """What is said of them."""
        return self.holder

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`.

        Raises:
            ValueError: There are others than are asked for.
        """
        if tuple(self.values.shape) != (n_steps, *shape):
            raise ValueError(
                f"Given(values of shape {tuple(self.values.shape)}): needs the increments of {n_steps} steps, of shape "
                f"{(n_steps, *shape)}, for this equation, scheme and mesh; pass these, or another dt."
            )
        return source.cast(self.values), ()
