"""What the tests of the optimizers share: the classes and their bases, small problems, kernels made to run."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpfracc_nn.selection import BackendManager, Kernel, Settings, Workload, kernels
from hpfracc_nn.training import FractionalAdam, FractionalAdamW, FractionalRMSprop, FractionalSGD
from hpfracc_nn.training.torch.optimizers.directions import KINDS

BASES: dict[type, type[torch.optim.Optimizer]] = {
    FractionalSGD: torch.optim.SGD,
    FractionalAdam: torch.optim.Adam,
    FractionalAdamW: torch.optim.AdamW,
    FractionalRMSprop: torch.optim.RMSprop,
}
KERNELS = kernels("history_mix", "torch")
AVERAGES = [
    *({"kind": name} for name, kind in KINDS.items() if "history" in kind.keeps),
    {"kind": "integral", "memory": "exponentials"},
]
OPEN = [options for name in KINDS if not KINDS[name].needs_closure for options in ({"kind": name},)] + AVERAGES[-1:]


def named(options: dict[str, Any]) -> str:
    """Return what a test of these options is called."""
    return "-".join(str(value) for value in options.values())


every_class = pytest.mark.parametrize("cls", BASES, ids=lambda cls: cls.__name__)
every_average = pytest.mark.parametrize("options", AVERAGES, ids=named)
every_open_kind = pytest.mark.parametrize("options", OPEN, ids=named)  # those that need no closure
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


@lru_cache(maxsize=8)
def manager_for(kernel: Kernel) -> BackendManager:
    """Return a manager that runs this kernel or raises."""
    return BackendManager(
        Settings(force_backend=kernel.backend, force_algorithm=kernel.algorithm, calibration="shipped", mode="prior")
    )


def skip_where_refused(kernel: Kernel, dtype: str = "float32") -> None:
    """Skip a test whose kernel does not take the dtype here."""
    reason = kernel.refuses(Workload("history_mix", "torch", dtype=dtype, width=4))
    if reason is not None:
        pytest.skip(reason)


def parameters(shapes: Iterable[tuple[int, ...]] = ((3, 2), (), (4,)), seed: int = 0) -> list[Tensor]:
    """Return standard normal parameters in float64."""
    rng = np.random.default_rng(seed)
    return [torch.nn.Parameter(torch.as_tensor(rng.standard_normal(shape))) for shape in shapes]


def gradients(params: Sequence[Tensor], steps: int, seed: int = 1) -> list[list[Tensor]]:
    """Return standard normal gradients of each step."""
    rng = np.random.default_rng(seed)
    return [[torch.as_tensor(rng.standard_normal(p.shape)).to(p) for p in params] for _ in range(steps)]


def train(cls: type, steps: int, params: Sequence[Tensor] | None = None, **options: Any) -> Any:
    """Return an optimizer after so many steps on a quartic, convex and not quadratic, in the parameters given."""
    optimizer = cls(parameters() if params is None else params, **options)
    for _ in range(steps):
        optimizer.step(quartic(optimizer))
    return optimizer


def quartic(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Return a closure for sum_p sum((p - 1)**2 + (p - 1)**4 / 4) over all parameters; it needs no autograd."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        away = [p.detach() - 1 for p in parameters_of(optimizer)]
        for p, x in zip(parameters_of(optimizer), away, strict=True):
            p.grad = 2 * x + x**3
        return torch.stack([(x.square() + x**4 / 4).sum() for x in away]).sum()

    return closure


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def distance(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> float:
    """Return the largest difference of two optimizers' parameters."""
    pairs = zip(parameters_of(one), parameters_of(other), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)
