"""Multipliers on periodic signals, by their registration alone: eigenfunctions, gradients, layouts, closed forms."""

import functools
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional import (
    DEFINITIONS,
    MULTIPLIERS,
    FourierMultiplier,
    FractionalLaplacian,
    PeriodicRiesz,
    PeriodicWeyl,
    derivative,
    exact,
)
from hpfracc_nn.fractional.definitions.fourier_multiplier import _hurwitz
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.layers.torch import SpectralFractional
from tests.reference_cases import EXTENDED

every_multiplier = pytest.mark.parametrize("kind", MULTIPLIERS.values(), ids=list(MULTIPLIERS))
ALPHAS = (-1.5, -0.5, 0.0, 0.3, 1.0, 1.7, 2.0, 3.2)

# exp(i omega t) -> factor, from the docstrings.
SYMBOLS: dict[type[FourierMultiplier], Any] = {
    PeriodicWeyl: lambda omega, alpha: (1j * omega) ** alpha,
    PeriodicRiesz: lambda omega, alpha: -(omega**alpha) + 0j,
    FractionalLaplacian: lambda omega, alpha: omega**alpha + 0j,
}


def dense(definition: Any, n: int, dt: float) -> np.ndarray:
    """Return the operator as a matrix: its symbol on the discrete Fourier transform as it stands, O(n**2)."""
    k = np.arange(n)
    signed = np.where(k <= n // 2, k, k - n)
    alpha, factors = definition.alpha, np.zeros(n, complex)
    for j in k:
        size = 2 * np.pi * abs(signed[j]) / (n * dt)
        if size == 0:
            factors[j] = SYMBOLS[type(definition)](1.0, 0.0).real if alpha == 0 else 0
        else:
            factors[j] = SYMBOLS[type(definition)](size, alpha)
            factors[j] = factors[j] if signed[j] > 0 else factors[j].conj()
    waves = np.exp(2j * np.pi * np.outer(k, k) / n)
    return (waves @ np.diag(factors) @ waves.conj().T / n).real


def test_every_multiplier_has_its_symbol_here() -> None:
    assert set(SYMBOLS) == set(MULTIPLIERS.values())
    assert not set(MULTIPLIERS) & set(DEFINITIONS)


def test_what_is_periodic_is_called_so() -> None:
    assert "PERIODIC" in (PeriodicWeyl.__doc__ or "")
    assert "PERIODIC" in (FractionalLaplacian.__doc__ or "")
    assert not any(name == "weyl" for name in (*DEFINITIONS, *MULTIPLIERS))


@every_multiplier
@pytest.mark.parametrize("n", [1, 2, 8, 9, 40])
def test_a_multiplier_and_its_adjoint_are_the_dense_matrix(kind: type[FourierMultiplier], n: int) -> None:
    rng, dt = np.random.default_rng(0), 0.3
    x, g = rng.standard_normal((3, n, 2)), rng.standard_normal((3, n, 2))
    for alpha in ALPHAS:
        matrix = dense(kind(alpha), n, dt)
        size = 1e-12 * (1 + np.abs(matrix).max())
        wanted = np.einsum("ij,bjc->bic", matrix, x)
        np.testing.assert_allclose(kind(alpha)(x, dt=dt, dim=1), wanted, rtol=0, atol=size)
        tensor = torch.as_tensor(x).requires_grad_()
        y = derivative(tensor, kind(alpha), dt=dt, dim=-2)
        np.testing.assert_allclose(y.detach(), wanted, rtol=0, atol=size)
        (gx,) = torch.autograd.grad(y, tensor, torch.as_tensor(g))
        np.testing.assert_allclose(gx, np.einsum("ij,bic->bjc", matrix, g), rtol=0, atol=size)


@every_multiplier
def test_waves_are_eigenfunctions_with_two_pi_and_the_spacing_in_place(kind: type[FourierMultiplier]) -> None:
    period, n, turns = 3.0, 64, 5
    t = period * np.arange(n) / n
    omega = 2 * math.pi * turns / period
    for alpha in ALPHAS:
        factor = SYMBOLS[kind](omega, alpha)
        wanted = (factor * np.exp(1j * omega * t)).real
        np.testing.assert_allclose(kind(alpha)(np.cos(omega * t), dt=period / n), wanted, rtol=0, atol=1e-12 * omega**4)


@every_multiplier
def test_orders_add_but_for_the_mean(kind: type[FourierMultiplier]) -> None:
    x = np.random.default_rng(1).standard_normal(31)
    x -= x.mean()
    sign = -1 if kind is PeriodicRiesz else 1
    for a, b in ((0.3, 0.9), (-0.5, 0.5), (1.2, -0.7)):
        np.testing.assert_allclose(kind(a)(kind(b)(x)), sign * kind(a + b)(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_weyls_orders_add_on_one_side_below_the_nyquist_frequency(side: str) -> None:
    x = np.random.default_rng(1).standard_normal(32)
    smooth = x - x.mean() - np.mean(x * (-1.0) ** np.arange(32)) * (-1.0) ** np.arange(32)
    for signal, adds in ((smooth, side != "both"), (x - x.mean(), False)):
        twice, once = (
            PeriodicWeyl(0.3, side=side)(PeriodicWeyl(0.9, side=side)(signal)),
            PeriodicWeyl(1.2, side=side)(signal),
        )
        assert (np.abs(twice - once).max() < 1e-12) == adds


@every_multiplier
def test_gradients_of_every_order_and_transforms(kind: type[FourierMultiplier]) -> None:
    x = torch.randn(2, 3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    alpha = torch.tensor([0.4, 1.0, 1.6], dtype=torch.float64, requires_grad=True)

    def operator(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        return derivative(x, kind(alpha), dt=0.7, dim=-1)

    assert torch.autograd.gradcheck(operator, (x, alpha), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(operator, (x, alpha))
    mapped = torch.func.vmap(lambda x: operator(x, alpha))(x)
    torch.testing.assert_close(mapped, operator(x, alpha))
    fixed = derivative(x, kind([0.4, 1.0, 1.6]), dt=0.7, dim=-1)
    torch.testing.assert_close(fixed, operator(x, alpha))


@pytest.mark.slow
@every_multiplier
def test_multipliers_compile_into_one_graph(kind: type[FourierMultiplier]) -> None:
    x = torch.randn(2, 3, 9, dtype=torch.float64)
    alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    for order in (alpha, 0.4):
        operator = functools.partial(derivative, definition=kind(order), dt=0.7, dim=-1)
        compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), operator(x))


@every_multiplier
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 2e-3), ("float32", 1e-6), ("float64", 1e-14)])
def test_the_dtype_stays_and_sets_the_accuracy(kind: type[FourierMultiplier], dtype: str, bound: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 50)).astype(dtype)
    wanted = kind(0.5)(x.astype(float), dim=-1)
    for y in (kind(0.5)(x, dim=-1), kind(0.5)(torch.as_tensor(x), dim=-1).numpy()):
        assert y.dtype == x.dtype
        assert np.linalg.norm(y - wanted) <= bound * np.linalg.norm(wanted)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_laplacian_of_a_plane_wave_knows_each_axis_and_its_spacing(dimensions: int) -> None:
    sizes, spacings, turns = (8, 9, 10)[:dimensions], (0.5, 0.25, 0.1)[:dimensions], (1, 2, -3)[:dimensions]
    grids = np.meshgrid(*[np.arange(n) * dt for n, dt in zip(sizes, spacings, strict=True)], indexing="ij")
    omega = [2 * math.pi * k / (n * dt) for k, n, dt in zip(turns, sizes, spacings, strict=True)]
    wave = np.cos(sum(w * grid for w, grid in zip(omega, grids, strict=True)))
    size = math.sqrt(sum(w * w for w in omega))
    for alpha in (0.5, 1.3, 2.0):
        y = FractionalLaplacian(alpha)(np.stack([wave, 2 * wave]), dt=spacings, dim=tuple(range(1, dimensions + 1)))
        np.testing.assert_allclose(y[1], 2 * size**alpha * wave, rtol=0, atol=1e-11 * size**alpha)
        backwards = FractionalLaplacian(alpha)(
            torch.as_tensor(wave), dt=spacings[::-1], dim=tuple(range(-1, -dimensions - 1, -1))
        )
        np.testing.assert_allclose(backwards, size**alpha * wave, rtol=0, atol=1e-11 * size**alpha)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_gaussian_in_the_plane_and_in_space(dimensions: int) -> None:
    errors = []
    for half, n in ((6.0, 24), (12.0, 48)):
        axis = np.linspace(-half, half, n, endpoint=False)
        grids = np.meshgrid(*[axis] * dimensions, indexing="ij")
        r = np.sqrt(sum(grid**2 for grid in grids))
        y = FractionalLaplacian(1.0)(np.exp(-(r**2)), dt=axis[1] - axis[0], dim=tuple(range(dimensions)))
        errors.append(np.abs(y - exact.gaussian(r, 1.0, dimensions))[r < 1].max())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(dimensions + 1, abs=0.6)  # the next term


def gaussian_errors(space: str, alpha: float) -> list[float]:
    errors = []
    for length in (16, 32, 64):
        x = (np.arange(8 * length) - 4 * length) / 8
        y = FractionalLaplacian(alpha, space=space)(np.exp(-(x**2)), dt=1 / 8)
        errors.append(float(np.abs(y - exact.gaussian(x, alpha))[np.abs(x) <= 2].max()))
    return errors


@pytest.mark.parametrize("alpha", [0.8, 1.5])
def test_images_are_seen_at_the_stated_rate_and_taken_out_at_the_stated_rate(alpha: float) -> None:
    for space, rate in (("periodic", 1 + alpha), ("line", 3 + alpha)):
        errors = gaussian_errors(space, alpha)
        rates = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
        assert min(rates) > rate - 0.2
        if space == "line":
            assert errors[-1] < 1e-6


def test_the_reference_values_of_a_gaussian_are_met() -> None:
    case = EXTENDED["fraclap_gauss_a08"]
    points, wanted = np.array(case["points"]), np.array(case["values"], float)
    np.testing.assert_allclose(exact.gaussian(points, 0.8), wanted, rtol=1e-12, atol=1e-13)
    x = (np.arange(512) - 256) / 8
    y = FractionalLaplacian(0.8, space="line")(np.exp(-(x**2)), dt=1 / 8)
    np.testing.assert_allclose(y[np.rint(points * 8).astype(int) + 256], wanted, rtol=0, atol=1e-6)


def test_the_line_has_gradients_and_no_jumps_at_its_ends() -> None:
    x = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    alpha = torch.tensor([0.4, 1.6], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, a: derivative(x, FractionalLaplacian(a, space="line"), dt=0.7), (x, alpha)
    )
    for end, near in ((0.0, 1e-9), (2.0, 2 - 1e-9)):
        at, beside = (FractionalLaplacian(a, space="line")(x.detach().numpy(), dt=0.7) for a in (end, near))
        np.testing.assert_allclose(at, beside, rtol=0, atol=1e-6)


def on_the_line(alpha: float | torch.Tensor) -> torch.Tensor:
    """Return (-Laplacian)**(alpha/2) of exp(-x**2) at 0; exactly 2**alpha Gamma((1 + alpha) / 2) / sqrt(pi)."""
    x = torch.arange(-256, 256, dtype=torch.float64) / 8
    return FractionalLaplacian(alpha, space="line")(torch.exp(-(x**2)), dt=1 / 8)[256]


@pytest.mark.parametrize(
    ("end", "compiled"), [(0.0, False), (0.7, False), pytest.param(0.7, True, marks=pytest.mark.slow), (2.0, False)]
)
def test_a_learned_order_on_the_line_has_the_value_and_the_slope_of_the_closed_form(end: float, compiled: bool) -> None:
    torch.compiler.reset()
    call = torch.compile(on_the_line, backend="aot_eager", fullgraph=True) if compiled else on_the_line
    alpha = torch.tensor(end, dtype=torch.float64, requires_grad=True)
    y = call(alpha)
    (slope,) = torch.autograd.grad(y, alpha)
    value = 2**end * math.gamma((1 + end) / 2) / math.sqrt(math.pi)
    digamma = float(torch.special.digamma(torch.tensor((1 + end) / 2, dtype=torch.float64)))
    # The images' rest falls like L**-(3 + alpha); L = 64, times constants of order 1, and log(L) in the slope.
    assert y.item() == pytest.approx(value, abs=1e-5)
    assert slope.item() == pytest.approx(value * (math.log(2) + digamma / 2), abs=5e-5)
    assert call(alpha.detach()).item() == y.item()
    assert on_the_line(end).item() == pytest.approx(y.item(), abs=1e-14)


def test_hurwitz_zeta_meets_scipy() -> None:
    from scipy.special import zeta

    q = np.array([0.5, 1.0, 1.5])
    for s in (1.1, 1.8, 3.0, 4.5):
        np.testing.assert_allclose(_hurwitz(np.array([s - 1]), q, NUMPY), (s - 1) * zeta(s, q), rtol=1e-13)
    np.testing.assert_allclose(_hurwitz(np.zeros(1), q, NUMPY), 1, rtol=1e-15)


def test_nothing_in_gives_nothing_out() -> None:
    for shape in ((0, 5), (3, 0)):
        assert PeriodicWeyl(0.5)(np.empty(shape)).shape == shape
        alpha = torch.tensor(0.5, requires_grad=True)
        y = derivative(torch.empty(shape), PeriodicWeyl(alpha))
        (gradient,) = torch.autograd.grad(y.sum(), alpha)
        assert y.shape == shape
        assert gradient == 0


@every_multiplier
def test_tensors_without_data_keep_their_shape(kind: type[FourierMultiplier]) -> None:
    x, alpha = torch.ones(2, 8, device="meta"), torch.tensor(0.5, requires_grad=True)
    for order in (0.5, alpha):
        y = kind(order)(x, dim=-1)
        assert y.shape == x.shape
        assert y.device.type == "meta"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PeriodicWeyl(math.inf), ValueError, r"^PeriodicWeyl\(alpha=inf\): needs a finite alpha; "),
        (lambda: PeriodicWeyl(0.5, side="up"), ValueError, r"needs one of 'both', 'left', 'right'"),
        (
            lambda: FractionalLaplacian(2.5, space="line"),
            ValueError,
            r"needs 0 <= alpha <= 2; pass space='periodic'\.$",
        ),
        *(
            (
                lambda alpha=alpha: FractionalLaplacian(torch.tensor([0.5, alpha]), space="line")(torch.ones(2, 8)),
                ValueError,
                r"space='line'\): needs 0 <= alpha <= 2; pass space='periodic'\.$",
            )
            for alpha in (-0.5, 2.5)
        ),
        (
            lambda: PeriodicWeyl(torch.tensor(math.nan))(torch.ones(4)),
            ValueError,
            r"^PeriodicWeyl\(alpha=nan\): needs a finite alpha; ",
        ),
        (lambda: FractionalLaplacian(0.5, space="ball"), ValueError, r"needs one of 'line', 'periodic'"),
        (
            lambda: PeriodicRiesz(0.5)(np.ones((2, 3)), dim=(0, 1)),
            ValueError,
            r"needs one axis; pass such as dim=-1\.$",
        ),
        (
            lambda: FractionalLaplacian(0.5)(np.ones((2, 3)), dim=(0, 0)),
            ValueError,
            r"needs one to 3 different axes; pass such as dim=\(-2, -1\)\.$",
        ),
        (
            lambda: FractionalLaplacian(0.5)(np.ones((2, 3)), dim=(0, 1), dt=(1.0,)),
            ValueError,
            r"needs one spacing, or one for each of 2 axes; pass as many\.$",
        ),
        (lambda: FractionalLaplacian(0.5)(np.ones(3), dt=0.0), ValueError, r"needs a finite dt > 0"),
        (
            lambda: FractionalLaplacian(0.5, space="line")(np.ones((4, 4)), dim=(0, 1)),
            ValueError,
            r"on 2 axes: needs one axis, because the images are known in closed form there",
        ),
        (
            lambda: FractionalLaplacian([0.5, 1.0])(np.ones((3, 4))),
            ValueError,
            r"needs alpha to broadcast to the axes that are not transformed, \(3,\); ",
        ),
        (
            lambda: PeriodicWeyl(0.5)(np.ones(3, object)),
            TypeError,
            r"needs float16, float32 or float64; pass x\.astype",
        ),
        (lambda: PeriodicWeyl(torch.tensor(0.5))(np.ones(3)), TypeError, r"pass x as a tensor of the same framework"),
        (lambda: PeriodicWeyl(0.5)(object()), TypeError, r"needs samples in an array"),
    ],
)
def test_what_cannot_be_transformed_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("place", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_a_field_of_several_axes_must_say_which_of_them_are_transformed(place: Any) -> None:
    """A plane wave on a square has |k|**alpha as its factor on both axes, |k_1|**alpha on the last alone."""
    n = 16
    t = 2 * math.pi * np.arange(n) / n
    field = place(np.sin(3 * t[:, None] + 4 * t))
    message = re.escape(
        "(dim=None, x of shape (16, 16)): needs dim, because FractionalLaplacian takes one to 2 of 2 axes; "
        "pass dim=-1 for the last alone, or such as dim=(-2, -1)."
    )
    for call in (lambda: derivative(field, FractionalLaplacian(1.0)), lambda: FractionalLaplacian(1.0)(field)):
        with pytest.raises(ValueError, match=message):
            call()
    for axes, factor in (((-2, -1), 5.0), (-1, 4.0), (0, 3.0)):
        found = derivative(field, FractionalLaplacian(1.0), dt=t[1], dim=axes)
        np.testing.assert_allclose(found, factor * field, rtol=0, atol=1e-12)
    derivative(field, FractionalLaplacian(1.0, space="line"))  # which takes one axis only
    derivative(field, PeriodicRiesz(1.0))
    derivative(field, FractionalLaplacian([1.0] * n))  # one axis is that of the orders
    derivative(field[0], FractionalLaplacian(1.0))


def test_a_layer_of_a_field_must_say_so_too() -> None:
    fields = torch.ones(2, 3, 8)
    for call in (
        lambda: SpectralFractional(0.5)(fields),
        lambda: SpectralFractional(0.5, channels=3)(fields),
        lambda: SpectralFractional(0.5, learn_alpha=True)(fields),
    ):
        with pytest.raises(ValueError, match=r"^SpectralFractional\(dim=None, x of shape \(2, 3, 8\)\): needs dim, "):
            call()
    for layer, x in (
        (SpectralFractional(0.5, dim=-1), fields),
        (SpectralFractional(0.5, "periodic_riesz"), fields),
        (SpectralFractional(0.5, channels=3), fields[0]),
        (SpectralFractional(0.5), fields[0, 0]),
    ):
        assert layer(x).shape == x.shape


class Steep(FourierMultiplier):
    """|omega|**alpha times a strength, for orders from 1 on."""

    strength: float

    def __init__(self, alpha: Any, strength: float):
        object.__setattr__(self, "strength", strength)
        super().__init__(alpha)

    def check(self, alpha: float) -> None:
        if alpha < 1:
            raise ValueError(f"Steep(alpha={alpha:g}): needs an order of at least 1.")

    def symbol(self, alpha, omega, xp):
        return self.strength * abs(omega[0]) ** alpha, None


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_learned_order_of_a_users_multiplier_is_neither_checked_nor_built_anew(framework):
    t = np.arange(16) * 2 * math.pi / 16
    if framework == "torch":
        x, alpha = torch.from_numpy(np.sin(2 * t)), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        y = Steep(alpha, 3.0)(x, dt=t[1]).detach()
    else:
        jnp = pytest.importorskip("jax.numpy")
        x = jnp.asarray(np.sin(2 * t), jnp.float32)
        y = Steep(jnp.asarray(1.5, jnp.float32), 3.0)(x, dt=float(t[1]))
    np.testing.assert_allclose(y, 3 * 2**1.5 * np.sin(2 * t), rtol=0, atol=1e-5)  # float32 in JAX
