"""The public operators on series over several processes: slices of a process group, and DTensors."""

from __future__ import annotations

from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.distributed.torch.ranks import Group, applied
from hpfracc_nn.fractional.definitions import Alpha, Definition, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.definitions.definition import check_definition
from hpfracc_nn.fractional.operator import integral_of
from hpfracc_nn.fractional.torch.operator import checked_alpha
from hpfracc_nn.fractional.torch.parameters import is_spread
from hpfracc_nn.selection import BackendManager, given_manager


def derivative(
    x: Tensor,
    definition: Definition,
    *,
    dt: float = 1.0,
    dim: int = -1,
    group: Group = None,
    manager: BackendManager | None = None,
) -> Tensor:
    """Return this process's slice of the fractional derivative of a series that lies over a group's processes.

    The slices, joined along `dim` in the order of the ranks, are the series. The result is the slice of what
    `fractional.derivative` returns for the whole: to 1e-12 of its largest value in float64 up to 8192 samples, to 1e-11
    above, and to 1e-6 in float32, gradients to 2.5e-6 (1.5e-5 at order 0; docs/scale.md has the exceptions). What is
    sent does not depend on the length: about 80 numbers in float64 for each signal, once in the forward and once in the
    backward pass.

    All processes of the group must make the call, and where gradients are wanted all must go backward through it, also
    a process whose loss does not depend on its result. The gradient in x is that of the sum of all processes' losses;
    that in an alpha with a gradient is too, complete on every process, so that no further sum over them is to be taken.
    Second derivatives are refused.

    A DTensor says itself how it lies: cut along time it is such a series, and along other axes every process computes
    its part of the series alone. The result lies as `x` does, and the gradient in alpha is complete again.

    Args:
        x: This process's slice, [..., n, ...]; real, floating. The lengths n may differ, and some may be 0; dtype and
            all other sizes must not. Or a DTensor, all of the series.
        definition: As in `fractional.derivative`, and equal on all processes: one whose weights are a sum of decaying
            exponentials, which power laws have where all orders lie on one side of 1.
        dt: Spacing of the samples, in the caller's time unit; positive.
        dim: The time axis.
        group: A group of `torch.distributed`, any backend; None is the default group, of all processes. None for a
            DTensor, which has a mesh.
        manager: Who chooses the kernel; None is the process-wide BackendManager.

    Returns:
        Same shape, dtype and device as `x`; units of x / time**alpha.

    Raises:
        TypeError: `x` is no dense floating tensor, or `definition` is none; or a DTensor comes with a group.
        ValueError: `dt` is not positive, `dim` no axis, the definition has no such exponentials, or the slices do not
            fit together. What one process refuses is an error on all.
        RuntimeError: There is no process group, or the exchange failed, at the latest after the group's timeout.

    Source: Sun et al., LASP-2 (2025), arXiv:2502.07563, for one all-gather of states along the sequence.

    Examples:
        >>> definition, x = Caputo(0.6), torch.randn(8, 3, 100)  # on each of two processes
        >>> y = derivative(x, definition, dt=0.01)  # doctest: +SKIP
    """
    owner = "distributed.derivative"
    check_definition(owner, definition)
    return _applied(owner, x, definition, dt, dim, manager, group)


def integral(
    x: Tensor,
    alpha: Alpha | RiemannLiouvilleIntegral,
    *,
    dt: float = 1.0,
    dim: int = -1,
    group: Group = None,
    manager: BackendManager | None = None,
) -> Tensor:
    """Return this process's slice of the Riemann-Liouville integral of a series that lies over a group's processes.

    Args:
        x: As in `derivative`, where more is said.
        alpha: The order, in [0, 2], or a RiemannLiouvilleIntegral.
        dt: As in `derivative`.
        dim: As in `derivative`.
        group: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape, dtype and device as `x`; units of x * time**alpha.

    Raises:
        TypeError: As in `derivative`; or `alpha` is a definition that is no integral.
        ValueError: As in `derivative`; or alpha is outside [0, 2].
        RuntimeError: As in `derivative`.

    Source: that of `fractional.integral` and of `derivative`.

    Examples:
        >>> x = torch.randn(8, 3, 100)  # on each of two processes
        >>> y = integral(x, 0.5, dt=0.01)  # doctest: +SKIP
    """
    owner = "distributed.integral"
    definition = integral_of(owner, alpha)
    return _applied(owner, x, definition, dt, dim, manager, group)


def _applied(
    owner: str, x: Tensor, definition: Definition, dt: float, dim: int, manager: BackendManager | None, group: Group
) -> Tensor:
    site = given_manager(owner, manager).shared_site("toeplitz", "torch", "functions")
    if not is_spread(x):
        return applied(owner, x, lambda: definition, dt, dim, site, group)
    from hpfracc_nn.distributed.torch.meshes import operated  # torch.distributed.tensor is there, since x is such

    if group is not None:
        raise TypeError(f"{owner}(x: DTensor, group): needs no group, because a DTensor has a mesh; leave it out.")
    alpha = None if definition.is_fixed else checked_alpha(owner, definition)
    return operated(owner, x, definition, alpha, errors.positive_step(owner, dt), dim, site)
