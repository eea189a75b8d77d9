"""Derivatives of formulas in alpha, each number's in the one order that it depends on; for autograd functions.

By autograd of the formula where gradients or transforms follow, else by a step into the complex plane: for an analytic
f that is real on the real axis, Im f(p + i h) / h is f'(p) up to h**2, and nothing is subtracted, so that h may be as
small as one likes.

Squire & Trapp, SIAM Review 40 (1998) 110.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NumpyNamespace

_STEP = 1e-30


def derivatives(formula: Callable[[Tensor], Sequence[Tensor]], alpha: Tensor) -> list[Tensor]:
    """Return the derivative of each of the formula's numbers in the one entry of alpha that it depends on.

    By the formula's own autograd: what is pulled back with a seed is linear in the seed, and the derivative is its
    factor. The result has a graph where gradients are recorded and alpha requires one.
    """
    records = torch.is_grad_enabled()
    if not (records and alpha.requires_grad):
        alpha = alpha.detach().requires_grad_()
    with torch.enable_grad():
        values = list(formula(alpha))
        seeds = [torch.zeros_like(each, requires_grad=True) for each in values]
        (pulled,) = torch.autograd.grad(values, alpha, seeds, create_graph=True)
        return list(torch.autograd.grad(pulled, seeds, torch.ones_like(pulled), create_graph=records))


def complex_step(formula: Callable[[np.ndarray, NumpyNamespace], np.ndarray], alpha: np.ndarray) -> np.ndarray:
    """Return the derivative of a formula in alpha, in NumPy's arrays; each entry depends on one entry of alpha."""
    return np.imag(formula(alpha + 1j * _STEP, COMPLEX)) / _STEP


class ComplexNamespace(NumpyNamespace):
    """NumPy's namespace for complex arguments near the real axis."""

    gammaln = cached_property(lambda self: scipy.special.loggamma)

    def asarray(self, value: Any) -> np.ndarray:
        return np.asarray(value, dtype=np.complex128)


COMPLEX = ComplexNamespace()


def apart(x: Tensor | None) -> Tensor | None:
    """Return x apart from what else is made of it, for gradients in several tensors of which one is made of another.

    A backward pass owes the direct part alone: autograd goes on behind each tensor, and would count a path that it has
    followed already once more. A second derivative still reaches x.
    """
    return None if x is None else x.view_as(x)
