"""The calls of this package that are timed: the public ones, and the planned kernel without what surrounds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from timing import torch_threads
from torch import Tensor

from hpfracc_nn import BackendManager, Caputo, Definition, GrunwaldLetnikov, derivative
from hpfracc_nn.fractional.torch.linear_map import LinearMap, Toeplitz
from hpfracc_nn.fractional.torch.weights import weights_of
from hpfracc_nn.selection import Kernel, Settings, kernels, this_machine

NAMES = {"grunwald_letnikov": GrunwaldLetnikov, "caputo l1_2": Caputo}


def planner() -> BackendManager:
    """Return a manager that plans by the estimate alone: one kernel from the first call on, whatever it compiles."""
    return BackendManager(Settings(mode="prior"))


def calibrate(threads: int = 1) -> None:
    """Calibrate the estimate before the allocator is changed: plans are then those of a user's process."""
    derivative(signals(2), Caputo(0.5), manager=planner())  # registers torch's probe, and NumPy's
    with torch_threads(threads):
        for dtype in ("float32", "float64"):
            this_machine().rates("torch", "cpu", dtype)
            this_machine().rates("numpy", "cpu", dtype)


def definitions(alpha: float) -> dict[str, Definition]:
    """Return what is measured, by name, with a fixed order."""
    return {name: kind(alpha) for name, kind in NAMES.items()}


def learned(definition: Definition, alpha: Tensor) -> Definition:
    """Return the same operator with the tensor `alpha` for its order."""
    return replace(definition, alpha=alpha, bounds=(0, 1))


def signals(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normal samples, the same ones each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def public(x: Tensor, definition: Definition, manager: BackendManager, dim: int = -1) -> Callable[[], Tensor]:
    """The public call, all checks included."""
    return lambda: derivative(x, definition, dim=dim, manager=manager)


def product_alone(x: Tensor, definition: Definition, manager: BackendManager, dim: int = -1) -> Callable[[], Tensor]:
    """The difference pass and the planned kernel, without checks, manager and autograd."""
    product, data = planned_product(x, definition, manager, dim)
    return lambda: product.forward(data)


def product_both_ways(
    x: Tensor, g: Tensor, definition: Definition, manager: BackendManager, dim: int = -1
) -> Callable[[], object]:
    """The same, and its adjoint on the gradient `g`."""
    product, data = planned_product(x.detach().requires_grad_(), definition, manager, dim)
    data, grads = data.detach(), g.reshape(data.shape)
    return lambda: (product.forward(data), product.backward(None, grads, None, True))


def planned_product(
    x: Tensor, definition: Definition, manager: BackendManager, dim: int = -1
) -> tuple[LinearMap, Tensor]:
    """Return what a public call on x runs under the settings of `manager`, and x as it is handed over.

    For a fixed alpha that all signals share.
    """
    fresh = BackendManager(manager.settings)  # so that it has the one plan
    derivative(x, definition, dim=dim, manager=fresh)
    (site,) = fresh.sites()
    (plan,) = site.plans()
    axis = dim % x.ndim
    n, batch = x.shape[axis], x.shape[:axis].numel()
    weights = weights_of(definition, n, 1.0, x.dtype, x.device)
    form = plan.kernel.prepare(weights, plan.workload)
    data = x.reshape(batch, 1, n, -1)
    product = Toeplitz(form, weights.boundary, (batch, 1, n, data.shape[3]), lambda: weights)
    return LinearMap(site, plan, product), data


def planned_kernel(x: Tensor, definition: Definition, manager: BackendManager, dim: int = -1) -> str:
    """Return the name of the kernel that a public call on x runs under the settings of `manager`."""
    return planned_product(x, definition, manager, dim)[0].plan.kernel.name


def kernel_of(manager: BackendManager) -> str:
    """Return the names of the kernels that the manager planned, most used first."""
    return ", ".join(dict.fromkeys(f"{row.backend}/{row.algorithm}" for row in manager.report()))


def forced_managers() -> dict[str, BackendManager]:
    """Return for each kernel of the product on torch tensors a manager that plans nothing else."""
    return {kernel.name: _forced(kernel) for kernel in kernels("toeplitz", "torch")}


def _forced(kernel: Kernel) -> BackendManager:
    return BackendManager(Settings(mode="prior", force_backend=kernel.backend, force_algorithm=kernel.algorithm))


def both_ways(call: Callable[[], Tensor], inputs: Sequence[Tensor], g: Tensor) -> Callable[[], object]:
    """Return `call` and then the gradient in `inputs` for the gradient `g` of its result."""
    return lambda: torch.autograd.grad(call(), inputs, g)
