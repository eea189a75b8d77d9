"""Programs that each process of a group runs, for tests/test_time_ranks.py: `python -m tests.rank_programs NAME JSON`.

The first process prints what all of them found, as JSON, in the last line.
"""

from __future__ import annotations

import copy
import datetime
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpfracc_nn import distributed
from hpfracc_nn.fractional.definitions import DEFINITIONS, Caputo, GrunwaldLetnikov
from hpfracc_nn.layers.torch import FractionalLayer, FractionalLinear

DT = 0.5


def series(n: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return noise, a walk, a wave far from zero and a jump, [2, 2, n]."""
    noise = torch.randn(2, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    t = torch.arange(n, dtype=torch.float64)
    rows = [noise[0], 5 + noise[1].cumsum(0), 20 + torch.sin(t / 9), (t == 1).to(t.dtype)]
    return torch.stack(rows).reshape(2, 2, n).to(dtype)


def apart(found: Tensor, wanted: Tensor, part: slice = slice(None)) -> float:
    """Return the largest error of a slice of the last axis, relative to the largest value of its row in all slices."""
    if not found.numel():
        return 0.0
    largest = wanted.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    return float(((found - wanted[..., part]).abs() / largest).detach().max())


def compared(case: dict[str, Any]) -> list[float]:
    """Return the errors of y, of the gradient in x, and in alpha where it is learned, on this process."""
    rank, dtype, lengths = dist.get_rank(), getattr(torch, case["dtype"]), case["lengths"]
    begin = sum(lengths[:rank])
    part = slice(begin, begin + lengths[rank])
    kind, options = DEFINITIONS[case["definition"]], {"side": case.get("side", "left")}
    options = {} if case["definition"] == "riesz" else options
    x = series(sum(lengths), dtype)
    # Noise: of a gradient far from zero the differences leave single precision few digits, in one process too.
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    alpha: Any = case["alpha"]
    if case["learn"]:
        alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    definition = kind(alpha, case["scheme"], case.get("bounds"), **options)
    learned = [alpha] if case["learn"] else []
    own = x[..., part].clone().requires_grad_()
    exact = x.double().requires_grad_()  # in single precision one process is itself 1e-6 off, its gradient 2e-6
    exactly = kind(case["alpha"], case["scheme"], case.get("bounds"), **options)(exact, dt=DT)
    wanted_gradients = torch.autograd.grad((exactly * g.double()).sum(), [exact])
    if learned:
        wanted_gradients += torch.autograd.grad((definition(x, dt=DT) * g).sum(), learned)
    found = distributed.derivative(own, definition, dt=DT)
    gradients = torch.autograd.grad((found * g[..., part]).sum(), [own, *learned])
    assert found.dtype == dtype
    errors = [apart(found, exactly, part), apart(gradients[0], wanted_gradients[0], part)]
    return errors + [
        apart(one[None], other[None]) for one, other in zip(gradients[1:], wanted_gradients[1:], strict=True)
    ]


def all_compared(cases: list[dict[str, Any]]) -> list[list[float]]:
    """Return the errors of every case, the largest of all processes."""
    found = []
    for case in cases:
        errors = torch.tensor(compared(case), dtype=torch.float64)
        dist.all_reduce(errors, dist.ReduceOp.MAX)
        found.append(errors.tolist())
    return found


def sent(lengths: list[int]) -> list[list[int]]:
    """Return the bytes that this process sends forward and backward, for slices of each length."""
    counted: list[int] = []

    def counting(name: str, at: int) -> None:
        plain = getattr(dist, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counted.append(arguments[at].numel() * arguments[at].element_size())
            return plain(*arguments, **options)

        setattr(dist, name, call)

    counting("all_gather", 1)
    counting("all_to_all_single", 1)
    counting("all_reduce", 0)
    found = []
    for n in lengths:
        counted.clear()
        alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
        x = torch.randn(3, n, requires_grad=True)
        distributed.derivative(x, Caputo(alpha), dt=DT).sum().backward()
        found.append(list(counted))
    return found


def message(call: Callable[[], Any]) -> str:
    """Return the class and text of what a call raises."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def refused(_: Any) -> dict[str, list[str]]:
    """Return, for calls that do not fit, what every process raises."""
    rank = dist.get_rank()
    x, definition = torch.randn(2, 30 + rank, dtype=torch.float64), GrunwaldLetnikov(0.4)
    none: Any = [1.0]

    def other(value: Any, rest: Any) -> Any:
        return value if rank == 1 else rest

    def under_no_grad() -> Any:
        with torch.set_grad_enabled(rank == 0):
            return distributed.derivative(x.clone().requires_grad_(), definition)

    def twice() -> Any:
        given = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(distributed.derivative(given, definition).square().sum(), given, create_graph=True)
        return g.sum().backward()

    calls: dict[str, Callable[[], Any]] = {
        "rows": lambda: distributed.derivative(other(x[:1], x), definition),
        "dtype": lambda: distributed.derivative(other(x.float(), x), definition),
        "axis": lambda: distributed.derivative(x[:, :2], definition, dim=other(0, 1)),
        "order": lambda: distributed.derivative(x, other(GrunwaldLetnikov(0.5), definition)),
        "no samples": lambda: distributed.derivative(other(none, x), definition),
        "dt": lambda: distributed.derivative(x, definition, dt=-1.0),
        "wide": lambda: distributed.derivative(x, GrunwaldLetnikov(torch.tensor(0.4), bounds=(0, 2))),
        "no group": lambda: distributed.derivative(x, definition, group=none),
        "integral": lambda: distributed.integral(x, definition),  # type: ignore[arg-type]
        "no grad": under_no_grad,
        "second derivatives": twice,
        "state": lambda: FractionalLayer(0.4).split_time().run(x),
    }
    found = {}
    for name, call in calls.items():
        texts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(texts, message(call))
        found[name] = texts
    return found


def lost(_: Any) -> str:
    """Return what the first process raises where the other one makes no call."""
    if dist.get_rank() == 1:
        os._exit(0)
    return message(lambda: distributed.derivative(torch.randn(2, 30), GrunwaldLetnikov(0.4)))


def layers(_: Any) -> dict[str, float]:
    """Return errors of layers over ranks, the largest of all processes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [40 + 7 * k for k in range(size)]
    part = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
    x = series(sum(lengths), torch.float64)
    options: dict[str, Any] = {"dtype": torch.float64}
    found = {}
    made: dict[str, tuple[Any, Tensor, int]] = {
        "one order": (FractionalLayer(0.4, learn_alpha=True, **options), x, -1),
        "channels": (FractionalLayer([0.3, 0.6], learn_alpha=True, channels=2, **options), x, -1),
        "fixed channels": (FractionalLayer([0.3, 0.6], "riemann_liouville", channels=2), x, -1),
        "time first": (FractionalLayer(0.4, dim=0, learn_alpha=True, **options), x.movedim(-1, 0), 0),
        "linear": (FractionalLinear(2, 3, alpha=0.4, learn_alpha=True, **options), x.transpose(1, 2), 1),
    }
    for name, (layer, whole, dim) in made.items():
        for parameter in layer.parameters():
            dist.broadcast(parameter.data, 0)
        split = copy.deepcopy(layer).split_time()
        split = copy.deepcopy(split)
        own = whole.movedim(dim, -1)[..., part].movedim(-1, dim).clone().requires_grad_()
        whole = whole.clone().requires_grad_()
        y, wanted = split(own), layer(whole)
        wanted.square().sum().backward()
        y.square().sum().backward()
        assert own.grad is not None
        assert whole.grad is not None
        pairs = ((y, wanted), (own.grad, whole.grad))
        errors = [apart(one.detach().movedim(dim, -1), other.detach().movedim(dim, -1), part) for one, other in pairs]
        for (which, one), other in zip(split.named_parameters(), layer.parameters(), strict=True):
            if "order" not in which:
                dist.all_reduce(one.grad)
            errors.append(apart(one.grad.reshape(1, -1), other.grad.reshape(1, -1)))
        largest = torch.tensor(max(errors), dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        found[name] = float(largest)
    return found


def one_sided(_: Any) -> list[float]:
    """Return alpha's gradient on each process, and that of one process, where only the last rank's x has a gradient."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = series(60 * size, torch.float64)
    alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    own = x[..., 60 * rank : 60 * (rank + 1)].clone().requires_grad_(rank == size - 1)
    (distributed.derivative(own, Caputo(alpha)).square().sum() * (rank == 0)).backward()
    wanted = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    Caputo(wanted)(x)[..., :60].square().sum().backward()
    assert alpha.grad is not None
    assert wanted.grad is not None
    gradients = [torch.zeros((), dtype=torch.float64) for _ in range(size)]
    dist.all_gather(gradients, alpha.grad)
    return [*map(float, gradients), float(wanted.grad)]


def surrounded(_: Any) -> dict[str, list[float]]:
    """Return the errors of y and of the gradient in x, by what the call or its backward pass stands in."""
    rank, found = dist.get_rank(), {}
    for n in (1500, 10):  # short slices have no product inside
        x = series(2 * n, torch.float32)
        part = slice(n * rank, n * (rank + 1))
        whole = x.double().requires_grad_()
        exact = Caputo(0.55)(whole)
        (wanted,) = torch.autograd.grad(2 * exact.sum(), whole)

        with torch.inference_mode():
            found[f"inference, {n}"] = [apart(distributed.derivative(x[..., part], Caputo(0.55)), exact, part)]
        own = x[..., part].clone().requires_grad_()
        y = distributed.derivative(own, Caputo(0.55))
        y *= 2  # as one process's result may be changed
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y.sum().backward()
        assert own.grad is not None
        found[f"backward under autocast, {n}"] = [apart(y / 2, exact, part), apart(own.grad, wanted, part)]
    return found


def several(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what several of these programs return, which so are started once."""
    return {name: globals()[name](argument) for name, argument in arguments.items()}


def main(name: str, argument: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    found = globals()[name](json.loads(argument))
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    if name != "lost":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
