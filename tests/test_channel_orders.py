"""Channels of different orders at any step: one channel's weights are none of another's business.

At dt = 1e-12 the weights of orders 0.1 and 1.9 are 1e21 apart. The oracle is the dense matrix of each channel in
float64.
"""

import numpy as np
import pytest
import torch

from hpfracc_nn import FractionalLayer, GrunwaldLetnikov, HadamardIntegral, RiemannLiouvilleIntegral, Riesz, derivative
from hpfracc_nn.fractional import DEFINITIONS
from hpfracc_nn.fractional.exponentials import TOLERANCES
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import slope_row

jax = pytest.importorskip("jax")

FRAMEWORKS = {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jax.numpy.asarray}
PAIRS = [(0.1, 0.9), (0.0, 1.0), (0.1, 1.9), (0.0, 2.0), (1.1, 1.9)]
STEPS = [1e-12, 1e-6, 1.0, 1e6, 1e12]
CLOSE = 1e-11  # measured: 1.3e-13 of the largest result of a channel, where the weights are exact


def accepts(kind, scheme, pair):
    """Whether a definition has both orders at once."""
    try:
        kind(pair, scheme=scheme)
    except ValueError:
        return False
    return True


CASES = [
    pytest.param(kind, scheme, pair, n, id=f"{name}-{scheme}-{pair[0]}-{pair[1]}-{n}")
    for name, kind in DEFINITIONS.items()
    for scheme in kind.schemes
    for pair in PAIRS
    if accepts(kind, scheme, pair)
    for n in (24, 300)  # one matrix; several chunks
]


def check(framework, definition, dt, n):
    x = np.random.default_rng(0).standard_normal((2, 2, n)).cumsum(-1)
    matrices = definition.stencil(n, dt, NUMPY).as_matrix()
    with jax.enable_x64(True):
        found = np.asarray(derivative(FRAMEWORKS[framework](x), definition, dt=dt))
    for i in range(2):
        wanted = x[:, i] @ matrices[i].T
        allowed = CLOSE * np.abs(wanted).max() + TOLERANCES["float64"] * absolute(definition, x[:, i], i, dt)
        assert np.abs(found[:, i] - wanted).max() <= allowed, i


def absolute(definition, x, channel, dt):
    """Return the largest sum of |weight| |difference|: an exponential is right to a tolerance of each weight."""
    stencil = definition.stencil(x.shape[-1], dt, NUMPY)
    sums = []
    for data in (x, x[:, ::-1]):
        u = data - stencil.subtract * data[:, :1]
        if stencil.subtract and stencil.taylor == 2:
            u = u - np.arange(stencil.n) * (data @ slope_row(stencil.n))[:, None]
        m = stencil.differences
        d = np.cumsum(u, -1) if m < 0 else np.diff(np.pad(u, ((0, 0), (m, 0))), m)
        lag = np.subtract.outer(np.arange(stencil.n), np.arange(stencil.n))
        weights = np.where(lag >= 0, np.abs(stencil.weights[channel])[np.maximum(lag, 0)], 0)
        sums.append((np.abs(d) @ weights.T).max())
    return max(sums)


@pytest.mark.parametrize(("kind", "scheme", "pair", "n"), CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_channel_has_the_weights_of_its_own_order(framework, kind, scheme, pair, n):
    for dt in STEPS:
        check(framework, kind(pair, scheme=scheme), dt, n)


@pytest.mark.parametrize("kind", [GrunwaldLetnikov, RiemannLiouvilleIntegral, HadamardIntegral, Riesz])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_orders_far_apart_at_a_tiny_step_keep_both_channels(framework, kind):
    check(framework, kind((0.1, 1.9)), 1e-12, 24)


def test_every_definition_has_two_pairs_of_orders_among_the_cases():
    kinds = [(case.values[0], case.values[2]) for case in CASES]
    assert all(len({pair for kind, pair in kinds if kind is each}) >= 2 for each in DEFINITIONS.values())


def test_the_order_zero_stays_the_identity_beside_the_order_two():
    x = torch.randn(1, 2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for alpha in ((0.0, 2.0), [0.0, 2.0]):
        layer = FractionalLayer(alpha, "grunwald_letnikov", channels=2, dt=1e-10)
        torch.testing.assert_close(layer(x)[0, 0], x[0, 0])


def test_learned_orders_and_their_gradients_are_those_of_each_channel():
    x = torch.randn(2, 2, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha = torch.tensor([0.1, 1.9], dtype=torch.float64, requires_grad=True)
    y = derivative(x, GrunwaldLetnikov(alpha, bounds=(0, 2)), dt=1e-12)
    slopes = torch.autograd.grad(y[:, 0].sum() + 1e-21 * y[:, 1].sum(), alpha)[0]
    for i, scale in enumerate((1.0, 1e-21)):
        own = alpha[i].detach().clone().requires_grad_()
        alone = derivative(x[:, i], GrunwaldLetnikov(own, bounds=(0, 2)), dt=1e-12)
        torch.testing.assert_close(y[:, i], alone, rtol=1e-10, atol=1e-10 * float(alone.detach().abs().max()))
        torch.testing.assert_close(slopes[i], scale * torch.autograd.grad(alone.sum(), own)[0], rtol=1e-9, atol=0)
