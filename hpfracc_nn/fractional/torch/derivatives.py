"""Derivatives in alpha of formulas whose every number depends on a single entry of alpha; for autograd functions.

Autograd of the formula gives them where gradients or transforms follow, else a step into the complex plane: for an
analytic f that is real on the real axis, Im f(p + i h) / h is f'(p) up to h**2, and nothing is subtracted, so that h
may be as small as one likes.

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

    The derivatives come from the formula's own autograd: its vector-Jacobian product is linear in the seed, and the
    derivative is the seed's factor. The result has a graph where gradients are recorded and alpha requires one.
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
    """Return the derivative of a formula in alpha, entry by entry, by a complex step in NumPy."""
    return np.imag(formula(alpha + 1j * _STEP, COMPLEX)) / _STEP


class ComplexNamespace(NumpyNamespace):
    """NumPy's namespace for complex arguments near the real axis."""

    gammaln = cached_property(lambda self: scipy.special.loggamma)

    def asarray(self, value: Any) -> np.ndarray:
        return np.asarray(value, dtype=np.complex128)


COMPLEX = ComplexNamespace()


def apart(x: Tensor | None) -> Tensor | None:
    """Return a view of x as a tensor of its own for autograd, where gradients are taken in x and in a tensor made of x.

    A backward pass has to return the gradient in x with the other tensor held fixed: autograd goes on behind each
    tensor, and would count a path twice that the backward pass had followed already. A second derivative still reaches
    x. None stays None.
    """
    return None if x is None else x.view_as(x)
