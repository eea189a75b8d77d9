"""What a recurrent cell remembers: m_t = sum over k >= 1 of a_k c_(t-k), an average of all it has held by a power law.

The weights are a_k = -w_k, with (1 - z)**alpha = sum of w_k z**k (Grünwald's weights): for 0 < alpha <= 1 none of them
is negative, they go like alpha k**(-1-alpha) / Gamma(1 - alpha), and they add up to 1. What adds up the past is a
solver's history (`solvers/torch/past.py`): the same operation, the same kernels, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.weights import slopes
from hpfracc_nn.layers.recurrence import memory_nodes
from hpfracc_nn.selection import Plan, Site, Workload
from hpfracc_nn.selection.workload import Direction
from hpfracc_nn.solvers.history import Automatic, Window
from hpfracc_nn.solvers.torch import kernels  # noqa: F401  registered on import
from hpfracc_nn.solvers.torch.operand import Toeplitz
from hpfracc_nn.solvers.torch.packing import Packing
from hpfracc_nn.solvers.torch.past import Past

_NAMES = {torch.float32: "float32", torch.float64: "float64"}


def operation(window: int | None) -> str:
    """Return the operation that adds up the past: all of it, or a window."""
    return Automatic.op if window is None else Window.op


def lag_weights(alpha: Tensor, count: int, window: int | None = None) -> Tensor:
    """Return a_0 = 0, a_1, a_2, ..., for alpha [*c] float64: [*c, count]; 0 from lag `window` + 1 on.

    By the recurrence w_k = w_(k-1) (k - 1 - alpha) / k, in operations that compilers and transforms follow.
    """
    lag = torch.arange(1, count, dtype=torch.float64, device=alpha.device)
    weights = -torch.cumprod((lag - 1 - alpha[..., None]) / lag, dim=-1)
    if window is not None:
        weights = weights * (lag <= window)
    return F.pad(weights, (1, 0))


@dataclass(frozen=True, eq=False)
class Memory:
    """How a layer remembers.

    Attributes:
        site: That picks who adds up the past.
        window: The largest lag that counts, or None.
        definition: The difference whose weights they are; where alpha is learned, of any order within its bounds.
    """

    site: Site
    window: int | None
    definition: GrunwaldLetnikov

    def sums(
        self, alpha: Tensor, values: Tensor, n: int, *, needs_gradient: bool, direction: Direction = "forward"
    ) -> Sums:
        """Ask the manager for a plan, and return what adds up the past of one series.

        Args:
            alpha: [] or [units], float64.
            values: A tensor like those to be remembered, [batch, units].
            n: Steps.
            needs_gradient: Whether there will be a backward pass.
            direction: Of the pass that asks; a backward pass that was told of no forward pass asks itself.
        """
        return Sums(self, alpha.detach(), values, n, needs_gradient, direction)

    def nodes(self, alpha: Tensor, n: int, dtype: str) -> Nodes | None:
        """Return the exponentials that stand for the weights on n steps, or None."""
        definition = self.definition
        if definition.bounds is not None:  # certified once between them, not for each alpha
            definition = replace(definition, alpha=alpha)
        return memory_nodes(definition, n, dtype, self.window)


class Sums:
    """The weights of one series, the plan, and the pasts that are made with them; steps go from 0, the start, to n."""

    def __init__(
        self, memory: Memory, alpha: Tensor, values: Tensor, n: int, needs_gradient: bool, direction: Direction
    ):
        self.memory, self.n, self._like = memory, n, values
        self._alpha = alpha.reshape(-1)
        units = self._alpha.numel()
        self.packing = Packing((values.shape,), False, (1, units) if units > 1 else (1, 1))
        self._nodes = memory.nodes(alpha, n, _NAMES[values.dtype])
        self.plan = self._pick(needs_gradient, direction)

    def past(self, direction: Direction) -> Past:
        """Return an empty past; in the backward one step k is step n - k of the series, which is the transpose."""
        return self._past(self._operand, direction)

    def tell(self, past: Past) -> None:
        """Give the manager the time that the kernel took, where it wants to know."""
        if past.plan is self.plan and self.plan.due(past.direction):
            self.memory.site.manager.record(self.plan, past.seconds, past.direction)

    def order_gradient(self, values: Tensor, cotangents: Tensor) -> Tensor:
        """Return the gradient in alpha, [orders] in float64: the weights' derivatives add up the same past.

        Args:
            values: What was remembered, as a past has them.
            cotangents: Of the memories of all steps, in the order of a backward past.
        """
        past = self._past(self._slopes(), "backward")
        past.values.copy_(values)
        pulled = cotangents.flip(1)
        found = torch.zeros(self.packing.orders, dtype=torch.float64, device=values.device)
        for first in range(0, self.n + 1, past.block):
            end = past.begin(first)
            moved = self.packing.matrix(past.memories(first, end)[0])
            found += (moved * pulled[:, first:end, 0]).sum((1, 2), dtype=torch.float64)
        return found

    def _past(self, operand: Toeplitz, direction: Direction) -> Past:
        return Past(operand, self.memory.site, self.plan, direction, self.packing, self._like)

    @cached_property
    def _operand(self) -> Toeplitz:
        return self._toeplitz(lag_weights(self._alpha, self._count, self.memory.window))

    def _slopes(self) -> Toeplitz:
        """The same with the derivatives of the weights in alpha, which the exponentials have too: they are linear."""
        window = self.memory.window
        (found,) = slopes(lambda alpha: [lag_weights(alpha, self._count, window)], self._alpha)
        return self._toeplitz(found)

    @property
    def _count(self) -> int:
        return self.n + 1 if self._nodes is None else max(self.n, int(self._nodes.lags[-1])) + 1

    def _toeplitz(self, weights: Tensor) -> Toeplitz:
        def placed(each: Tensor) -> Tensor:
            return each.to(self._like)[:, None, None]

        nodes = self._nodes
        columns = placed(weights[:, : self.n + 1])
        if nodes is None:
            return Toeplitz(columns, reach=self.memory.window)
        fitted = nodes.fit(TORCH.take(weights, nodes.lags, axis=-1), TORCH)
        return Toeplitz(columns, nodes, placed(fitted))

    def _pick(self, needs_gradient: bool, direction: Direction) -> Plan:
        site, like, packing = self.memory.site, self._like, self.packing
        states, threads = 0 if self._nodes is None else self._nodes.states, torch.get_num_threads()

        def describe() -> Workload:
            return Workload(
                op=site.op,
                framework="torch",
                device=str(like.device),
                dtype=_NAMES[like.dtype],
                rows=packing.orders,
                n=self.n,
                width=packing.width,
                channels=packing.orders,
                exponentials=states,
                needs_gradient=needs_gradient,
                threads=threads,
            )

        key = (packing.orders, packing.width, self.n, like.dtype, like.device, states, needs_gradient, threads)
        return (site.pick if direction == "forward" else site.pick_backward)(key, describe)
