"""Mixed precision, checkpoints, copies and function transforms: nothing they do changes a number."""

import copy
import io
import pickle
from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from hpfracc_nn import derivative
from hpfracc_nn.fractional.definitions import Caputo, Definition
from hpfracc_nn.layers.torch import FractionalDifference, FractionalLayer
from tests.definition_cases import CLASSICAL
from tests.torch_cases import DT, Forced, every_kernel, matrix, multiplied

# PyTorch's own forward mode scripts its decompositions on first use.

N = 100
every_definition = pytest.mark.parametrize("kind", CLASSICAL, ids=lambda kind: kind.__name__)
HALVES = [torch.float16, torch.bfloat16]
_unused_orders = (0.3 + number / 4096 for number in count())


def unused(kind: Callable[..., Definition]) -> Definition:
    """Return a definition whose weights no cache holds yet."""
    return kind(next(_unused_orders))


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    """Return whether two ways to compute the same thing agree, relative to the largest entry."""
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def alpha_of(forced: Forced, value: float = 0.4) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device=forced.device, requires_grad=True)


def all_gradients(run: Callable[[Tensor], Tensor], x: Tensor, alpha: Tensor) -> list[Tensor]:
    """Return the result and the gradients in x and alpha of its sum of squares."""
    x = x.detach().clone().requires_grad_()
    y = run(x)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), (x, alpha))]


@every_kernel
@every_definition
def test_autocast_leaves_single_precision_alone(forced: Forced, kind: Callable[..., Definition]) -> None:
    x, alpha = forced.random(3, 131).float(), alpha_of(forced)

    def run(x: Tensor) -> Tensor:
        return forced(x, kind(alpha, bounds=(0, 1)))

    def run_under(x: Tensor) -> Tensor:
        with torch.autocast(forced.device, dtype=torch.bfloat16):
            return run(x)

    expected = all_gradients(run, x, alpha)
    assert expected[0].dtype == torch.float32
    with torch.autocast(forced.device, dtype=torch.bfloat16):
        backward_inside = all_gradients(run, x, alpha)
    for found in (all_gradients(run_under, x, alpha), backward_inside):
        assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in expected]
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@every_kernel
@every_definition
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_is_single_precision_rounded_once(
    forced: Forced, kind: Callable[..., Definition], dtype: torch.dtype
) -> None:
    x, alpha = forced.random(3, 131).to(dtype), alpha_of(forced)
    g = forced.random(3, 131, seed=1).to(dtype)

    def run(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        y = forced(x, kind(alpha, bounds=(0, 1)))
        return [y.detach(), *torch.autograd.grad(y, (x, alpha), g.to(x.dtype))]

    for found, expected in zip(run(x)[:2], run(x.float())[:2], strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, expected.to(dtype))
    assert torch.equal(run(x)[2], run(x.float())[2])
    with torch.autocast(forced.device, dtype=torch.bfloat16):
        assert torch.equal(forced(x, kind(0.4)), forced(x.float(), kind(0.4)).to(dtype))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "fixed": lambda: FractionalLayer(0.4),
    "learned": lambda: FractionalLayer(0.4, "riemann_liouville", learn_alpha=True),
    "per channel": lambda: FractionalLayer([0.2, 1.0 / 3, 0.7], "grunwald_letnikov", learn_alpha=True),
    "integral": lambda: FractionalLayer(0.4, "riemann_liouville_integral", learn_alpha=True),
    "above one": lambda: FractionalLayer(1.4, "caputo", scheme="bdf2", learn_alpha=True),
    "bank": lambda: FractionalDifference(3, 2, bounds=(-1, 1), init=[-0.4, 0.4]),
    "fixed bank": lambda: FractionalDifference(3, 2, init=[0.3, 0.6], learn_alpha=False),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())


def run_layer(layer: nn.Module, x: Tensor, call: Callable[[Tensor], Tensor] | None = None) -> list[Tensor]:
    """Return a layer's result, the gradient in x, and those in its parameters, of the sum of squares."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x) if call is None else call(x)
    y.square().sum().backward()
    grads = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    return [y.detach(), *(grad.clone() for grad in grads if grad is not None)]


def all_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 3, N, generator=torch.Generator().manual_seed(0))


@every_layer
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints_change_nothing(make: Callable[[], nn.Module], x: Tensor, reentrant: bool) -> None:
    layer = make()
    found = run_layer(layer, x, lambda x: checkpoint(layer, x, use_reentrant=reentrant))
    # A reentrant checkpoint first runs without a gradient: another workload, so perhaps another kernel.
    assert all(close(*pair, 1e-6) for pair in zip(found, run_layer(layer, x), strict=True))


@every_layer
def test_a_copy_computes_the_same(make: Callable[[], nn.Module], x: Tensor) -> None:
    layer = make()
    expected = run_layer(layer, x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.copy(layer)):
        assert all_equal(run_layer(other, x), expected)
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    assert all_equal(run_layer(torch.load(stream, weights_only=False), x), expected)


@every_layer
def test_a_layer_may_infer_before_it_is_trained(make: Callable[[], nn.Module], x: Tensor) -> None:
    layer = make()
    with torch.inference_mode():
        inferred = layer(x)
    found = run_layer(layer, x)
    assert close(found[0], inferred, 1e-6)  # perhaps by another kernel
    assert all_equal(found, run_layer(make(), x))


@every_kernel
@every_definition
def test_weights_made_inside_a_transform_serve_calls_outside(forced: Forced, kind: Callable[..., Definition]) -> None:
    x, v = forced.random(3, N), forced.random(3, N, seed=1)
    surroundings: list[Callable[[Definition], object]] = [
        lambda d: torch.func.grad(lambda x: forced(x, d).square().sum())(x),
        lambda d: torch.func.vmap(lambda x: forced(x, d))(x),
        lambda d: torch.func.jvp(lambda x: forced(x, d), (x,), (v,)),
        lambda d: torch.inference_mode()(lambda: forced(x, d))(),
    ]
    for first_call in surroundings:
        definition = unused(kind)
        dense = matrix(definition, N).to(x)
        first_call(definition)
        again = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(forced(again, definition).square().sum(), again, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), again)
        hessian = 2 * dense.T @ dense
        assert close(gradient.detach(), x @ hessian)
        assert close(second, 2 * x @ hessian @ hessian)


@every_kernel
@every_definition
def test_forward_mode_is_the_operator_on_the_tangent(forced: Forced, kind: Callable[..., Definition]) -> None:
    x, v, definition = forced.random(3, N), forced.random(3, N, seed=1), kind(0.4)
    y, expected = (multiplied(matrix(definition, N), data).to(x) for data in (x, v))
    moved = torch.func.jvp(lambda x: forced(x, definition), (x,), (v,))
    assert close(moved[0], y)
    assert close(moved[1], expected)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(forced(forward_ad.make_dual(x, v), definition))
        assert dual.tangent is not None
        assert close(dual.tangent, expected)


@every_kernel
@every_definition
def test_transforms_in_alpha_meet_plain_autograd(forced: Forced, kind: Callable[..., Definition]) -> None:
    x, alpha = forced.random(3, N), alpha_of(forced).detach()

    def run(alpha: Tensor, x: Tensor = x) -> Tensor:
        return forced(x, kind(alpha, bounds=(0, 1)))

    def energy(alpha: Tensor, x: Tensor = x) -> Tensor:
        return run(alpha, x).square().sum()

    def gradient(alpha: Tensor, x: Tensor = x) -> Tensor:
        alpha = alpha.clone().requires_grad_()
        return torch.autograd.grad(energy(alpha, x), alpha)[0]

    step = 1e-5
    slope = (run(alpha + step) - run(alpha - step)) / (2 * step)
    curvature = (gradient(alpha + step) - gradient(alpha - step)) / (2 * step)
    one = torch.ones_like(alpha)
    assert close(torch.func.jvp(run, (alpha,), (one,))[1], slope, 1e-8)  # rounding / step
    assert close(torch.func.grad(energy)(alpha), gradient(alpha))
    for hessian in (torch.func.hessian(energy), torch.func.jacrev(torch.func.jacrev(energy))):
        assert close(hessian(alpha), curvature, 1e-8)
    several = torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64, device=forced.device)
    assert close(torch.func.vmap(run)(several), torch.stack([run(each) for each in several]))
    per_sample = torch.func.vmap(lambda row: torch.func.grad(energy)(alpha, row))(x)
    assert close(per_sample, torch.stack([gradient(alpha, row) for row in x]))


@every_kernel
@pytest.mark.parametrize("where", [0, 1, 2])
def test_vmap_is_a_loop(forced: Forced, where: int) -> None:
    for dim, alpha in ((0, 0.4), (1, 0.4), (1, (0.2, 0.4, 0.6))):
        x = forced.random(3, N, 4).movedim(-1, where) if dim else forced.random(N, 3, 4).movedim(-1, where)
        definition = Caputo(alpha)
        found = torch.func.vmap(lambda x, d=definition, dim=dim: forced(x, d, DT, dim), where, where)(x)
        expected = [forced(part, definition, DT, dim) for part in x.unbind(where)]
        assert close(found, torch.stack(expected, where))


@every_layer
def test_functional_call_gives_one_gradient_per_sample(make: Callable[[], nn.Module], x: Tensor) -> None:
    layer = make()
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def energy(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (row[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(energy), (None, 0))(parameters, x)
    for index, row in enumerate(x):
        expected = run_layer(layer, row[None])[2:]
        for each, gradient in zip(found.values(), expected, strict=True):
            assert close(each[index], gradient, 1e-5)  # float32, in another order of summation


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what dynamo tells about its own parts
@every_layer
def test_a_compiled_layer_computes_the_same(make: Callable[[], nn.Module], x: Tensor) -> None:
    torch._dynamo.reset()
    layer = make()
    compiled = torch.compile(layer, backend="eager")
    for data in (x, x + 1):
        found, expected = run_layer(layer, data, compiled), run_layer(layer, data)
        for one, other in zip(found, expected, strict=True):
            assert close(one, other, 1e-6)  # the formulas in place of the kernel, in float32


@pytest.mark.parametrize("kind", CLASSICAL, ids=lambda kind: kind.__name__)
def test_first_gradients_are_the_same_where_the_order_is_upstream_of_the_samples(
    kind: Callable[..., Definition],
) -> None:
    raw, x = torch.tensor(0.1, dtype=torch.float64, requires_grad=True), torch.linspace(-1, 1, 20).double()

    def loss(raw: Tensor) -> Tensor:
        alpha = torch.sigmoid(raw)
        layer = kind(alpha, bounds=(0, 1))
        return derivative(derivative(x * alpha, layer, dt=DT), layer, dt=DT).square().sum()

    (plain,), (recorded,) = (torch.autograd.grad(loss(raw), raw, create_graph=creates) for creates in (False, True))
    torch.testing.assert_close(recorded, plain, rtol=1e-10, atol=0)
    with torch.no_grad():
        difference = (loss(raw + 1e-5) - loss(raw - 1e-5)) / 2e-5
    torch.testing.assert_close(plain, difference, rtol=1e-6, atol=0)  # 1e-5 squared, and 1e-16 / 1e-5
