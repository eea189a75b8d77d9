"""Short forms that speak to the process-wide manager."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.selection.manager import BackendManager, default_manager, given_manager
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.probe import has_probe, probe
from hpfracc_nn.selection.reporting import ReportRow
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Workload


def configure(**settings: Any) -> None:
    """Change the settings of the process-wide manager; see `BackendManager.configure`.

    Args:
        settings: By name, as there; None restores the default of one.

    Raises:
        TypeError: As there; nothing is changed then.
        ValueError: As there; nothing is changed then.

    Examples:
        >>> configure(force_algorithm="fft")
        >>> default_manager().settings.forced
        "force_algorithm='fft'"
        >>> configure(force_algorithm=None)
    """
    default_manager().configure(**settings)


def report(sites: Iterable[Site] | None = None) -> list[ReportRow]:
    """Return one row per site and plan; of every site of the process-wide manager by default.

    Args:
        sites: Those to report, in their order; None is all.

    Examples:
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5))
        >>> rows = report()
        >>> "toeplitz" in {row.op for row in rows}, round(sum(row.share for row in rows), 6)
        (True, 1.0)
    """
    return default_manager().report(sites)


def choose(
    op: str,
    shape: Sequence[int],
    *,
    framework: str,
    dim: int = -1,
    dtype: str = "float32",
    device: str = "cpu",
    channels: int = 1,
    exponentials: int = 0,
    needs_gradient: bool = False,
    learns_weights: bool = False,
    threads: int | None = None,
    manager: BackendManager | None = None,
) -> Plan:
    """Return the plan for data of this shape, without the data.

    Args:
        op: The operation.
        shape: Of the input; the axes before `dim` are rows, those after it are width.
        framework: Whose arrays.
        dim: The time axis.
        dtype: Of the samples.
        device: Where they lie.
        channels: Distinct weight columns.
        exponentials: How many stand for the weights.
        needs_gradient: A gradient in the input is wanted.
        learns_weights: A gradient in the weights is wanted.
        threads: None asks the framework, and is 1 where that has no probe.
        manager: None is the process-wide one.

    Raises:
        LookupError: No kernel accepts it.
        ValueError: `dim` is not an axis of `shape`.

    Examples:
        >>> pairwise = register(Kernel("total", "numpy", "numpy", "pairwise", run=np.sum))
        >>> # `hpfracc_nn.choose` is for its own operations
        >>> choose("total", (32, 8, 1024), framework="numpy").algorithm
        'pairwise'
        >>> unregister(pairwise)
    """
    if not isinstance(framework, str):
        raise TypeError(f"choose(framework={framework!r}): needs a name as text; pass for example 'torch'.")
    sizes = errors.lengths("choose", "shape", shape)
    found = errors.index("choose", "dim", dim)
    if not -len(sizes) <= found < len(sizes):
        raise ValueError(f"choose(dim={dim}): needs an axis of shape {sizes}.")
    axis = found % len(sizes)
    workload = Workload(
        op,
        framework,
        device=device,
        dtype=dtype,
        rows=math.prod(sizes[:axis]),
        n=sizes[axis],
        width=math.prod(sizes[axis + 1 :]),
        channels=channels,
        exponentials=exponentials,
        needs_gradient=needs_gradient,
        learns_weights=learns_weights,
        threads=(probe(framework).threads() if has_probe(framework) else 1) if threads is None else threads,
    )
    return given_manager("choose", manager).plan(workload)
