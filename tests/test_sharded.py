"""Layers with learned orders over several processes: FSDP, distributed tensors, and checkpoints of them."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.utils.rnn import pack_padded_sequence

import hpfracc_nn as fnn

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def group() -> Iterator[Any]:
    """A process that is all of a group, and its mesh."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def net() -> nn.Module:
    return nn.Sequential(
        fnn.FractionalLayer(0.4, "grunwald_letnikov", learn_alpha=True, bounds=(0, 1)),
        fnn.FractionalLayer(fnn.ProbabilisticAlpha(0.3, std=0.05), "grunwald_letnikov"),
        fnn.FractionalDifference(2, bounds=(-1, 1), init=[0.5, -0.5]),
    )


def test_a_sharded_order_is_read_as_a_whole_and_begins_anew(group: Any) -> None:
    with torch.device("meta"):
        sharded: Any = net()
    fully_shard(sharded, mesh=group)
    sharded.to_empty(device="cpu")
    for part in sharded.modules():
        if isinstance(part, fnn.Alpha):
            part.reset_parameters()
    first, second, bank = sharded
    assert first.alpha.shape == ()
    assert [first.alpha.item(), second.alpha.item()] == pytest.approx([0.4, 0.3])
    assert bank.alpha.tolist() == pytest.approx([0.5, -0.5])
    second.order.kl().backward()
    assert float(second.order.spread.grad.full_tensor()) != 0


def test_a_part_of_an_order_is_not_read(group: Any) -> None:
    layer = fnn.FractionalLayer([0.4, 0.5], "grunwald_letnikov", learn_alpha=True)
    layer.order.raw.data = layer.order.raw.data[:1]  # what FSDP's first version leaves a process
    with pytest.raises(RuntimeError, match=r"Alpha: needs its 2 numbers, .* holds 1 of them; .*summon_full_params"):
        layer.alpha  # noqa: B018


@pytest.mark.filterwarnings("ignore")  # what FSDP says of one process
@pytest.mark.parametrize("wrap", [nn.Module.train, FullyShardedDataParallel, fully_shard])
def test_a_distributed_checkpoint_keeps_the_bounds(wrap: Any, group: Any, tmp_path: pathlib.Path) -> None:
    def made(low: float) -> nn.Module:
        layer = fnn.FractionalLayer(low + 0.7, "grunwald_letnikov", learn_alpha=True, bounds=(low, low + 1))
        options = {"device_id": torch.device("cpu")} if wrap is FullyShardedDataParallel else {}
        return wrap(nn.Sequential(layer), **options)

    one, same, other = made(1), made(1), made(0)
    with torch.no_grad():
        next(iter(one.parameters())).mul_(2)
    dcp.save(one.state_dict(), checkpoint_id=tmp_path)
    for each in (same, other):
        state = each.state_dict()
        dcp.load(state, checkpoint_id=tmp_path)
        if each is other:
            with pytest.raises(RuntimeError, match=r"bounds=\(0\.0, 1\.0\), .* the state has bounds=\(1\.0, 2\.0\)"):
                each.load_state_dict(state)
        else:
            each.load_state_dict(state)
            assert torch.equal(state["0.order.raw"], one.state_dict()["0.order.raw"])


REFUSING: dict[str, Callable[[], tuple[Callable[..., Any], tuple[int, ...]]]] = {
    "derivative": lambda: (lambda x: fnn.derivative(x, fnn.Caputo(0.5)), (2, 3, 8)),
    "integral": lambda: (lambda x: fnn.integral(x, 0.5), (2, 3, 8)),
    "FractionalLayer.run": lambda: (fnn.FractionalLayer(0.5).run, (2, 3, 8)),
    "FSDEBlock": lambda: (fnn.FSDEBlock(nn.Linear(3, 3), nn.Linear(3, 3)), (2, 3)),
    "FractionalGraphConv": lambda: (fnn.FractionalGraphConv(3, 4), (2, 3)),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_distributed_tensor_is_refused_with_the_way_out(name: str, group: Any) -> None:
    call, shape = REFUSING[name]()
    x = distribute_tensor(torch.randn(shape), group)
    given = (x, torch.zeros(2, 1, dtype=torch.int64)) if name == "FractionalGraphConv" else (x,)
    with pytest.raises(TypeError, match=r"(x|input): DTensor\): needs a tensor of one process; .*\.to_local\(\)"):
        call(*given)


def test_a_distributed_tensor_that_lies_otherwise_is_refused(group: Any) -> None:
    x = distribute_tensor(torch.randn(2, 3, 8), group, [Shard(2)])
    with pytest.raises(ValueError, match=r"FractionalConv1d\(.*Shard\(dim=2\).*cut along axis 0 alone; .*redistribute"):
        fnn.FractionalConv1d(3, 4, 2)(x)
    two = init_device_mesh("cpu", (1, 1))
    with pytest.raises(ValueError, match="needs time, axis 2, cut along one axis of the mesh"):
        fnn.FractionalLayer(0.4)(distribute_tensor(torch.randn(2, 3, 8), two, [Shard(2), Shard(2)]))
    with pytest.raises(TypeError, match="a DTensor has a mesh; leave it out"):
        fnn.distributed.derivative(x, fnn.Caputo(0.5), group=dist.group.WORLD)
    with pytest.raises(ValueError, match="needs plain slices after split_time"):
        fnn.FractionalLayer(0.4).split_time()(x)
    with pytest.raises(ValueError, match="needs hx=None with a DTensor"):
        fnn.FractionalGRU(3, 4)(distribute_tensor(torch.randn(8, 2, 3), group, [Shard(1)]), torch.zeros(1, 2, 4))
    attention, plain = fnn.FractionalAttention(3, 1, alpha=1.4), torch.randn(8, 2, 3)
    with pytest.raises(TypeError, match="needs DTensors only, or none"):
        attention(distribute_tensor(plain, group, [Shard(1)]), plain, plain)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # what it says of views, such as run's results
def test_a_sharded_order_beside_plain_samples_is_refused_where_it_gets_a_gradient(group: Any) -> None:
    layer: Any = fnn.FractionalLayer(0.4, learn_alpha=True)
    fully_shard(layer, mesh=group)
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match=r"one process's samples alone; pass DTensor\.from_local"):
        layer.run(x)
    with torch.no_grad():
        assert layer.run(x)[0].shape == x.shape
    register_fsdp_forward_method(layer, "run")
    layer.run(x)[0].square().sum().backward()
    assert float(layer.order.raw.grad.full_tensor()) != 0


LAYERS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[int, ...]]]] = {
    "derivative": lambda: (lambda x: fnn.derivative(x, fnn.Caputo(0.5)), (2, 3, 8)),
    "integral": lambda: (lambda x: fnn.integral(x, 0.5), (2, 3, 8)),
    "FractionalLayer": lambda: (fnn.FractionalLayer(0.5), (2, 3, 8)),
    "FractionalLayer, learned": lambda: (fnn.FractionalLayer([0.5] * 3, learn_alpha=True), (2, 3, 8)),
    "FractionalDifference": lambda: (fnn.FractionalDifference(3), (2, 3, 8)),
    "FractionalLinear": lambda: (fnn.FractionalLinear(3, 4), (2, 8, 3)),
    "FractionalConv1d": lambda: (fnn.FractionalConv1d(3, 4, 2), (2, 3, 8)),
    "FractionalConv2d": lambda: (fnn.FractionalConv2d(3, 4, 2), (2, 3, 8, 8)),
    "ARFIMA": lambda: (fnn.ARFIMA(1), (2, 8)),
    "RoughnessFeatures": lambda: (fnn.RoughnessFeatures(3), (2, 3, 8)),
    "SpectralFractional": lambda: (fnn.SpectralFractional(1.0), (2, 3, 8)),
    "FractionalLSTM": lambda: (fnn.FractionalLSTM(3, 4), (8, 2, 3)),
    "FDEBlock": lambda: (fnn.FDEBlock(nn.Linear(3, 3), 0.5), (2, 3)),
    "FractionalGraphConv": lambda: (fnn.FractionalGraphConv(3, 4), (2, 3)),
}


# The others take them: see `test_layer_lengths.py`.
OF_ONE_LENGTH = ["RoughnessFeatures", "FractionalConv2d", "FractionalAttention", "FDEBlock", "FractionalGraphConv"]


@pytest.mark.parametrize("name", [name for name in LAYERS if name in OF_ONE_LENGTH])
def test_a_packed_sequence_is_refused_with_the_way_out(name: str) -> None:
    call, _ = LAYERS[name]()
    packed = pack_padded_sequence(torch.randn(8, 2, 3), torch.tensor([8, 5]))
    given = (packed, torch.zeros(2, 1, dtype=torch.int64)) if name == "FractionalGraphConv" else (packed,)
    with pytest.raises(
        TypeError, match=r"(x|input): PackedSequence\): .* torch\.nn\.utils\.rnn\.pad_packed_sequence\("
    ):
        call(*given)


def in_two(name: str, *arguments: str, size: int = 2) -> list[Any]:
    """Return what the processes of a program print, two of them unless told otherwise."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "HPFRACC_NN_WISDOM": "off", "OMP_NUM_THREADS": "1"}
    common |= {"HPFRACC_NN_SELECTION": "prior", "HPFRACC_NN_DISABLE": "numba, xla"}  # nothing compiles or learns
    common |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-W", "ignore", "-m", "tests.sharded_programs", name, *arguments]
    options: dict[str, Any] = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ranks = [subprocess.Popen(command, env={**common, "RANK": rank}, **options) for rank in "01"[:size]]
    found = []
    for process in ranks:
        printed, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        found.append(json.loads(printed.splitlines()[-1]))
    return found


@functools.cache
def few() -> dict[str, Any]:
    """Return what two processes, started once, find in the fast tests."""
    first, second = in_two("several", "operators_on_mesh", "in_parallel", "optimizers")
    return {
        name: {key: value if isinstance(value, str) else max(value, second[name][key]) for key, value in each.items()}
        for name, each in first.items()
    }


def test_operators_on_distributed_tensors_are_those_of_one_process() -> None:
    found = few()["operators_on_mesh"]
    assert "one process's samples alone" in found.pop("refused")
    assert max(found.values()) < 1e-12, found


def test_optimizers_on_distributed_parameters_take_the_steps_of_one_process() -> None:
    found = few()["optimizers"]
    assert len(found) == 8
    assert max(found.values()) < 1e-14, found  # the same operations on the same numbers, but for sums of gradients


def test_gradients_of_tensor_parallel_plans_are_those_of_one_process() -> None:
    found = few()["in_parallel"]
    assert len(found) == 3
    assert max(found.values()) < 1e-12, found


@pytest.mark.slow
def test_gradients_of_pipelines_are_those_of_one_process() -> None:
    for found in in_two("in_stages"):
        assert max(found.values()) < 1e-12, found


@pytest.mark.slow
def test_layers_on_distributed_tensors_are_those_of_one_process() -> None:
    refusing = ("FractionalGraphConv", "Own")  # the second is a block of a stochastic equation
    for found in in_two("on_mesh"):
        assert len(found) >= 15
        for name, errors in found.items():
            if name in refusing:
                assert all("needs a tensor of one process" in each for each in errors.values()), errors
            else:
                assert max(errors.values()) < 1e-12, (name, errors)


# FSDP's first version shards nothing on one process, and names its state otherwise.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "writers", "readers"), [("FSDP2", "two", "one"), ("FSDP2", "one", "two"), ("FSDP1", "two", "one")]
)
def test_a_checkpoint_is_read_by_another_number_of_processes(
    way: str, writers: str, readers: str, tmp_path: pathlib.Path
) -> None:
    sizes, folder = {"one": 1, "two": 2}, str(tmp_path / writers)
    (written, *_) = in_two("saved", way, folder, "1", size=sizes[writers])
    (read, *_) = in_two("saved", way, folder, "0", size=sizes[readers])
    assert read == pytest.approx(written, rel=1e-6)  # float32: means of one and of two losses are rounded apart


@pytest.mark.slow
@pytest.mark.parametrize("way", ["FSDP1", "FSDP2", "DDP"])
def test_gradients_of_sharded_layers_are_those_of_one_process(way: str) -> None:
    for found in in_two("gradients", way):
        assert len(found) >= 15
        errors = {name: error for name, (error, _) in found.items()}
        assert max(errors.values()) <= 4e-7, errors  # float32: three roundings of the largest
        assert all(loss < 10 for _, loss in found.values())  # after a step; NaN is not


@pytest.mark.slow
@pytest.mark.parametrize("way", ["FSDP1", "FSDP2"])
def test_orders_over_two_processes_are_logged_by_one(way: str) -> None:
    pytest.importorskip("lightning.pytorch")
    first, second = in_two("logged", way)
    assert first["names"] == ["0", "1.0", "1.1", "1.2", "2", "2.std"]
    assert first["alphas"] == pytest.approx([0.4, 0.2, 0.4, 0.6, 0.3, 0.05], abs=1e-6)
    assert second == {"names": [], "alphas": []}
