"""The weights of a scheme inside a compiler: an opaque operation of alpha, closed under differentiation.

Their formulas are NumPy's for what does not depend on alpha, which no compiler traces. `hpfracc_nn::solver_weights`
stands for them; its backward is the same operation with one derivative more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import plainly
from hpfracc_nn.solvers.schemes import SCHEMES

_LIBRARY = torch.library.Library("hpfracc_nn", "FRAGMENT")
_LIBRARY.define(
    "solver_weights(Tensor alpha, str scheme, int n_steps, float dt, int derivative=0) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_OPERATION = torch.ops.hpfracc_nn.solver_weights.default


def solver_weights(alpha: Tensor, scheme: str, n_steps: int, dt: float) -> Tensor:
    """Return a scheme's weights on a uniform mesh, differentiable in alpha.

    Args:
        alpha: [a], float64.
        scheme: By name; one of a single starting column, or of none.
        n_steps: How many steps.
        dt: Their length.

    Returns:
        [a, 2 sets, n_steps + 1], float64: by lag for each set, then what the first right-hand side gets besides at
        each step.
    """
    found: Tensor = _OPERATION(alpha, scheme, n_steps, dt)
    return found


def _run(alpha: Tensor, scheme: str, n_steps: int, dt: float, derivative: int = 0) -> Tensor:
    with plainly(), torch.enable_grad():
        orders = alpha.detach().requires_grad_()
        found = _stacked(orders, scheme, n_steps, dt)
        for _ in range(derivative):
            found = _derivative(found, orders)
        return found.detach()


def _stacked(orders: Tensor, scheme: str, n_steps: int, dt: float) -> Tensor:
    weights = SCHEMES[scheme]().weights(orders, n_steps, dt, TORCH)
    starts = torch.zeros_like(weights.columns) if weights.starts is None else weights.starts[..., 0]
    return torch.cat([weights.columns, starts], 1)


def _derivative(values: Tensor, orders: Tensor) -> Tensor:
    """Return the derivative of values [a, ...] by their own of the orders [a]: that of u -> J' u, times ones."""
    u = torch.zeros_like(values, requires_grad=True)
    (pulled,) = torch.autograd.grad(values, orders, u, create_graph=True)
    (found,) = torch.autograd.grad(pulled.sum(), u, create_graph=True)
    return found


def _fake(alpha: Tensor, scheme: str, n_steps: int, dt: float, derivative: int = 0) -> Tensor:
    return alpha.new_empty(alpha.shape[0], 2 * SCHEMES[scheme]().sets, n_steps + 1)


def _saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    alpha, *given = inputs
    ctx.given = (*given, 0)[:4]
    ctx.save_for_backward(alpha)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (alpha,) = ctx.saved_tensors
    *given, derivative = ctx.given
    return (grad * _OPERATION(alpha, *given, derivative + 1)).sum((1, 2)), None, None, None, None


_LIBRARY.impl("solver_weights", _run, "CompositeExplicitAutograd")
torch.library.register_fake(_OPERATION, _fake, lib=_LIBRARY)
torch.library.register_autograd(_OPERATION, _backward, setup_context=_saved, lib=_LIBRARY)
