"""Trainings over two processes that tests run in processes of their own, each beside the same training in one."""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import hpfracc_nn as fnn
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


def sharded_2(layer: nn.Module) -> nn.Module:
    fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return layer


def gradients_2(layer: nn.Module) -> Gradients:
    return {
        name: parameter.grad.full_tensor()  # type: ignore[attr-defined]
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }


WAYS: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[nn.Module], Gradients]]] = {
    "FSDP1": (sharded_1, gradients_1),
    "FSDP2": (sharded_2, gradients_2),
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


PROGRAMS: dict[str, Callable[..., Any]] = {program.__name__: program for program in (gradients, logged)}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    result = PROGRAMS[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write("\n" + json.dumps(result))
    dist.destroy_process_group()
