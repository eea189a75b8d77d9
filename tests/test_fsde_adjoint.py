"""Gradients: the adjoint is backpropagation of the same scheme, with states saved alone."""

import gc
import math
import weakref

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import SDE, STOCHASTIC_SCHEMES, VOLTERRA_WEIGHTS, Exponentials, Window, fsdeint
from hpfracc_nn.solvers.noise import Coloured, FractionalBrownian
from hpfracc_nn.solvers.rules import RULES
from tests.sde_cases import REFERENCE, Given, Network, assert_same, gradients, responses
from tests.solver_cases import Counted

SLOW = pytest.mark.slow


def rows():
    """Return every scheme, integral and noise type of the table at alpha = 1, for Brownian motion."""
    return [
        pytest.param(rule.scheme, interpretation, noise_type)
        for rule in RULES
        if rule.driver == "brownian" and not rule.has_memory
        for interpretation in rule.interpretations[-1:]
        for noise_type in rule.noise_types
    ]


@pytest.mark.parametrize(("scheme", "interpretation", "noise_type"), rows())
def test_the_adjoint_is_backpropagation_of_the_same_scheme(scheme, interpretation, noise_type):
    sde = Network(noise_type)
    options = {"scheme": scheme, "interpretation": interpretation, "n_steps": 130}  # two blocks
    assert_same(gradients(sde, True, **options), gradients(sde, False, **options))


@pytest.mark.parametrize("history", ["auto", "full", "fft", Exponentials(1e-3), Window(9)], ids=str)
@pytest.mark.parametrize("weights", VOLTERRA_WEIGHTS)
@pytest.mark.slow
def test_it_is_for_every_kind_of_weights_and_history(weights, history):
    options = {"alpha": 0.7, "weights": weights, "history": history, "n_steps": 130}
    assert_same(gradients(Network(), True, **options), gradients(Network(), False, **options))


@pytest.mark.parametrize("alpha", [0.55, 0.95, 1.0, [0.6, 0.75, 0.9], [[0.6], [0.8]]], ids=str)
@pytest.mark.parametrize("noise_type", ["additive", "diagonal", "scalar", "general"])
def test_it_is_for_every_kind_of_order_and_noise(noise_type, alpha):
    sde = Network(noise_type)
    assert_same(gradients(sde, True, alpha=alpha), gradients(sde, False, alpha=alpha))


@pytest.mark.parametrize("n_steps", [1, 2, 127, 128, 129, pytest.param(255, marks=SLOW), pytest.param(300, marks=SLOW)])
@pytest.mark.parametrize("alpha", [None, 0.7])
def test_it_is_for_every_number_of_steps(n_steps, alpha):
    options = {"n_steps": n_steps, "alpha": alpha}
    assert_same(gradients(Network(), True, **options), gradients(Network(), False, **options))


@pytest.mark.parametrize("weights", VOLTERRA_WEIGHTS)
def test_it_is_for_a_last_block_of_one_step(weights):
    options = {"n_steps": 128, "alpha": 0.7, "weights": weights}
    assert_same(gradients(Network(), True, **options), gradients(Network(), False, **options))


@pytest.mark.parametrize("alpha", [None, 0.7])
@pytest.mark.parametrize("ts", [[0.0, 0.3, 1.2], [0.0, 1.2], [0.0, 0.01, 1.2]], ids=str)
def test_it_is_where_few_of_the_states_are_returned(ts, alpha):
    options = {"ts": ts, "dt": 0.01, "alpha": alpha}
    found = gradients(Network(), True, **options)
    assert found[0].shape == (len(ts), 2, 3)
    assert_same(found, gradients(Network(), False, **options))


@pytest.mark.parametrize("scheme", ["euler", "heun"])
@pytest.mark.parametrize("make", [lambda hurst: FractionalBrownian(hurst, bounds=(0.55, 0.9))], ids=["fractional"])
def test_it_is_for_a_learned_hurst_index(make, scheme):
    hurst = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    options = {"scheme": scheme, "interpretation": "stratonovich", "also": [hurst], "n_steps": 130}
    found = gradients(Network(), True, noise=make(hurst), **options)
    expected = gradients(Network(), False, noise=make(hurst), **options)
    assert found[-1].abs() > 0
    assert_same(found, expected)


def test_it_is_for_coloured_noise():
    noise = Coloured(0.3)
    options = {"scheme": "heun", "interpretation": "stratonovich", "noise": noise}
    assert_same(gradients(Network(), True, **options), gradients(Network(), False, **options))


def test_a_tuple_of_tensors_has_the_gradients_of_the_joined_state():
    parts = [torch.tensor([0.3, -0.2]).double().requires_grad_(), torch.tensor([[0.5]]).double().requires_grad_()]
    rate = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    ts = torch.linspace(0, 1, 41, dtype=torch.float64)

    def found(y0, sde, alpha):
        generator = torch.Generator().manual_seed(0)
        return fsdeint(sde, y0, ts, alpha=alpha, generator=generator)

    for alpha in (1.0, 0.8):
        apart = SDE(lambda t, y: (-rate * y[0], y[1].cos()), lambda t, y: (y[0].sin(), rate * y[1]))
        a, b = found(tuple(parts), apart, alpha)
        loss = a.square().sum() + b.sum()
        one = torch.autograd.grad(loss, [*parts, rate])
        joined = torch.cat([parts[0], parts[1].reshape(-1)])
        together = SDE(
            lambda t, y: torch.cat([-rate * y[:2], y[2:].cos()]), lambda t, y: torch.cat([y[:2].sin(), rate * y[2:]])
        )
        ys = found(joined, together, alpha)
        other = torch.autograd.grad(ys[:, :2].square().sum() + ys[:, 2].sum(), [*parts, rate])
        assert_same([a, b[..., 0], *one], [ys[:, :2], ys[:, 2:], *other])


def cases():
    return [("euler", "ito", 1.0), ("milstein", "ito", 1.0), ("srk", "ito", 1.0), ("euler", "ito", 0.7)] + [
        (scheme, "stratonovich", 1.0) for scheme in ("heun", "reversible_heun")
    ]


@pytest.mark.parametrize(("scheme", "interpretation", "alpha"), cases())
def test_a_random_direction_agrees_with_a_difference(scheme, interpretation, alpha):
    generator = torch.Generator().manual_seed(1)
    matrix, y0 = torch.randn(3, 3, dtype=torch.float64, generator=generator), torch.tensor([0.3, -0.5, 0.8]).double()
    inputs = [y0, matrix, *([torch.tensor(alpha, dtype=torch.float64)] if alpha < 1 else [])]
    ts = torch.linspace(0, 1, 65, dtype=torch.float64)

    def loss(y0, matrix, alpha=1.0):
        sde = SDE(lambda t, y: torch.tanh(matrix @ y) + t, lambda t, y: torch.sin(matrix.diagonal() * y))
        ys = fsdeint(
            sde,
            y0,
            ts,
            alpha=alpha,
            scheme=scheme,
            interpretation=interpretation,
            params=[matrix],
            generator=torch.Generator().manual_seed(5),
        )
        return (ys**2).sum()

    leaves = [each.clone().requires_grad_() for each in inputs]
    found = torch.autograd.grad(loss(*leaves), leaves)
    direction = [torch.randn(each.shape, dtype=torch.float64, generator=generator) for each in inputs]
    step = 1e-5
    ahead, behind = (
        loss(*(each + sign * step * part for each, part in zip(inputs, direction, strict=True))) for sign in (1, -1)
    )
    along = sum(float((each * part).sum()) for each, part in zip(found, direction, strict=True))
    assert along == pytest.approx(((ahead - behind) / (2 * step)).item(), rel=1e-6)


def variance_slope(sde, n_steps):
    """Return d Var / d alpha at alpha = 0.6 without Monte Carlo."""
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    _, units = responses(sde, 1.0, n_steps, True, alpha=alpha)
    (found,) = torch.autograd.grad(units.square().sum() / n_steps, alpha)
    return found.item()


def test_the_variance_of_the_driftless_process_has_its_slope_in_alpha():
    # Var = 1 / ((2 a - 1) Gamma(a)**2); left-point weights have -1.76, cell means alone -5.83.
    sde = SDE(lambda t, y: torch.zeros_like(y), lambda t, y: torch.ones_like(y), "additive")
    assert variance_slope(sde, 100) == pytest.approx(-15.60, rel=0.01)


@pytest.mark.slow
def test_the_variance_of_the_volterra_ornstein_uhlenbeck_process_has_its_slope_in_alpha():
    # The drift is frozen on each cell: 4.2 % off at 100 steps, 2.7 % at 200, 1.7 % at 400.
    sde = SDE(lambda t, y: -y, lambda t, y: torch.ones_like(y), "additive")
    exact = float(REFERENCE["volterra_ou"]["cases"][0]["dvar_dalpha"])
    errors = [variance_slope(sde, n) / exact - 1 for n in (100, 400)]
    assert errors[0] < 0.045
    assert errors[1] < 0.02


@pytest.mark.parametrize("alpha", [1.0, 0.7])
@pytest.mark.parametrize("n_steps", [140, 400])
def test_states_are_saved_and_no_graph(n_steps, alpha):
    sde = Network()
    y0 = torch.randn(16, 3, dtype=torch.float64, requires_grad=True)
    saved: weakref.WeakSet = weakref.WeakSet()

    class Kept:
        def __init__(self, x):
            self.x = x
            saved.add(self)

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.x):
        end = fsdeint(sde, y0, [0.0, 1.0], dt=1 / n_steps, alpha=alpha)[-1]
    distinct = {kept.x.data_ptr(): kept.x.numel() for kept in saved}
    blocks = math.ceil((n_steps + 1) / 128)
    states = blocks if alpha == 1 else n_steps + 1 + blocks
    parameters = sum(each.numel() for each in sde.parameters())
    # What drift and diffusion at the first step leave to torch's hooks is counted too: some tens of states.
    assert sum(distinct.values()) <= (states + 12) * y0.numel() + 2 * parameters
    seen, waiting = set(), [end.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    assert len(seen) < 20


def test_the_noise_of_the_backward_pass_is_that_of_the_forward_pass():
    # d X(1) / d sigma of X = sigma W is W(1): the state itself over sigma.
    sigma = torch.tensor(0.5, requires_grad=True)
    sde = SDE(lambda t, y: torch.zeros_like(y), lambda t, y: sigma * torch.ones_like(y), "additive")
    y0 = torch.zeros(3000)  # blocks of noise that are drawn again
    end = fsdeint(sde, y0, [0.0, 1.0], dt=0.01, generator=torch.Generator().manual_seed(0))[-1]
    weights = torch.linspace(0, 1, 3000)
    (found,) = torch.autograd.grad((end * weights).sum(), sigma)
    assert found.item() == pytest.approx((end.detach() * weights).sum().item() / 0.5, rel=1e-4)


def test_a_parameter_that_functions_make_something_of_gets_its_gradient():
    raw = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    rate = raw.exp()  # a graph that all calls share
    sde = SDE(lambda t, y: -rate * y, lambda t, y: rate * y.cos())
    ts = torch.linspace(0, 1, 131, dtype=torch.float64)

    def found(adjoint):
        generator = torch.Generator().manual_seed(0)
        end = fsdeint(sde, torch.ones(2).double(), ts, alpha=0.8, adjoint=adjoint, generator=generator)[-1]
        return torch.autograd.grad(end.sum(), raw, retain_graph=True)[0]

    torch.testing.assert_close(found(True), found(False), rtol=1e-12, atol=0)


def steered(drift, diffusion, scheme="euler", interpretation="ito", alpha=1.0, **options):
    """Return the end of an equation of 40 steps that reads other tensors at every step."""
    sde = SDE(
        lambda t, y: -drift[round(40 * float(t))] * y + 1, lambda t, y: 0.2 * diffusion[round(40 * float(t))] * y.cos()
    )
    generator, options = (
        torch.Generator().manual_seed(0),
        {"scheme": scheme, "interpretation": interpretation, **options},
    )
    y0, ts = torch.ones(2).double().requires_grad_(), torch.linspace(0, 1, 41, dtype=torch.float64)
    return fsdeint(sde, y0, ts, alpha=alpha, generator=generator, **options)[-1].sum()


def leaves():
    return [torch.tensor(1 + k / 40, dtype=torch.float64, requires_grad=True) for k in range(41)]


@pytest.mark.parametrize(("scheme", "interpretation", "alpha"), [case for case in cases() if case[0] != "srk"])
def test_leaves_that_are_read_after_the_first_step_get_their_gradients(scheme, interpretation, alpha):
    us, vs = leaves(), leaves()
    found, expected = (
        torch.autograd.grad(
            steered(us, vs, scheme, interpretation, alpha, adjoint=adjoint), [*us, *vs], materialize_grads=True
        )
        for adjoint in (True, False)
    )
    assert torch.stack(expected[1:40] + expected[42:81]).abs().min() > 0
    assert_same([torch.stack(found)], [torch.stack(expected)])


@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_a_tensor_that_nothing_says_they_will_read_is_refused_backwards(alpha):
    us, vs = leaves(), [u.exp() for u in leaves()]
    with pytest.raises(RuntimeError, match=r"fsdeint\(sde\).*shape \(\) .*first step.*params=.*or pass adjoint=False"):
        steered(us, vs, alpha=alpha).backward()
    steered(us, vs, alpha=alpha, params=vs).backward()


def test_a_second_derivative_needs_plain_backpropagation():
    y0, ts = torch.ones(1, dtype=torch.float64, requires_grad=True), torch.linspace(0, 1, 11, dtype=torch.float64)
    sde = SDE(lambda t, y: -(y**2), lambda t, y: y.sin())

    def slope(adjoint, alpha):
        generator = torch.Generator().manual_seed(0)
        ys = fsdeint(sde, y0, ts, adjoint=adjoint, generator=generator, alpha=alpha)
        return torch.autograd.grad(ys[-1].sum(), y0, create_graph=True)[0]

    for alpha in (1.0, 0.7):
        assert torch.autograd.grad(slope(False, alpha).sum(), y0)[0].abs() > 0
        with pytest.raises(RuntimeError, match="adjoint=False for second derivatives"):
            slope(True, alpha)


@pytest.mark.parametrize("scheme", STOCHASTIC_SCHEMES)
def test_a_diffusion_that_reads_no_parameter_and_no_state_has_no_gradient(scheme):
    y0 = torch.ones(4, dtype=torch.float64, requires_grad=True)
    sde = SDE(lambda t, y: -y, lambda t, y: torch.full(y.shape, 0.3, dtype=y.dtype))
    interpretation = "stratonovich" if "heun" in scheme else "ito"
    end = fsdeint(sde, y0, [0.0, 1.0], dt=0.1, scheme=scheme, interpretation=interpretation)[-1]
    (found,) = torch.autograd.grad(end.sum(), y0)
    assert (found - found[0]).abs().max() < 1e-12
    assert 0.3 < found[0] < 0.4


@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_float32_follows_float64(alpha):
    def found(dtype):
        y0 = torch.linspace(0, 1, 5, dtype=dtype, requires_grad=True)
        sde = SDE(lambda t, y: -torch.sin(y), lambda t, y: 0.5 * torch.cos(y))
        noise = torch.randn(2, 200, 2, 5, generator=torch.Generator().manual_seed(0)).to(dtype) / math.sqrt(200)
        given = Given(noise[0] if alpha < 1 else noise[0, :, 0])
        ys = fsdeint(sde, y0, torch.linspace(0, 1, 201), alpha=alpha, noise=given)
        return ys.detach(), torch.autograd.grad(ys.square().sum(), y0)[0]

    for one, other in zip(found(torch.float32), found(torch.float64), strict=True):
        # 200 sums in float32: sqrt(200) * 6e-8 each, some tens of them in the gradient.
        torch.testing.assert_close(one.double(), other, rtol=3e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("alpha", [None, 0.7, [0.6, 0.75, 0.9]], ids=str)
def test_on_a_gpu_the_adjoint_is_backpropagation(alpha):
    def found(adjoint):
        sde = Network().cuda()
        y0 = torch.linspace(-1, 1, 6, dtype=torch.float64, device="cuda").view(2, 3).requires_grad_()
        generator = torch.Generator("cuda").manual_seed(0)
        order = torch.tensor(alpha or 1.0, dtype=torch.float64, device="cuda", requires_grad=alpha is not None)
        ys = fsdeint(sde, y0, torch.linspace(0, 1, 101), alpha=order, adjoint=adjoint, generator=generator)
        wanted = [y0, *sde.inner.parameters(), *([] if alpha is None else [order])]
        return [ys.detach(), *torch.autograd.grad(ys.square().sum(), wanted)]

    assert_same(found(True), found(False))


@pytest.mark.parametrize("alpha", [0.7, 1.0])
def test_a_backward_pass_holds_the_graphs_of_some_blocks_and_leaves_none(alpha):
    Counted.alive.clear()
    net, y0 = torch.nn.Linear(3, 3), torch.ones(4, 3, requires_grad=True)
    sde = SDE(lambda t, y: Counted.apply(net(y)) - y, lambda t, y: 0.1 * y)
    y = fsdeint(sde, y0, [0.0, 1.0], alpha=alpha, dt=1 / 700, generator=torch.Generator().manual_seed(0))
    y[-1].sum().backward()
    del y
    gc.collect()
    assert max(Counted.alive) <= 128  # the steps of a block
    assert not Counted.nodes


@pytest.mark.parametrize("until", [0.0, 0.6])
@pytest.mark.parametrize("weights", VOLTERRA_WEIGHTS)
def test_it_is_where_drift_and_diffusion_read_the_state_at_some_times_or_never(weights, until):
    def found(adjoint):
        mu, s = (torch.full((2,), each, dtype=torch.float64, requires_grad=True) for each in (0.5, 0.3))
        y0 = torch.ones(2, dtype=torch.float64, requires_grad=True)
        sde = SDE(lambda t, y: mu * (1 + t) - (y if t < until else 0), lambda t, y: s * (1 + t), "additive")
        options = {"alpha": 0.7, "weights": weights, "dt": 0.01, "generator": torch.Generator().manual_seed(0)}
        y = fsdeint(sde, y0, [0, 0.5, 1, 1.5, 2.9, 3], adjoint=adjoint, **options)
        return torch.autograd.grad((y * torch.arange(1.0, 13).view(6, 2)).sum(), (mu, s, y0))

    for one, other in zip(found(True), found(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
