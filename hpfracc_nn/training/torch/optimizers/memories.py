"""How past gradients are remembered: as they are, in a window, or faded, in exponentials.

A memory says how many rows it keeps for each parameter and what a step does with them (`mix.py`), from the number of
gradients that were stored before: as a whole number in `mix`, or as a tensor on the parameter's device, which a CUDA
graph can replay, in `recorded`. At each step the weights are those of as many gradients as there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.streams import placed
from hpfracc_nn.training import power_law
from hpfracc_nn.training.torch.optimizers.mix import Mix

WeightsByLag = Callable[[float, int], np.ndarray]  # of alpha and how many


class Memory(Protocol):
    """What an average remembers of one parameter."""

    @property
    def length(self) -> float:
        """How many gradients are remembered, that of the step included; infinity where they fade."""

    @property
    def rows(self) -> int:
        """How many rows of the parameter's size are kept."""

    def dtype(self, values: torch.dtype) -> torch.dtype:
        """Return the dtype of the rows for gradients of such values."""

    def mix(self, alpha: float, stored: int, seed: int | None) -> Mix:
        """Return what a step does after `stored` others."""

    def recorded(self, alpha: float, stored: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
        """Return the average and change the rows, in operations that autograd and CUDA graphs can follow.

        Sums are formed in single precision or better, whatever autocast is around; so is what is returned.
        """


@dataclass(frozen=True)
class Window:
    """The last `memory` gradients: that of this step, and a ring of rows with those before it.

    Args:
        memory: How many, at least 2.
        weights: Their weights by lag.
        is_normalised: Whether these are divided by their sum.
    """

    memory: int
    weights: WeightsByLag
    is_normalised: bool

    @property
    def length(self) -> float:
        return self.memory

    @property
    def rows(self) -> int:
        return self.memory - 1

    def dtype(self, values: torch.dtype) -> torch.dtype:
        return values  # the gradients as they are: nothing is rounded

    def mix(self, alpha: float, stored: int, seed: int | None) -> Mix:
        turn = stored if stored < self.rows else self.rows + stored % self.rows  # what the ring looks like
        return _window_mix(self, alpha, turn, None if seed is None else dropped(seed, stored, self.rows))

    def recorded(self, alpha: float, stored: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
        slot = stored.long() % self.rows
        lags = (slot - 1 - torch.arange(self.rows, device=rows.device)) % self.rows + 1
        by_lag = _weights_on(self, alpha, rows.device)
        weights = by_lag[lags] * (lags <= stored)
        total = by_lag[0] + weights.sum() if self.is_normalised else by_lag[0]
        average = _summed(by_lag[0] / total, weights / total, grad, rows)
        rows.index_copy_(0, slot.reshape(1), grad[None])
        return average


@lru_cache(maxsize=1024)
def _window_mix(window: Window, alpha: float, turn: int, without: int | None) -> Mix:
    count = window.rows
    slot = turn % count
    by_lag = window.weights(alpha, window.memory)
    lags = (slot - 1 - np.arange(count)) % count + 1
    weights = np.where(lags <= turn, by_lag[lags], 0.0)
    if without is not None:
        weights[lags == without] = 0.0
    total = by_lag[0] + weights.sum() if window.is_normalised else 1.0
    gains = tuple(float(row == slot) for row in range(count))
    return Mix(float(by_lag[0] / total), tuple((weights / total).tolist()), gains)


@placed  # while a graph is captured nothing can be copied from the host: the steps before it do so
def _weights_on(window: Window, alpha: float, device: torch.device) -> Tensor:
    return torch.as_tensor(window.weights(alpha, window.memory), device=device)


@placed
def _fading_on(alpha: float, device: torch.device) -> tuple[Tensor, Tensor]:
    decays = torch.as_tensor(power_law.decays(), device=device)
    return decays, torch.as_tensor(power_law.coefficients(alpha), device=device) / (1 - decays)


def dropped(seed: int, stored: int, lags: int) -> int:
    """Return the lag, from 1 to `lags`, whose gradient is left out at the step after `stored` others.

    Counter-based: the seed and the number of steps, both of which are saved, say all that there is to say.
    """
    return 1 + int(np.random.Generator(np.random.Philox(key=seed, counter=stored)).integers(lags))


@dataclass(frozen=True)
class Exponentials:
    """Four moving averages that fade at different rates; their sum follows the tempered weights of the integral."""

    @property
    def length(self) -> float:
        return math.inf

    @property
    def rows(self) -> int:
        return len(power_law.RATES)

    def dtype(self, values: torch.dtype) -> torch.dtype:
        return torch.float32 if values.itemsize == 2 else values  # in half precision the slow ones would stop short

    def mix(self, alpha: float, stored: int, seed: int | None) -> Mix:
        parts, total = _exponential_parts(alpha, np.float64(stored))
        gains = 1 - power_law.decays()
        return Mix(float(1 / total), tuple((parts / total).tolist()), tuple(gains.tolist()))

    def recorded(self, alpha: float, stored: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
        decays, parts = _fading_on(alpha, rows.device)
        total = 1 + (parts * (1 - decays**stored)).sum()
        average = _summed(1 / total, parts / total, grad, rows)
        rows.lerp_(grad[None].to(rows.dtype), (1 - decays).to(rows.dtype)[:, None])
        return average


def _summed(first: Tensor, weights: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
    """Return first * grad + weights . rows, in single precision or better."""
    exact = torch.promote_types(grad.dtype, torch.float32)
    average, weights = first.to(exact) * grad.to(exact), weights.to(exact)
    if rows.dtype == exact:
        with torch.autocast(rows.device.type, enabled=False):  # it would round both to half precision
            return average + weights @ rows
    for row, weight in zip(rows, weights, strict=True):  # one by one: all at once would take room for all in `exact`
        average = average + weight * row.to(exact)
    return average


def _exponential_parts(alpha: float, stored: np.float64) -> tuple[np.ndarray, np.float64]:
    """Return the weights of the moving averages, and by what all is divided: the sum of the weights of all lags."""
    decays = power_law.decays()
    parts = power_law.coefficients(alpha) / (1 - decays)
    return parts, 1 + (parts * (1 - decays**stored)).sum()
