"""What computes the same on PyTorch and on JAX, by registration: every file of this package has a list `CASES`.

Frameworks are imported inside the functions of a case only: the package is read where one of them is missing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]  # by name, of one framework


def parity() -> dict[str, float]:
    """Return what may differ between the frameworks, relative to the largest entry."""
    return {"float64": 1e-12, "float32": 1e-6}


@dataclass(frozen=True, eq=False)
class ParityCase:
    """One computation, written for both frameworks.

    Args:
        name: Of the case.
        inputs: Draws the inputs, float64; what is no floating array is passed on as it is.
        torch: A function of tensors that returns a tensor, or a tuple or list of them.
        jax: The same of arrays, pure.
        differentiable: The inputs that gradients are taken in; None: all that are floating.
        tolerance: What values and gradients may differ by, relative to the largest entry, by dtype.
        forward_mode: Whether jvp, and with it second derivatives, go through.
        slow: Whether none of it belongs to the fast suite.
        cancels: Whether in single precision gradients are held against those under weights of one sign: where the
            terms of a gradient cancel, neither framework finds its last digits.
    """

    name: str
    inputs: Callable[[np.random.Generator], dict[str, np.ndarray]]
    torch: Callable[[Arrays], Any]
    jax: Callable[[Arrays], Any]
    differentiable: tuple[str, ...] | None = None
    tolerance: Mapping[str, float] = field(default_factory=parity)
    forward_mode: bool = True
    slow: bool = False
    cancels: bool = False

    def drawn(self, seed: int = 0) -> dict[str, np.ndarray]:
        return self.inputs(np.random.default_rng(seed))

    def moved(self, drawn: Arrays) -> list[str]:
        """Return the names of the inputs that gradients are taken in."""
        floating = [name for name, values in drawn.items() if np.asarray(values).dtype.kind == "f"]
        return [name for name in floating if self.differentiable is None or name in self.differentiable]

    def __repr__(self) -> str:
        return self.name


def every_case() -> list[ParityCase]:
    """Return the cases of all files."""
    files = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [case for name in files for case in importlib.import_module(f"{__name__}.{name}").CASES]
