"""Workloads of operators, described without data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Caputo, Definition, Multiplier
from hpfracc_nn.fractional.dispatch import load
from hpfracc_nn.fractional.layout import layout_of, transformed_axes
from hpfracc_nn.fractional.schemes.exponentials import SHORTEST, exponentials
from hpfracc_nn.selection import Workload, probe
from hpfracc_nn.selection.machine import has_probe

OP = "toeplitz"
MULTIPLIER = "multiplier"
_PRECISIONS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


def workload(
    shape: Sequence[int],
    definition: Definition | Multiplier | None = None,
    *,
    framework: str,
    dim: int | Sequence[int] = -1,
    dtype: str = "float32",
    device: str = "cpu",
    needs_gradient: bool = False,
    learns_weights: bool = False,
    threads: int | None = None,
) -> Workload:
    """Return the workload of an operator on data of this shape, for `BackendManager.explain`, `predict` and `plan`.

    The framework's kernels are loaded first, so that there is an answer before the first call.

    Args:
        shape: Of the data, [..., n, ...].
        definition: The operator; None is Caputo(0.5). What most operators ask differs by little. One with a time scale
            is taken in steps (`Definition.in_steps`); one on both sides asks for twice as many rows. A multiplier of
            periodic signals asks for the operation "multiplier".
        framework: "numpy", "torch" or "jax".
        dim: The time axis; for a multiplier the axis or axes that it transforms.
        dtype: Of the data: float16, bfloat16, float32 or float64; what it is computed in follows. Half precision of
            torch goes to the kernels as it lies, and is converted for those that do not read it, or for all where there
            are sums before or after the product, or float64 computes it.
        device: Where the data lie.
        needs_gradient: A gradient in the data is wanted.
        learns_weights: A gradient in alpha is wanted.
        threads: None asks the framework, as an operator would here and now.

    Raises:
        ModuleNotFoundError: The framework is not installed.
        ValueError: There is no such axis, dtype or framework, or alpha does not broadcast to the axes other than time;
            or the definition is a multiplier of NumPy arrays, which have one routine for it.

    Examples:
        >>> asked = workload((256, 1024), Caputo(0.7), framework="numpy")
        >>> asked.rows, asked.n, asked.dtype
        (256, 1024, 'float32')
        >>> print(BackendManager().explain(asked))
    """
    load("workload", framework)
    definition = Caputo(0.5) if definition is None else definition
    if dtype not in _PRECISIONS:
        raise ValueError(f"workload(dtype={dtype!r}): needs one of {', '.join(_PRECISIONS)}; convert the data first.")
    alpha = definition.alpha
    alpha_shape = tuple(alpha.shape) if hasattr(alpha, "shape") else np.shape(alpha)
    if threads is None:
        threads = probe(framework).threads() if has_probe(framework) else 1
    if isinstance(definition, Multiplier):
        if framework == "numpy":
            raise ValueError(
                f"workload({type(definition).__name__}, framework='numpy'): needs framework='torch'; NumPy arrays "
                "have one routine for multipliers, and there is no choice to ask for."
            )
        axes, _ = transformed_axes("workload", tuple(shape), definition, 1.0, dim, alpha_shape)
        n = math.prod(shape[axis] for axis in axes)
        return Workload(
            MULTIPLIER,
            framework,
            device=device,
            dtype=_PRECISIONS[dtype],
            rows=math.prod(size for axis, size in enumerate(shape) if axis not in axes),
            n=n,
            channels=math.prod(alpha_shape),
            needs_gradient=needs_gradient,
            learns_weights=learns_weights,
            threads=threads,
        )
    precision = "float64" if definition.is_wide else _PRECISIONS[dtype]
    is_one_sum = definition.differences >= 0 and definition.side != "both"  # nothing is added up but the product
    converts = framework == "torch" and precision == "float32" != dtype and is_one_sum
    layout = layout_of("workload", tuple(shape), errors.axis("workload", dim, len(shape)), alpha_shape)
    nodes = exponentials(definition, layout.n, precision) if layout.n > SHORTEST else None
    return Workload(
        OP,
        framework,
        device=device,
        dtype=dtype if converts else precision,
        rows=layout.batch * layout.channels * (2 if definition.side == "both" else 1),
        n=layout.n,
        width=layout.width,
        channels=layout.channels,
        exponentials=0 if nodes is None else nodes.states,
        needs_gradient=needs_gradient,
        learns_weights=learns_weights,
        threads=threads,
        converts_to=precision if converts else "",
    )
