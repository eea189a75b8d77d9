"""A product on made-up data, by which a kernel compiles what calls of a workload need: see `register_rehearsal`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch

from hpfracc_nn.fractional.boundary import Boundary, boundary_of
from hpfracc_nn.fractional.linear import Column, StateSpace
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch.tiles import multiplied, step_of
from hpfracc_nn.selection import Plan, Workload, register_rehearsal


class ZeroWeights:
    """Weights of zeros, in the sizes of a workload, which stand in for `weights.Weights` where a kernel is compiled.

    What is compiled does not depend on their values.
    """

    def __init__(self, workload: Workload):
        self._workload = workload
        self._place = {"dtype": getattr(torch, workload.converted.dtype), "device": torch.device(workload.device)}

    def column(self) -> Column:
        """Return a column of zeros, [channels, n], in place of `Weights.column`."""
        return Column(torch.zeros(self._workload.channels, self._workload.n, **self._place))

    def chunks(self, length: int) -> StateSpace:
        """Return a state space model of zeros over chunks of `length` samples, in place of `Weights.chunks`."""
        channels = self._workload.channels
        states = max(1, self._workload.exponentials) if self._workload.n > length else 1
        decay = torch.zeros(states, dtype=torch.float64, device=self._place["device"])
        intra, C = (torch.zeros(channels, rows, length, **self._place) for rows in (length, states))
        return StateSpace(intra, C, torch.zeros(length, states, **self._place), (decay,))


def rehearse(plan: Plan) -> None:
    """Run a plan's kernel on zeros, forward, and backward where the workload wants a gradient."""
    kernel = plan.kernel
    workload = kernel.given(plan.workload)
    shape = workload.rows // workload.channels, workload.channels, workload.n, workload.width
    if 0 in shape:
        return
    place = {"dtype": getattr(torch, workload.dtype), "device": torch.device(workload.device)}
    with torch.no_grad():
        x, y = torch.zeros(shape, **place), torch.empty(shape, **place)  # type: ignore[call-overload]
        operator = kernel.prepare(ZeroWeights(workload), workload)
        for each, boundary in product(_on_each_device(plan), _boundaries(workload)):
            step_of(each, "run")(operator, boundary, shape, x, y)
            if workload.needs_gradient:
                step_of(each, "adjoint")(operator, boundary, shape, x, y)
            if workload.learns_weights:
                inner = kernel.inner or partial(multiplied, step_of(each, "run"))
                inner(operator, boundary, shape, x, y)


def _boundaries(workload: Workload) -> list[Boundary]:
    """Return boundaries without columns, for 0, 1 and 2 differences: some kernels are compiled for that number.

    In all of them the first sample is subtracted, so that what only this needs is loaded too.
    """
    dtype = getattr(torch, workload.converted.dtype)
    stencils = [Stencil(workload.n, lambda lags: np.zeros(lags.size), differences, True) for differences in (0, 1, 2)]
    return [boundary_of(stencil, None, dtype) for stencil in stencils]


def _on_each_device(plan: Plan) -> list[Plan]:
    """Return [plan], or where it names several devices a copy for each of them alone.

    Otherwise a device might get no part of a small call, and the kernel would not be compiled for it.
    """
    return [replace(plan, devices=(device,)) for device in plan.devices] or [plan]


register_rehearsal("toeplitz", "torch", rehearse)
