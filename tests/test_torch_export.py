"""torch.export of the operators: a program that holds its definition, and can be saved, loaded, and transformed."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import hpfracc_nn as fnn

# What export tells about its own parts.
pytestmark = [pytest.mark.filterwarnings("ignore")]
ROOT = pathlib.Path(__file__).parents[1]


class Net(nn.Module):
    """A learned derivative of every channel, a bank of differences, and an integral."""

    def __init__(self) -> None:
        super().__init__()
        self.derivative = fnn.FractionalLayer([0.2, 0.4, 0.6], learn_alpha=True, dt=0.1)
        self.bank = fnn.FractionalDifference(3, 2, learn_alpha=False)

    def forward(self, x: Tensor) -> Tensor:
        return fnn.integral(self.bank(self.derivative(x)), 0.3)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def exported(net: nn.Module, x: Tensor, strict: bool = False) -> Any:
    batch, n = torch.export.Dim("batch", min=1, max=1000), torch.export.Dim("n", min=2, max=100_000)
    return torch.export.export(net, (x,), strict=strict, dynamic_shapes=({0: batch, 2: n},))


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and bool((found - expected).abs().max() <= 1e-12 * expected.abs().max())


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["not strict", "strict"])
def strict(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_a_program_serves_every_size_and_holds_one_operation_a_call(strict: bool) -> None:
    net = Net()
    program = exported(net, rand(4, 3, 60), strict)
    found = [node for node in program.graph.nodes if node.target is torch.ops.hpfracc_nn.operator.default]
    assert len(found) == 3
    held = [argument for node in found for argument in node.args if not isinstance(argument, torch.fx.Node)]
    kinds = {
        type(value) for argument in held for value in (argument if isinstance(argument, list | tuple) else [argument])
    }
    assert kinds <= {type(None), float, int, str}
    for shape in ((4, 3, 60), (1, 3, 33), (2, 3, 150)):
        x = rand(*shape)
        assert close(program.module()(x), net(x))


@pytest.mark.slow
def test_a_saved_program_runs_in_a_fresh_process(strict: bool, tmp_path: pathlib.Path) -> None:
    net, x = Net(), rand(2, 3, 50)
    torch.export.save(exported(net, rand(4, 3, 60), strict), tmp_path / "net.pt2")
    torch.save(x, tmp_path / "x.pt")
    source = (
        "import json, sys, torch, hpfracc_nn.layers.torch\n"
        "where = sys.argv[1]\n"
        "y = torch.export.load(where + '/net.pt2').module()(torch.load(where + '/x.pt'))\n"
        "print(json.dumps(y.tolist()))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", source, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert close(torch.tensor(json.loads(done.stdout), dtype=torch.float64), net(x).detach())


class Orders(nn.Module):
    """Orders of every kind: one that layers share, one for each channel, and one that is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = fnn.Alpha(0.4, (0, 1))
        self.first = fnn.FractionalLayer(self.shared, "grunwald_letnikov", dt=0.1)
        self.each = fnn.FractionalLayer([0.2, 0.4, 0.6], learn_alpha=True)
        self.fixed = fnn.FractionalLayer(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.fixed(self.each(x)))


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="AOTInductor needs a C++ compiler")
def test_a_package_of_aotinductor_runs(tmp_path: pathlib.Path) -> None:
    net, x = Orders(), rand(2, 3, 40)
    with torch.no_grad():
        made = torch._inductor.aoti_compile_and_package(exported(net, x), package_path=str(tmp_path / "net.pt2"))
        program = torch._inductor.aoti_load_package(made)
        for shape in ((2, 3, 40), (3, 3, 25)):
            assert close(program(rand(*shape)), net(rand(*shape)))


def gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).square().sum(), x)[0]


def second(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def batched(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, torch.stack([y.detach(), y.detach().cos()]), is_grads_batched=True)[0]


def tangent(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(f(forward_ad.make_dual(x, 2 * x + 1))).tangent
    assert found is not None
    return found


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "backward": gradient,
    "second backward": second,
    "batch of gradients": batched,
    "dual numbers": tangent,
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (2 * x + 1,))[1],
    "vmap": lambda f, x: torch.func.vmap(f)(x[:, None]),
    "one gradient per sample": lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x[None]).square().sum()))(x),
    "compile": lambda f, x: torch.compile(f, backend="aot_eager", fullgraph=True)(x),
}


QUICK = ("second backward", "jvp")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMS]
)
def test_a_loaded_program_can_be_transformed(name: str, tmp_path: pathlib.Path) -> None:
    net, x = Net(), rand(2, 3, 40)
    torch.export.save(exported(net, x), tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2").module()
    assert close(TRANSFORMS[name](program, x), TRANSFORMS[name](net, x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("second backward", None),
        ("jvp", None),
        ("dual numbers", r"a compiled graph loses the tangents of its inputs"),
        ("vmap", r"Batching rule not implemented for aten::sym_size.int"),
    ],
)
def test_a_decomposed_program_is_right_or_refuses(name: str, message: str | None) -> None:
    net, x = Net(), rand(2, 3, 40)
    program = exported(net, x).run_decompositions().module()
    if message is None:
        assert close(TRANSFORMS[name](program, x), TRANSFORMS[name](net, x))
    else:
        with pytest.raises(RuntimeError, match=message):
            TRANSFORMS[name](program, x)


def test_a_program_cannot_hold_a_manager() -> None:
    layer = fnn.FractionalLayer(0.4, manager=fnn.BackendManager())
    with pytest.raises(ValueError, match=r"torch\.export needs the process-wide BackendManager"):
        torch.export.export(layer, (rand(2, 3, 40),), strict=False)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.export needs the process-wide BackendManager"):
        torch.export.export(layer, (rand(2, 3, 40),), strict=True)
