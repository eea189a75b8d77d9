"""Workloads of operators, described without data."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Caputo, Definition, FourierMultiplier
from hpfracc_nn.fractional.dispatch import load, shape_of
from hpfracc_nn.fractional.exponentials import SHORTEST, exponentials
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.selection import Workload, probe
from hpfracc_nn.selection.registry import has_probe

OP = "toeplitz"
_PRECISIONS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


def workload(
    shape: Sequence[int],
    definition: Definition | FourierMultiplier | None = None,
    *,
    framework: str,
    dim: int = -1,
    dtype: str = "float32",
    device: str = "cpu",
    needs_gradient: bool = False,
    learns_weights: bool = False,
    threads: int | None = None,
) -> Workload:
    """Return the workload of an operator on data of this shape, for `BackendManager.explain`, `predict` and `plan`.

    The framework's kernels are loaded first, so that there is an answer before the first call.

    Args:
        shape: Shape of the data, [..., n, ...].
        definition: The operator; None is Caputo(0.5), whose workload differs little from that of most others. An
            operator with a time scale is taken in steps (`Definition.in_steps`); side="both" takes twice as many rows.
        framework: "numpy", "torch" or "jax".
        dim: The time axis.
        dtype: Dtype of the data: float16, bfloat16, float32 or float64; that of the computation follows. Torch's half
            precision goes to the kernels unconverted, and is converted for those that do not read it, or for all where
            sums come before or after the product, or the computation is in float64.
        device: Where the data lie.
        needs_gradient: A gradient in the data is wanted.
        learns_weights: A gradient in alpha is wanted.
        threads: How many threads may compute; None is what an operator would use here and now.

    Raises:
        ModuleNotFoundError: The framework is not installed.
        ValueError: There is no such axis, dtype or framework, or alpha does not broadcast to the axes other than time;
            or the definition is a multiplier of periodic signals, for which there is one routine.

    Examples:
        >>> asked = workload((256, 1024), Caputo(0.7), framework="numpy")
        >>> asked.rows, asked.n, asked.dtype
        (256, 1024, 'float32')
        >>> print(BackendManager().explain(asked))
    """
    load("workload", framework)
    definition = Caputo(0.5) if definition is None else definition
    if isinstance(definition, FourierMultiplier):
        raise ValueError(
            f"workload({type(definition).__name__}): needs a definition that has kernels; there is one routine for "
            "multipliers, the FFT, and no choice to ask for."
        )
    if dtype not in _PRECISIONS:
        raise ValueError(f"workload(dtype={dtype!r}): needs one of {', '.join(_PRECISIONS)}; convert the data first.")
    if threads is None:
        threads = probe(framework).threads() if has_probe(framework) else 1
    precision = "float64" if definition.is_wide else _PRECISIONS[dtype]
    is_one_sum = definition.differences >= 0 and definition.side != "both"  # nothing is added up but the product
    converts = framework == "torch" and precision == "float32" != dtype and is_one_sum
    layout = layout_of("workload", tuple(shape), errors.axis("workload", dim, len(shape)), shape_of(definition.alpha))
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
