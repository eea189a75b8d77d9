"""Trainings over two processes that tests run in processes of their own, each beside the same training in one."""

import copy
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, SplitPoint, pipeline
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInputOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import hpfracc_nn as fnn
from hpfracc_nn import training
from tests.layer_cases import LayerCase, all_cases, tensors

Gradients = dict[str, Tensor]


def cases() -> dict[str, LayerCase]:
    """The first case of each layer, but of those that draw random numbers."""
    return {case.layer.__name__: case for case in reversed(all_cases()) if not case.is_random}


def made(case: LayerCase) -> nn.Module:
    layer: nn.Module = case.make(dtype=torch.float32)
    return layer


def loss_of(layer: nn.Module, case: LayerCase, rank: int) -> Tensor:
    """The loss of what one process sees."""
    found = layer(*case.draw(torch.float32, seed=rank))
    return torch.stack([y.square().mean() for y in tensors(found) if y.is_floating_point()]).sum()


def alone(case: LayerCase) -> Gradients:
    """The gradients of one process that sees what all of them see."""
    layer = made(case)
    torch.stack([loss_of(layer, case, rank) for rank in range(dist.get_world_size())]).mean().backward()
    return {name: parameter.grad for name, parameter in layer.named_parameters() if parameter.grad is not None}


def sharded_1(layer: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(layer, use_orig_params=True, device_id=torch.device("cpu"))


def gradients_1(layer: nn.Module) -> Gradients:
    with FullyShardedDataParallel.summon_full_params(layer, with_grads=True):
        named = {name.replace("_fsdp_wrapped_module.", ""): each for name, each in layer.named_parameters()}
        return {name: each.grad.clone() for name, each in named.items() if each.grad is not None}


def values_1(layer: nn.Module) -> Gradients:
    with FullyShardedDataParallel.summon_full_params(layer):
        return {name: each.detach().clone() for name, each in layer.named_parameters()}


def sharded_2(layer: nn.Module) -> nn.Module:
    fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return layer


def gradients_2(layer: nn.Module) -> Gradients:
    return {
        name: parameter.grad.full_tensor()  # type: ignore[attr-defined]
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }


def copied(layer: nn.Module) -> nn.Module:
    return DistributedDataParallel(layer)


def gradients_copied(layer: nn.Module) -> Gradients:
    named = {name.removeprefix("module."): each for name, each in layer.named_parameters()}
    return {name: each.grad for name, each in named.items() if each.grad is not None}


WAYS: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[nn.Module], Gradients]]] = {
    "FSDP1": (sharded_1, gradients_1),
    "FSDP2": (sharded_2, gradients_2),
    "DDP": (copied, gradients_copied),
}


def gradients(way: str) -> Any:
    """Return for each layer how far its gradients are from those of one process, and what its loss is after a step."""
    shard, read = WAYS[way]
    found = {}
    for name, case in cases().items():
        expected, layer = alone(case), shard(made(case))
        loss_of(layer, case, dist.get_rank()).backward()
        each = read(layer)
        assert set(each) == set(expected), (set(each), set(expected))
        scale = max(float(value.abs().max()) for value in expected.values())
        error = max(float((each[key] - value).abs().max()) for key, value in expected.items()) / scale
        torch.optim.Adam(layer.parameters(), lr=1e-2).step()
        found[name] = [error, float(loss_of(layer, case, dist.get_rank()))]
    return found


def whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach()


def found_by(layer: Any, given: tuple[Any, ...]) -> list[Tensor]:
    """Return a layer's results at leaves `given`, and the gradients of a loss in these and in the parameters."""
    layer.zero_grad()
    results = [y for y in tensors(layer(*given)) if y.is_floating_point()]
    torch.stack([whole_loss(y) for y in results]).sum().backward()
    leaves = [each for each in (*given, *layer.parameters()) if isinstance(each, Tensor) and each.requires_grad]
    gradients = [each.grad for each in leaves]
    return [whole(each) for each in (*results, *gradients) if each is not None]


def whole_loss(y: Tensor) -> Tensor:
    found = (y - 1).square().sum()
    return found.full_tensor() if isinstance(found, DTensor) else found


def leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x


def apart(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Return the largest error, relative to the largest value of its tensor."""
    pairs = list(zip(found, wanted, strict=True))
    return max(float((one - other).abs().max() / other.abs().max().clamp(min=1e-300)) for one, other in pairs)


def batch_axes(case: LayerCase) -> list[int | None]:
    """Return for each input of a case the axis that its batch is on."""
    found: list[int | None] = []
    for few, many in zip(case.draw(batch=2), case.draw(batch=4), strict=True):
        shapes = [each.shape if isinstance(each, Tensor) else () for each in (few, many)]
        found.append(next((axis for axis, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b), None))
    return found


def on_mesh(_: str = "") -> dict[str, dict[str, Any]]:
    """Return for each layer, with its batch cut and whole, how far it is from one process, or what it raises."""
    mesh, found = init_device_mesh("cpu", (dist.get_world_size(),)), {}
    for name, case in cases().items():
        layer, axes = case.make(), batch_axes(case)
        given = case.draw(batch=4)
        wanted = found_by(layer, tuple(map(leaf, given)))
        errors: dict[str, Any] = {}
        for kind in ("cut", "whole"):
            parts = []
            for x, axis in zip(map(leaf, given), axes, strict=True):
                if axis is not None:
                    spread = distribute_tensor(x.detach(), mesh, [Shard(axis) if kind == "cut" else Replicate()])
                    x = spread.requires_grad_(x.requires_grad)
                parts.append(x)
            try:
                errors[kind] = apart(found_by(layer, tuple(parts)), wanted)
            except (TypeError, ValueError) as error:
                errors[kind] = f"{type(error).__name__}: {error}"
        found[name] = errors
    return found


def operators_on_mesh(_: str = "") -> dict[str, Any]:
    """Return errors of operators on DTensors that are cut along each axis, orders and compiled calls among them."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    x = torch.randn(3, 4, 41, dtype=torch.float64)
    layers = {
        "one order": fnn.FractionalLayer(0.6, learn_alpha=True, dtype=torch.float64),
        "an order for each channel": fnn.FractionalLayer([0.2, 0.4, 0.6, 0.7], learn_alpha=True, dtype=torch.float64),
        "fixed orders": fnn.FractionalLayer([0.2, 0.4, 0.6, 0.7]),
        "both sides": fnn.FractionalLayer(fnn.Caputo(0.6, side="both").alpha, fnn.Caputo(0.6, side="both")),
    }
    for name, layer in layers.items():
        wanted = found_by(layer, (leaf(x),))
        for placement in (Shard(0), Shard(1), Shard(2)):
            given = distribute_tensor(x, mesh, [placement]).requires_grad_()
            found[f"{name}, {placement}"] = apart(found_by(layer, (given,)), wanted)
    layer = layers["an order for each channel"]
    wanted = found_by(layer, (leaf(x),))
    spread = distribute_module(copy.deepcopy(layer), mesh)
    given = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    found["a distributed order"] = apart(found_by(spread, (given,)), wanted)
    terms = DTensor.from_local(x / mesh.size(), mesh, [Partial()], run_check=False)
    found["terms of a sum"] = apart(found_by(layer, (terms,)), [wanted[0], wanted[2]])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    given = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
    found["compiled"] = apart(found_by(compiled, (given,)), wanted)
    found["derivative"] = apart(
        [whole(fnn.distributed.derivative(given, fnn.Caputo(0.6)))], [fnn.derivative(x, fnn.Caputo(0.6))]
    )
    found["refused"] = message(lambda: spread(x))
    return found


def message(call: Callable[[], Any]) -> str:
    """Return the class and text of what a call raises."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


class Narrow(nn.Module):
    """Features go through a wide layer, whose derivative is taken, along the second axis."""

    def __init__(self, middle: nn.Module):
        super().__init__()
        self.up, self.middle, self.down = nn.Linear(3, 4).double(), middle, nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.middle(self.up(x)))
        return found


def in_parallel(_: str = "") -> dict[str, float]:
    """Return errors of tensor parallel plans around layers with an order, and of plans that cut their weights."""
    mesh, found = init_device_mesh("cpu", (dist.get_world_size(),)), {}
    cut = Shard(-1)
    styles = {
        "input and output": PrepareModuleInputOutput(
            input_layouts=cut, desired_input_layouts=cut, output_layouts=cut, desired_output_layouts=cut
        ),
        "a layer between": None,
        "its own weights": None,
    }
    for name, style in styles.items():
        torch.manual_seed(0)
        middle: nn.Module = fnn.FractionalLayer(0.4, "grunwald_letnikov", dim=-2, learn_alpha=True, dtype=torch.float64)
        if name == "its own weights":
            middle = fnn.FractionalLinear(4, 4, alpha=0.4, learn_alpha=True, dtype=torch.float64)
        net: nn.Module = Narrow(middle)
        x = torch.randn(2, 30, 3, dtype=torch.float64)
        wanted = found_by(net, (leaf(x),))
        plan: dict[str, Any] = {"up": ColwiseParallel(use_local_output=style is not None)}
        plan |= {"middle": style} if style is not None else {}
        if name == "its own weights":
            for key, placement in (("weight", Shard(1)), ("bias", Replicate())):
                value = getattr(middle, key).detach()
                middle.register_parameter(key, nn.Parameter(distribute_tensor(value, mesh, [placement])))
            plan["down"] = RowwiseParallel(input_layouts=Replicate())
        else:
            plan["down"] = RowwiseParallel()
        net = parallelize_module(net, mesh, plan)
        got = found_by(net, (leaf(x),))
        found[name] = apart(got, wanted)
    return found


def in_stages(_: str = "") -> dict[str, float]:
    """Return errors of gradients of a pipeline: of stages made by hand, and of those that torch cuts a model into."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = {}
    for name in ("by hand", "traced"):
        torch.manual_seed(0)
        layers = [fnn.FractionalLayer(0.4, learn_alpha=True), fnn.FractionalConv1d(3, 3, 2, learn_alpha=True)]
        net = nn.Sequential(*layers).double()
        torch.manual_seed(1)
        x = torch.randn(4, 3, 20, dtype=torch.float64)
        net(x).square().mean().backward()
        wanted = [each.grad for each in layers[rank].parameters()]
        net.zero_grad()
        if name == "by hand":
            stage: Any = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
        else:
            cut = pipeline(net, mb_args=(x[:2],), split_spec={"1": SplitPoint.BEGINNING})
            stage = cut.build_stage(rank, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, _: y.square().mean())
        schedule.step(*([x] if rank == 0 else []), target=x if rank == size - 1 else None)
        got = [each.grad for each in stage.submod.parameters()]
        found[name] = apart(got, wanted)  # type: ignore[arg-type]
    return found


def saved(way: str, folder: str, train: str) -> dict[str, float]:
    """Return the orders and a sum of the weights after a step, with an optimizer, saved; or of what was loaded."""
    net = nn.Sequential(
        fnn.FractionalLayer([0.2, 0.4, 0.6], learn_alpha=True, dim=1),
        nn.Linear(3, 5),
        fnn.FractionalLayer(1.4, "grunwald_letnikov", learn_alpha=True, dim=1),
    )
    torch.manual_seed(int(train))
    cast(nn.Linear, net[1]).reset_parameters()
    model = WAYS[way][0](net)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if way == "FSDP2":  # the first version gathers only what has the shape of a parameter
        optimizer = training.FractionalAdam(model.parameters(), lr=1e-2, alpha=0.7, memory=4)
    state: dict[str, Any]
    if train == "1":
        for _ in range(3):
            optimizer.zero_grad()
            torch.manual_seed(5)
            model(torch.randn(2, 12, 3)).square().mean().backward()
            optimizer.step()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    else:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    optimizer.zero_grad()  # and go on
    torch.manual_seed(6)
    model(torch.randn(2, 12, 3)).square().mean().backward()
    optimizer.step()
    after = values_1(model) if way == "FSDP1" else {name: whole(each) for name, each in model.named_parameters()}
    return {name: float(each.double().abs().sum()) for name, each in after.items()}


STEPS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (training.FractionalSGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "SGD, differences": (training.FractionalSGD, {"kind": "difference"}),
    "SGD, fcgd": (training.FractionalSGD, {"kind": "fcgd"}),
    "SGD, caputo": (training.FractionalSGD, {"kind": "caputo"}),
    "SGD, caputo_terminal": (training.FractionalSGD, {"kind": "caputo_terminal"}),
    "Adam": (training.FractionalAdam, {"amsgrad": True}),
    "AdamW, exponentials": (training.FractionalAdamW, {"memory": "exponentials"}),
    "RMSprop": (training.FractionalRMSprop, {"centered": True}),
}


def optimizers(_: str = "") -> dict[str, float]:
    """Return how far parameters that are DTensors are from those of one process after some steps of each optimizer.

    Halfway another optimizer takes over the state.
    """
    mesh, found = init_device_mesh("cpu", (dist.get_world_size(),)), {}
    shapes = {"rows": (5, 3), "columns": (2, 4), "whole": (3,), "one number": (1,), "plain": (4,)}
    places = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate(), "one number": Shard(0)}
    for name, (kind, options) in STEPS.items():
        torch.manual_seed(0)
        begin = {key: torch.randn(shape, dtype=torch.float64) for key, shape in shapes.items()}
        aims = {key: torch.randn(shape, dtype=torch.float64) for key, shape in shapes.items()}

        def laid(key: str, value: Tensor) -> Tensor:
            return distribute_tensor(value, mesh, [places[key]]) if key in places else value

        def steps(parameters: dict[str, nn.Parameter], optimizer: Any, are_spread: bool) -> None:
            def closure() -> float:
                for key, p in parameters.items():
                    grad = whole(p) - aims[key]  # noqa: B023
                    if key == "rows" and name == "SGD, caputo":  # noqa: B023
                        grad[:3] = 0  # what the first process has does not move
                    if key == "whole" and are_spread:
                        p.grad = DTensor.from_local(grad / mesh.size(), mesh, [Partial()])
                    else:
                        p.grad = laid(key, grad) if are_spread else grad
                return 0.0

            for _ in range(6):
                optimizer.step(closure)

        plain = {key: nn.Parameter(value.clone()) for key, value in begin.items()}
        spread = {key: nn.Parameter(laid(key, value.clone())) for key, value in begin.items()}
        options = {"lr": 0.1, "alpha": 0.6, "memory": 4} | options
        one, other = kind(plain.values(), **options), kind(spread.values(), **options)
        steps(plain, one, False)
        steps(spread, other, True)
        again = kind(spread.values(), **options)
        again.load_state_dict(copy.deepcopy(other.state_dict()))
        steps(plain, one, False)
        steps(spread, again, True)
        found[name] = apart([whole(each) for each in spread.values()], [each.detach() for each in plain.values()])
    return found


def logged(way: str) -> Any:
    """Return what `AlphaLogger` has kept in this process of orders that lie over both."""
    import lightning.pytorch as pl

    from hpfracc_nn.training import AlphaLogger
    from hpfracc_nn.training.torch.alpha_logger import learned_orders

    layers = nn.Sequential(
        fnn.FractionalLayer(0.4, learn_alpha=True),
        fnn.FractionalLayer([0.2, 0.4, 0.6], learn_alpha=True),
        fnn.FractionalLayer(fnn.ProbabilisticAlpha(0.3, std=0.05)),
    )
    model, logger = WAYS[way][0](layers), AlphaLogger()
    logger._orders = learned_orders(layers)
    # Lightning's own strategies for FSDP want CUDA; the callback reads no more of a trainer than this.
    trainer = SimpleNamespace(model=model, is_global_zero=dist.get_rank() == 0, current_epoch=0)
    logger._note(cast(pl.Trainer, trainer), 0)
    rows = logger.history()
    return {"names": [row.name for row in rows], "alphas": [row.alpha for row in rows]}


def several(*names: str) -> dict[str, Any]:
    """Return what some programs return, by name."""
    return {name: PROGRAMS[name]() for name in names}


PROGRAMS: dict[str, Callable[..., Any]] = {
    program.__name__: program
    for program in (gradients, logged, on_mesh, operators_on_mesh, in_parallel, in_stages, optimizers, saved, several)
}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    result = PROGRAMS[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write("\n" + json.dumps(result))
    dist.destroy_process_group()
