"""The variance of gradients over random draws, which says whether more paths would help, or a smaller step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class GradientVariance:
    """Mean and variance of a model's gradients over several backward passes, by Welford's recursion.

    A parameter without a gradient counts as having a gradient of 0 in that pass.

    Args:
        model: A module, or an iterable of parameters.

    Raises:
        ValueError: There are no parameters that require a gradient.

    Source: McCandlish, Kaplan, Amodei et al., arXiv 1812.06162, for the noise scale.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> monitor = GradientVariance(model)
        >>> for draw in (1.0, 3.0):
        ...     model.zero_grad()
        ...     model(torch.full((1,), draw)).backward()
        ...     monitor.update()
        >>> # of 1 and 3; 2**2 - 2 / 2; 2 / 3
        >>> monitor.variance(), monitor.signal(), round(monitor.noise_scale, 4)
        (2.0, 3.0, 0.6667)
    """

    def __init__(self, model: nn.Module | Iterable[nn.Parameter]):
        named = dict(model.named_parameters()) if isinstance(model, nn.Module) else _numbered(model)
        self._parameters = {name: each for name, each in named.items() if each.requires_grad}
        if not self._parameters:
            raise ValueError(
                "GradientVariance(model): needs parameters that require a gradient; pass a module that has some."
            )
        self.reset()

    def reset(self) -> None:
        """Drop the gradients of all passes so far."""
        self.count = 0
        self._mean = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in self._parameters.items()}
        self._squares = {name: torch.zeros_like(each) for name, each in self._mean.items()}

    def update(self) -> None:
        """Add the gradients that the parameters hold now; call this after each backward pass, from zeroed gradients."""
        self.count += 1
        for name, parameter in self._parameters.items():
            g = torch.zeros_like(self._mean[name]) if parameter.grad is None else parameter.grad.double()
            step = g - self._mean[name]
            self._mean[name] += step / self.count
            self._squares[name] += step * (g - self._mean[name])

    def variance(self, name: str | None = None) -> float:
        """Return the variance of the gradient, summed over the entries of one parameter, or of all.

        The variance is 0 before the second pass. `name` is that of a parameter in the module, or its place, such as
        "0"; None is all parameters.
        """
        return self._total(self._squares, name) / max(self.count - 1, 1)

    def signal(self, name: str | None = None) -> float:
        """Return the squared length of the mean gradient, less what the gradients' variance adds to it; at least 0.

        `name` is as in `variance`.
        """
        squares = {key: each.square() for key, each in self._mean.items()}
        return max(self._total(squares, name) - self.variance(name) / max(self.count, 1), 0.0)

    @property
    def noise_scale(self) -> float:
        """Variance over signal: the number of passes whose mean gradient would have a variance equal to the signal."""
        signal = self.signal()
        return self.variance() / signal if signal else float("inf")

    @staticmethod
    def _total(of: dict[str, Tensor], name: str | None) -> float:
        return float(sum(each.sum() for each in (of.values() if name is None else [of[name]])))


def _numbered(given: Any) -> dict[str, Tensor]:
    """Return parameters by position, "0", "1", ..., or raise TypeError if `given` is no iterable of tensors."""
    try:
        found = list(given)
    except TypeError:
        found = [None]
    if not all(isinstance(each, Tensor) for each in found):
        raise TypeError(
            f"GradientVariance(model of type {type(given).__name__}): needs a module, or parameters; pass for example "
            "model.parameters()."
        )
    return {str(k): p for k, p in enumerate(found)}
