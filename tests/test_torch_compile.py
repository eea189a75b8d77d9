"""torch.compile of the operators: one graph, compiled once, that computes what the plain call computes."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import hpfracc_nn as fnn
from hpfracc_nn.fractional.torch import custom_op
from hpfracc_nn.selection import default_manager

# What the compiler tells about its own parts.
pytestmark = [pytest.mark.filterwarnings("ignore")]

N = 70
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="inductor needs a C++ compiler")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Compile anew in every test: graphs on disk may be those of another version."""
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
        yield
    torch._dynamo.reset()


def compiled(function: Any, backend: str = "aot_eager", **options: Any) -> Any:
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def compilations(function: Any, **options: Any) -> tuple[Any, Any]:
    """Return the compiled function and what counts its graphs."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True, **options), counter


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    return found.shape == expected.shape and bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def gradients(function: Callable[..., Tensor], *inputs: Tensor, parameters: tuple[Tensor, ...] = ()) -> list[Tensor]:
    """Return the result and the gradients of its sum of squares in the inputs and parameters."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [*leaves, *parameters])]


def agree(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-12) -> bool:
    return all(close(*pair, tolerance) for pair in zip(found, expected, strict=True))


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def order(value: float = 0.4) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], bool]] = {  # name: function, whether alpha is an input
    "derivative": (lambda x: fnn.derivative(x, fnn.Caputo(0.4), dt=0.1), False),
    "of a tensor": (lambda x, alpha: fnn.derivative(x, fnn.RiemannLiouville(alpha), dt=0.1), True),
    "per channel": (lambda x: fnn.derivative(x, fnn.GrunwaldLetnikov([0.2, 0.4, 0.6])), False),
    "along axis 1": (lambda x, alpha: fnn.caputo(x, alpha, bounds=(0, 1), dim=1), True),
    "integral": (lambda x: fnn.integral(x, 0.7), False),
    "integral of a tensor": (lambda x, alpha: fnn.integral(x, alpha), True),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "fixed": lambda: fnn.FractionalLayer(0.4),
    "learned": lambda: fnn.FractionalLayer(0.4, "riemann_liouville", learn_alpha=True),
    "channels": lambda: fnn.FractionalLayer([0.2, 0.4, 0.6]),
    "above one": lambda: fnn.FractionalLayer(1.4, "caputo", scheme="bdf2", learn_alpha=True),
    "learned channels": lambda: fnn.FractionalLayer([0.2, 1 / 3, 0.7], "grunwald_letnikov", learn_alpha=True),
    "bank": lambda: fnn.FractionalDifference(3, 2, bounds=(-1, 1), init=[-0.4, 0.4]),
    "fixed bank": lambda: fnn.FractionalDifference(3, 2, init=[0.3, 0.6], learn_alpha=False),
}


def some(cases: Iterable[str], quick: Iterable[str]) -> list[Any]:
    """Return the names of cases, marked as slow except a few that cover the ways through the code."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in cases]


every_function = pytest.mark.parametrize("function", some(FUNCTIONS, ["of a tensor"]))
every_layer = pytest.mark.parametrize("layer", some(LAYERS, ["fixed bank", "learned channels"]))


@every_function
def test_a_compiled_function_computes_the_same(function: str) -> None:
    run, learned = FUNCTIONS[function]
    inputs = (rand(2, 3, N), order()) if learned else (rand(2, 3, N),)
    assert agree(gradients(compiled(run), *inputs), gradients(run, *inputs))
    with torch.no_grad():
        assert close(compiled(run)(*inputs), run(*inputs))


@every_layer
def test_a_compiled_layer_computes_the_same_in_one_graph(layer: str) -> None:
    net = LAYERS[layer]()
    parameters = tuple(net.parameters())
    call, counter = compilations(net)
    for seed in (0, 1):
        x = rand(2, 3, N, seed=seed)
        found = gradients(call, x, parameters=parameters)
        assert agree(found, gradients(net, x, parameters=parameters))
    assert counter.frame_count == 1


@pytest.mark.parametrize("marked", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["marked", "dynamic=True"])
def test_sizes_may_be_symbols(marked: bool) -> None:
    layer = fnn.FractionalLayer([0.2, 0.4, 0.6], "riemann_liouville", learn_alpha=True)
    call, counter = compilations(layer, dynamic=None if marked else True)
    first = 0
    for batch, n in ((4, 40), (5, 33), (7, 100)):
        x = rand(batch, 3, n)
        if marked:
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(x, 2)
        with torch.no_grad():
            assert close(call(x), layer(x))
        first = first or counter.frame_count  # the compiler may start over once by itself
    assert counter.frame_count == first


def test_one_graph_serves_all_later_calls() -> None:
    call, counter = compilations(lambda x: fnn.derivative(x, fnn.Caputo(0.4)))
    for _ in range(3):
        call(rand(2, N))
        fnn.derivative(np.ones(5), fnn.Caputo(0.4))  # other frameworks in between
    assert counter.frame_count == 1


@dataclass(frozen=True, eq=False)
class Scaled(fnn.Caputo):
    """Weights times a number that every option has a part in."""

    count: int = field(default=1, kw_only=True)
    shifts: tuple[Any, ...] = field(default=(), kw_only=True)
    label: str | None = field(default=None, kw_only=True)
    is_twice: bool = field(default=False, kw_only=True)

    def _weights(self, alpha: Any, m: int, lags: np.ndarray, xp: Any) -> Any:
        (shift, name), *_ = self.shifts or ((0.0, ""),)
        assert type(self.count) is int
        assert type(name) is str
        factor = self.count + shift + len(name) + (0.5 if self.label is None else len(self.label))
        return super()._weights(alpha, m, lags, xp) * (factor * (1 + self.is_twice))


@pytest.mark.parametrize("learns", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize(
    "options",
    [{}, {"count": 3, "shifts": ((1e-17 + 0.1, 'a "b" \\'), None), "label": "two\n\x01", "is_twice": True}],
    ids=["default", "own"],
)
def test_options_of_every_plain_type_are_part_of_the_graph(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], learns: bool
) -> None:
    monkeypatch.setitem(fnn.fractional.definitions.DEFINITIONS, "scaled", Scaled)
    monkeypatch.setitem(custom_op._NAMES, Scaled, "scaled")
    x, alpha = rand(2, 40), order().requires_grad_()

    def call(x: Tensor, alpha: Tensor) -> Tensor:
        return fnn.derivative(x, Scaled(alpha if learns else 0.4, **options))

    found, wanted = compiled(call)(x, alpha), call(x, alpha)
    assert close(found, wanted)
    if learns:
        slope, other = (torch.autograd.grad(y.square().sum(), alpha)[0] for y in (found, wanted))
        assert close(slope, other)
    program = torch.export.export(Called(call), (x, alpha), strict=False)
    assert close(program.module()(x, alpha), wanted)


@pytest.mark.parametrize("label", ["", "a\tb\x00\x1f\x7f", '\u00e9 "\\', "nan, inf"])
@pytest.mark.parametrize("shift", [math.inf, -math.inf, 1e-310, -0.0])
def test_a_definition_is_the_same_after_its_json(monkeypatch: pytest.MonkeyPatch, label: str, shift: float) -> None:
    monkeypatch.setitem(fnn.fractional.definitions.DEFINITIONS, "scaled", Scaled)
    monkeypatch.setitem(custom_op._NAMES, Scaled, "scaled")
    one = Scaled(0.4, label=label, shifts=((shift, ""), None))
    text = custom_op.as_json(one, False)
    assert text is not None
    assert custom_op.from_json(text) == one
    nothing = custom_op.as_json(Scaled(0.4, shifts=(math.nan,)), False)
    assert nothing is not None
    assert math.isnan(custom_op.from_json(nothing).options[1][0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [fnn.Caputo, fnn.RiemannLiouvilleIntegral])
def test_a_sum_of_orders_is_part_of_the_graph(kind: type[fnn.Definition], side: str) -> None:
    definition = fnn.DistributedOrder(nodes=(0.3, 0.8), weights=(1.0, 2.0), kind=kind, side=side)
    x = rand(2, 40).requires_grad_()
    found, wanted = compiled(definition)(x), definition(x)
    assert close(found, wanted)
    gradient, other = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, wanted))
    assert close(gradient, other)
    program = torch.export.export(Called(definition), (x.detach(),), strict=False)
    assert close(program.module()(x.detach()), wanted)


def test_a_sum_of_orders_may_be_made_inside_of_a_graph() -> None:
    def inside(x: Tensor) -> Tensor:
        return fnn.derivative(x, fnn.DistributedOrder(nodes=(0.3, 0.8), weights=(1.0, 2.0)))

    x = rand(2, 40)
    assert close(compiled(inside)(x), inside(x))


class Called(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@pytest.mark.slow
def test_a_number_is_part_of_the_graph_and_a_tensor_is_not() -> None:
    x = rand(2, N)
    by_number, numbers = compilations(lambda x, alpha: fnn.caputo(x, alpha))
    by_tensor, tensors = compilations(lambda x, alpha: fnn.caputo(x, alpha))
    by_tensor(x, order())
    first = tensors.frame_count  # the compiler may start over once by itself
    for alpha in (0.3, 0.5, 0.7):
        assert close(by_number(x, alpha), fnn.caputo(x, alpha))
        assert close(by_tensor(x, order(alpha)), fnn.caputo(x, order(alpha)))
    assert numbers.frame_count >= 3
    assert tensors.frame_count == first


def test_the_manager_is_asked_when_the_graph_runs() -> None:
    manager = default_manager()
    call, counter = compilations(fnn.FractionalLayer(0.4))
    x = rand(2, N)
    call(x)
    before = manager.settings.force_algorithm
    try:
        for algorithm in ("dense", "fft"):
            manager.configure(force_algorithm=algorithm)
            site = manager.shared_site("toeplitz", "torch", "compiled")
            call(x)
            assert [plan.algorithm for plan in site.plans()] == [algorithm]
    finally:
        manager.configure(force_algorithm=before)
    assert counter.frame_count == 1


def test_both_passes_of_a_graph_are_counted_on_one_plan() -> None:
    manager = default_manager()
    manager.configure()  # a site keeps plans until something is configured
    call = compiled(fnn.FractionalLayer(0.4, learn_alpha=True))
    call(rand(3, 71).requires_grad_()).sum().backward()
    (plan,) = [plan for plan in manager.shared_site("toeplitz", "torch", "compiled").plans() if plan.workload.n == 71]
    assert (plan.forwards, plan.backwards) == (1, 1)
    assert plan.workload.needs_gradient
    assert plan.workload.learns_weights


def test_a_manager_of_ones_own_breaks_the_graph_and_is_honoured() -> None:
    manager = fnn.BackendManager()
    layer, x = fnn.FractionalLayer(0.4, manager=manager), rand(2, N)
    assert close(torch.compile(layer, backend="aot_eager")(x), layer(x))
    assert manager.counters()["forward"] == 2
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a graph cannot name a BackendManager"):
        compiled(layer)(x)


def test_weights_made_inside_a_transform_serve_a_compiled_call() -> None:
    definition, x = fnn.RiemannLiouville(0.4321), rand(2, 40)  # in no cache yet
    torch.func.jvp(lambda x: fnn.derivative(x, definition), (x,), (x,))
    with torch.no_grad():
        found = compiled(lambda x: fnn.derivative(x, fnn.RiemannLiouville(0.4321)))(x)
    assert close(found, fnn.derivative(x, definition))


TRANSFORMS: dict[str, Callable[[Callable[..., Tensor], Tensor, Tensor], Any]] = {
    "grad": lambda f, x, a: torch.func.grad(lambda x: f(x, a).square().sum())(x),
    "grad in alpha": lambda f, x, a: torch.func.grad(lambda a: f(x, a).square().sum())(a),
    "vmap": lambda f, x, a: torch.func.vmap(f, (0, None))(x, a),
    "vmap over the last axis": lambda f, x, a: torch.func.vmap(f, (1, None), 1)(x, a),
    "vmap over both": lambda f, x, a: torch.func.vmap(f)(x, a * torch.linspace(0.5, 1.5, x.shape[0])),
    "vmap of a number": lambda f, x, a: torch.func.vmap(lambda x: f(x, 0.4))(x),
    "jvp": lambda f, x, a: torch.func.jvp(lambda x: f(x, 0.4), (x,), (x + 1,))[1],
    "jvp in alpha": lambda f, x, a: torch.func.jvp(lambda a: f(x, a), (a,), (torch.ones_like(a),))[1],
    "jacfwd in alpha": lambda f, x, a: torch.func.jacfwd(lambda a: f(x, a))(a),
    "jacrev": lambda f, x, a: torch.func.jacrev(lambda x: f(x, a))(x[0, :9]),
    "one gradient per sample": lambda f, x, a: torch.func.vmap(
        torch.func.grad(lambda a, x: f(x, a).square().sum()), (None, 0)
    )(a, x),
    "hessian in alpha": lambda f, x, a: torch.func.hessian(lambda a: f(x, a).square().sum())(a),
    "dual numbers": lambda f, x, a: tangent(lambda x: f(x, 0.4), x),
    "dual numbers in alpha": lambda f, x, a: tangent(lambda a: f(x, a), a),
}


def tangent(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, 2 * x + 1))).tangent


def derivative(x: Tensor, alpha: Any) -> Tensor:
    return fnn.derivative(x, fnn.RiemannLiouville(alpha), dt=0.1)


@pytest.mark.parametrize("name", some(TRANSFORMS, ["vmap over both", "dual numbers"]))
def test_a_transform_inside_a_compiled_function_is_followed(name: str) -> None:
    transform, x = TRANSFORMS[name], rand(3, 40)
    found = compiled(lambda x, alpha: transform(derivative, x, alpha))(x, order())
    assert close(found, transform(derivative, x, order()))


@pytest.mark.parametrize("name", some(["grad", "vmap", "jvp", "one gradient per sample", "hessian in alpha"], ["jvp"]))
def test_a_transform_around_a_compiled_function_is_refused_or_right(name: str) -> None:
    transform, x = TRANSFORMS[name], rand(3, 40)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="from eager mode is not supported"):
        transform(compiled(derivative), x, order())
    torch._dynamo.reset()
    found = transform(torch.compile(derivative, backend="aot_eager"), x, order())  # runs without the compiler
    assert close(found, transform(derivative, x, order()))
    # A frame that the compiler gave up once: what it calls is not compiled piece by piece.
    later = tangent(lambda x: torch.compile(derivative, backend="aot_eager")(x, order()), x)
    assert later is not None
    assert close(later, derivative(2 * x + 1, order()))


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["warm", "cold"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, needs_compiler])])
def test_tangents_never_get_lost_in_a_compiled_graph(backend: str, warm: bool) -> None:
    message = (
        "derivative(x with a tangent): a compiled graph loses the tangents of its inputs; "
        "take forward mode inside the compiled function, or call it without torch.compile."
    )
    x, call = rand(2, 40), compiled(lambda x: 2 * derivative(x, 0.4), backend)
    if warm:
        call(x)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        tangent(call, x)
    with pytest.raises(NotImplementedError, match="must implement the jvp function"):
        tangent(call, x.clone().requires_grad_())


def test_a_second_backward_through_a_compiled_graph_is_refused() -> None:
    x = rand(2, 40).requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(derivative)(x, order()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(gradient.square().sum(), x)


def test_a_batch_of_gradients_through_a_compiled_graph_is_refused() -> None:
    x = rand(2, 40).requires_grad_()
    y = compiled(derivative)(x, order())
    with pytest.raises(RuntimeError, match="Batching rule not implemented for hpfracc_nn::operator_backward"):
        torch.autograd.grad(y, x, torch.stack([y.detach(), x.detach()]), is_grads_batched=True)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
def test_autocast_leaves_the_compiled_operator_alone(inside: bool) -> None:
    x = rand(2, 3, N).float()
    layer = fnn.FractionalLayer(0.4, learn_alpha=True)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            return layer(x)

    call = compiled(run)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        found = gradients(call, x, parameters=tuple(layer.parameters()))
    assert found[0].dtype == torch.float32
    assert agree(found, gradients(layer, x, parameters=tuple(layer.parameters())))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_dtype_stays_itself(dtype: torch.dtype) -> None:
    x = rand(2, 3, N).to(dtype)
    found, expected = gradients(compiled(derivative), x, order()), gradients(derivative, x, order())
    assert [tensor.dtype for tensor in found] == [dtype, dtype, torch.float64]
    assert agree(found, expected)


EDGES: dict[str, Callable[[], Tensor]] = {
    "no rows": lambda: rand(0, 5),
    "no samples": lambda: rand(2, 0),
    "one sample": lambda: rand(2, 1),
    "one of two axes": lambda: rand(2, 2, 1),
    "transposed": lambda: rand(9, 4).mT,
    "strided": lambda: rand(4, 18)[:, ::2],
    "expanded": lambda: rand(1, 9).expand(3, 9),
    "negated": lambda: torch._neg_view(rand(3, 9)),
}


@pytest.mark.parametrize("edge", some(EDGES, ["no rows", "transposed"]))
def test_layouts_and_sizes_at_the_edge(edge: str) -> None:
    x, alpha = EDGES[edge](), order().requires_grad_()
    leaf = x.detach().clone().requires_grad_()
    found = compiled(derivative)(x, alpha)
    assert torch.equal(found, derivative(x, alpha))
    assert found.is_contiguous()
    one, other = (
        torch.autograd.grad(run(leaf, alpha).sum(), (leaf, alpha)) for run in (compiled(derivative), derivative)
    )
    assert all(torch.allclose(*pair, rtol=1e-12, atol=0) for pair in zip(one, other, strict=True))


@pytest.mark.slow
def test_inference_mode_and_training_share_a_compiled_layer() -> None:
    layer, x = fnn.FractionalLayer(0.4, learn_alpha=True), rand(2, 3, N)
    call = compiled(layer)
    with torch.inference_mode():
        inferred = call(x)
    assert close(inferred, layer(x).detach())
    assert agree(
        gradients(call, x, parameters=tuple(layer.parameters())),
        gradients(layer, x, parameters=tuple(layer.parameters())),
    )
    with torch.inference_mode():
        assert close(call(x), inferred)


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_and_around_a_compiled_layer(reentrant: bool) -> None:
    layer, x = fnn.FractionalLayer(0.4, learn_alpha=True), rand(2, 3, N)
    parameters = tuple(layer.parameters())
    expected = gradients(layer, x, parameters=parameters)
    call = compiled(layer)

    def backward(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        y = function(leaf)
        y.square().sum().backward()  # a reentrant checkpoint knows no other way
        return [y.detach(), *[t.grad for t in (leaf, *parameters) if t.grad is not None]]

    assert agree(backward(lambda x: checkpoint(call, x, use_reentrant=reentrant)), expected)
    if not reentrant:
        assert agree(backward(compiled(lambda x: checkpoint(layer, x, use_reentrant=False))), expected)


def test_what_a_plain_call_refuses_a_compiled_one_refuses() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: compiled(derivative)(rand(2, 9).to(torch.float8_e5m2), order()), "convert with x.to"),
        (lambda: compiled(derivative)(rand(2, 9), torch.tensor(1)), "int64 tensor"),
        (lambda: compiled(derivative)(rand(2, 9), order().expand(5)), "needs alpha to broadcast"),
        (lambda: compiled(lambda x: fnn.caputo(x, 0.4, dim=3))(rand(2, 9)), "needs -2 <= dim < 2"),
        (lambda: compiled(derivative)(rand(2, 9), order(1.5)), "needs a tensor alpha within its bounds"),
    ]
    for call, message in cases:
        torch._dynamo.reset()
        with pytest.raises(Exception, match=message):  # the compiler wraps some
            call()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("layer", "dynamic"), [("fixed", False), ("bank", False), ("learned channels", False), ("learned channels", True)]
)
def test_inductor_computes_the_same(layer: str, dynamic: bool) -> None:
    net = LAYERS[layer]()
    parameters = tuple(net.parameters())
    call = compiled(lambda x: net(2 * x) + 1, "inductor", dynamic=dynamic)
    for x in (rand(2, 3, N), rand(3, 3, 33)):
        found = gradients(call, x, parameters=parameters)
        assert agree(found, gradients(lambda x: net(2 * x) + 1, x, parameters=parameters))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["vmap over both", "jvp"])
def test_inductor_follows_transforms(name: str) -> None:
    transform, x = TRANSFORMS[name], rand(3, 40)
    found = compiled(lambda x, alpha: transform(derivative, x, alpha), "inductor")(x, order())
    assert close(found, transform(derivative, x, order()))


FIRST = """
import hpfracc_nn  # before torch, whose operators are then imported by the first call
import torch

call = torch.compile({call}, fullgraph=True, backend="aot_eager")
print(tuple(call(torch.ones(8)).shape))
"""


@pytest.mark.parametrize(
    "call",
    [
        "lambda x: hpfracc_nn.derivative(x, hpfracc_nn.Caputo(0.5))",
        "lambda x: hpfracc_nn.derivative(x, hpfracc_nn.PeriodicWeyl(0.5))",
        "lambda x: hpfracc_nn.fdiff(x, 0.4)",
    ],
)
def test_the_first_call_of_a_process_may_be_compiled(call):
    command = [sys.executable, "-c", FIRST.format(call=call)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "(8,)"), done.stderr
