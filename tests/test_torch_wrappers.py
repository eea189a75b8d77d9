"""What PyTorch wraps round a layer: hooks on saved tensors, replicas, processes, parametrisations, tracers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize

import hpfracc_nn as fnn

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "fixed": lambda: fnn.FractionalLayer(0.4),
    "learned": lambda: fnn.FractionalLayer(0.4, "riemann_liouville", learn_alpha=True),
    "bank": lambda: fnn.FractionalDifference(3, 2, bounds=(-1, 1), init=[-0.4, 0.4]),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
SHAPE = (4, 3, 70)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def gradients(layer: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Return the result and the gradients of its sum of squares in x and the parameters."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = call(x)
    y.square().sum().backward()
    grads = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    return [y.detach(), *(grad.clone() for grad in grads if grad is not None)]


def agree(found: list[Tensor], expected: list[Tensor], tolerance: float = 0.0) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(bool((one - other).abs().max() <= tolerance * other.abs().max()) for one, other in pairs)


@every_layer
def test_saved_tensors_may_be_packed_away(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), rand(*SHAPE)
    expected, packed = gradients(layer, layer, x), []

    def pack(tensor: Tensor) -> bytes:
        packed.append(tensor.shape)
        return pickle.dumps(tensor.numpy())

    with saved_tensors_hooks(pack, lambda kept: torch.as_tensor(pickle.loads(kept))):
        assert agree(gradients(layer, layer, x), expected)
    with save_on_cpu():
        assert agree(gradients(layer, layer, x), expected)
    if not list(layer.parameters()):
        assert x.shape not in packed[:-1]  # only the square keeps samples, the layer nothing


@every_layer
def test_a_graph_that_is_kept_runs_backward_twice_and_one_that_is_not_refuses(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), rand(*SHAPE).requires_grad_()
    y = layer(x).square().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    assert torch.equal(torch.autograd.grad(y, x)[0], first[0])
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def test_a_saved_sample_that_was_overwritten_is_noticed() -> None:
    x = rand(*SHAPE).requires_grad_()
    between = x * 1
    y = fnn.FractionalLayer(0.4, learn_alpha=True)(between)
    between.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_layer
def test_data_parallel_without_devices_passes_through(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), rand(*SHAPE)
    assert agree(gradients(layer, nn.DataParallel(layer), x), gradients(layer, layer, x))


class Scaled(nn.Module):
    def forward(self, raw: Tensor) -> Tensor:
        return 2 * raw


def test_a_parametrised_order_is_followed() -> None:
    layer, x = fnn.FractionalLayer(0.4, learn_alpha=True), rand(*SHAPE)
    plain = copy.deepcopy(layer)
    with torch.no_grad():
        plain.order.raw.mul_(2)  # type: ignore[union-attr, operator]
    parametrize.register_parametrization(layer.order, "raw", Scaled())
    found, expected = gradients(layer, layer, x), gradients(plain, plain, x)
    expected[-1] = 2 * expected[-1]
    assert agree(found, expected, 1e-7)  # the parameter is float32


@every_layer
def test_functional_call_takes_other_parameters(make: Callable[[], nn.Module]) -> None:
    layer, other, x = make(), make(), rand(*SHAPE)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    parameters: dict[str, Tensor] = dict(other.named_parameters())
    assert torch.equal(torch.func.functional_call(layer, parameters, (x,)), other(x))


@pytest.mark.slow
@every_layer
@pytest.mark.filterwarnings("ignore")  # what the compiler tells about its own parts
def test_a_compiled_layer_can_be_copied_and_a_plain_one_pickled(make: Callable[[], nn.Module]) -> None:
    torch._dynamo.reset()
    layer, x = make(), rand(*SHAPE)
    call: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    expected = gradients(layer, call, x)
    other = copy.deepcopy(call)
    assert agree(gradients(other, other, x), expected)
    again = pickle.loads(pickle.dumps(layer))
    assert agree(gradients(again, torch.compile(again, backend="aot_eager", fullgraph=True), x), expected)
    torch._dynamo.reset()


@every_layer
def test_fake_and_meta_tensors_give_the_shape(make: Callable[[], nn.Module]) -> None:
    layer = make()
    expected = layer(rand(*SHAPE))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = layer(mode.from_tensor(rand(*SHAPE)))
    meta = layer.to("meta")(rand(*SHAPE).to("meta"))
    for found in (fake, meta):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.slow
@every_layer
def test_a_traced_graph_of_a_training_step_computes_the_same(make: Callable[[], nn.Module]) -> None:
    layer, x, other = make(), rand(2, 3, 20), rand(2, 3, 20, seed=1)

    def step(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        y = layer(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    graph = make_fx(step)(x)
    assert agree(graph(other), step(other), 1e-12)


def test_script_is_refused_by_pytorch_itself() -> None:
    with (
        pytest.warns((DeprecationWarning, FutureWarning), match="jit"),
        pytest.raises(RuntimeError, match="cannot be used in a type"),
    ):
        torch.jit.script(fnn.FractionalLayer(0.4))


def _train(rank: int, port: int, out: Any) -> None:
    """Take one synchronised step of two processes, each with half of the batch."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        torch.manual_seed(0)
        net = nn.Sequential(fnn.FractionalLayer(0.4, learn_alpha=True), fnn.FractionalDifference(3, 2)).double()
        replica = nn.parallel.DistributedDataParallel(net)
        replica(rand(*SHAPE)[2 * rank : 2 * rank + 2]).square().mean().backward()
        out.put((rank, [parameter.grad.tolist() for parameter in net.parameters() if parameter.grad is not None]))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_agree_with_one_on_every_gradient() -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    torch.multiprocessing.spawn(_train, (port, out), nprocs=2, join=True)
    found = dict(out.get() for _ in range(2))
    torch.manual_seed(0)
    net = nn.Sequential(fnn.FractionalLayer(0.4, learn_alpha=True), fnn.FractionalDifference(3, 2)).double()
    net(rand(*SHAPE)).square().mean().backward()
    for number, parameter in enumerate(net.parameters()):
        assert parameter.grad is not None
        for rank in (0, 1):
            assert torch.allclose(torch.tensor(found[rank][number], dtype=torch.float64), parameter.grad, rtol=1e-12)
