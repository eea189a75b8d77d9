"""Every definition, by its registration alone: values, rates, weights, gradients, identities, limits, layouts, dtypes.

What it is compared with is mathematics: closed forms, the docstring's formula summed as it stands (`memories.py`),
mpmath. A new definition needs a formula there; all else follows.
"""

import functools
import itertools
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from hpfracc_nn.fractional import DEFINITIONS, Caputo, Definition, Riesz, derivative, exact
from hpfracc_nn.fractional.exact import power
from hpfracc_nn.fractional.exponentials import exponentials, tolerance
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.weights import Weights
from tests.definition_cases import ALL, NEW, VARIANTS, only_the_first_of_each_kind_is_fast, over, within
from tests.memories import REFERENCES, WEIGHTS

N, DT = 60, 0.1
X = np.random.default_rng(0).standard_normal(N)
EPS = np.finfo(float).eps
LAGS = np.array([*range(18), 31, 32, 63, 64, 65, 127, 128, 129, 1000, 10**4, 10**5, 10**6])
every_case = over(ALL)
every_new_case = over(NEW)
every_definition = pytest.mark.parametrize("kind", DEFINITIONS.values(), ids=list(DEFINITIONS))


def matrix(definition: Definition, n: int = N, dt: float = DT) -> np.ndarray:
    return definition.stencil(n, dt, NUMPY).as_matrix()


def test_every_definition_has_its_formula_here() -> None:
    assert set(REFERENCES) == set(DEFINITIONS.values())
    assert set(VARIANTS) <= set(DEFINITIONS)


# Values

# Riesz needs a signal that vanishes at both ends: `test_riesz.py`. Hadamard's are the classical ones in log t.
AS_OTHERS = {
    "hadamard": "riemann_liouville",
    "caputo_hadamard": "caputo",
    "hadamard_integral": "riemann_liouville_integral",
}
with_powers = over({case: found for case, found in ALL.items() if found[0] is not Riesz})


def test_names_of_before_warn_or_are_refused() -> None:
    stencil = Caputo(0.5).stencil(4, 1.0, NUMPY)
    with pytest.warns(DeprecationWarning, match=r"Stencil\.weights"):
        assert stencil.left is stencil.weights
    with pytest.raises(TypeError, match=r"Own\._left: needs the name _weights; rename the method\."):
        type("Own", (Caputo,), {"_left": lambda self: None})


@every_definition
def test_definitions_in_the_logarithm_of_time_are_the_others(kind: type[Definition]) -> None:
    name = next(name for name, other in DEFINITIONS.items() if other is kind)
    if name in AS_OTHERS:
        other = DEFINITIONS[AS_OTHERS[name]]
        np.testing.assert_array_equal(matrix(kind(0.4)), matrix(other(0.4)))
        assert kind(0.4) != other(0.4)


@with_powers
@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_powers_are_met_at_the_declared_rate(kind: type[Definition], options: dict, exponent: float) -> None:
    points = np.array([0.5, 1.0, 2.0])
    for alpha in within(kind, (0.3, 0.8)):
        definition, errors = kind(alpha, **options), []
        for n_steps in (128, 256, 512):
            t, dt = np.linspace(0, 2, n_steps + 1), 2 / n_steps
            y = definition(t**exponent, dt=dt)
            errors.append(np.abs(y[np.rint(points / dt).astype(int)] - power(points, exponent, definition)).max())
        fallen = rates([error for error in errors if error > 1e-11])
        # the next term of the error is not yet small: for a fast memory, and for 3 - alpha at small alpha
        slack = 0.35 if options.get("rate") == 30.0 or options["scheme"] in ("l1", "l1_2") else 0.1
        assert max(errors) < 1e-10 or min(fallen) > definition.accuracy(alpha) - slack, (alpha, errors)


@with_powers
def test_the_largest_error_of_all_samples_falls_at_the_declared_rate(kind: type[Definition], options: dict) -> None:
    exponents = (0, 1, 2, 3) if kind.subtracts or kind.dt_power > 0 else (1, 2, 3)  # else zero at the first sample
    for alpha in within(kind, (-0.5, 0.3, 0.8, 1.3, 1.7)):
        definition = kind(alpha, **options)
        declared, largest, early = definition.uniform_accuracy(alpha), [], []
        for n_steps in (64, 128, 256):
            t, dt = np.linspace(0, 2, n_steps + 1), 2 / n_steps
            wanted = sum(power(t[1:], j, definition) / math.factorial(j) for j in exponents)
            errors = np.abs(definition(sum(t**j / math.factorial(j) for j in exponents), dt=dt)[1:] - wanted)
            largest.append(errors.max())
            early.append(errors[:3].max())
        slack = 0.2 if options.get("rate") == 30.0 else 0.1  # as above
        assert min(rates(largest)) > declared - slack, (alpha, largest)
        if declared < definition.accuracy(alpha):  # not understated
            assert max(rates(early)) < declared + 0.25, (alpha, early)  # the next power is dt times as large


def rates(errors: list[float]) -> list[float]:
    return [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]


@every_case
@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_the_formula_summed_as_it_stands_is_met_to_the_schemes_error(
    kind: type[Definition], options: dict, alpha: float
) -> None:
    """Both are discretised; where the scheme is the same formula they agree to rounding."""
    definition = kind(alpha, **options)
    t = DT / 4 * np.arange(N)
    smooth = 1 + np.sin(2 * t)
    got, wanted = definition(smooth, dt=DT / 4), REFERENCES[kind](smooth, DT / 4, definition)
    is_the_formula = options["scheme"] in ("l1", "trapezoid", "centred") or kind.lowest < 0
    if kind.lowest < 0 and options["scheme"] != "grunwald":
        return  # bdf2 without a start: another filter
    size = np.abs(wanted[1:]).max()
    # a scheme of first order is off by about alpha dt / 2 of the derivative and by O(1) of dt at the first samples
    bound = 1e-12 if is_the_formula else 0.2 if options.get("rate") == 30.0 else 0.05
    assert np.abs(got - wanted)[(1 if is_the_formula else 5) :].max() < bound * size


@over({case: found for case, found in NEW.items() if found[0] is not Riesz})
def test_exponentials_have_the_closed_form_that_their_series_has(kind: type[Definition], options: dict) -> None:
    """exp(k t) = sum of (k t)**j / j!, each power by its own closed form."""
    definition, points = kind(0.6, **options), np.array([0.25, 1.0])
    if kind.__name__ == "AtanganaBaleanu":
        with pytest.raises(ValueError, match=r"has no closed form for exponentials and sinusoids here"):
            exact.exponential(points, 0.5, definition)
        return
    series = sum(0.05**j / math.factorial(j) * power(points, j, definition) for j in range(5))
    # the next term is 0.05**5 / 120 = 3e-9 times a power's derivative, the sum 0.02 or more
    np.testing.assert_allclose(exact.exponential(points, 0.05, definition), series, rtol=1e-7, atol=1e-8)


# Weights


@only_the_first_of_each_kind_is_fast()
@pytest.mark.parametrize("alpha", [0.5, *(pytest.param(alpha, marks=pytest.mark.slow) for alpha in (0.1, 0.9))])
def test_weights_are_exact_to_rounding_up_to_a_million_lags(
    kind: type[Definition], options: dict, alpha: float
) -> None:
    definition = kind(alpha, **options)
    got = definition.stencil(1, 1.0, NUMPY).column(LAGS)
    if kind in WEIGHTS:
        with mpmath.workdps(30):
            wanted = np.array([float(WEIGHTS[kind](definition, int(lag))) for lag in LAGS])
    elif kind.__name__ == "Marchaud":  # Caputo's, which mpmath vouches for
        wanted = Caputo(alpha, options["scheme"]).stencil(1, 1.0, NUMPY).column(LAGS)
    else:
        wanted = tempered_weights(definition, options)
    # weights below the smallest double's reach count for nothing
    np.testing.assert_allclose(got, wanted, rtol=2e-12, atol=1e-16 * abs(wanted[0]))


@functools.cache
def plain_weights(alpha: float, scheme: str) -> np.ndarray:
    return Caputo(alpha, scheme).stencil(1, 1.0, NUMPY, differences=0).column(np.arange(LAGS[-1] + 1))


def tempered_weights(definition: Any, options: dict) -> np.ndarray:
    """Sum the faded weights of no difference, which mpmath vouches for elsewhere, one by one and in long double."""
    lags = np.arange(LAGS[-1] + 1)
    faded = plain_weights(definition.alpha, options["scheme"]) * np.exp(-np.longdouble(definition.rate) * lags)
    sums = np.cumsum(faded) if definition.differences else faded
    return sums[LAGS].astype(float)


@every_new_case
def test_sums_of_exponentials_stand_for_the_weights(kind: type[Definition], options: dict) -> None:
    for alpha, n, precision in itertools.product((0.1, 0.5, 0.9), (128, 4096), ("float32", "float64")):
        definition = kind(alpha, **options).in_steps(0.01)
        found = exponentials(definition, n, precision)
        assert found is not None, (alpha, n, precision)
        assert found.error(definition) <= tolerance(n, precision)


def test_a_caputo_fabrizio_memory_is_one_number_for_each_order() -> None:
    kind = DEFINITIONS["caputo_fabrizio"]
    for orders in (0.4, [0.3, 0.8], [0.5, 0.5 + 1e-9, 0.9], [0.0, 1.0], [0.4, 0.4]):
        definition = kind(orders).in_steps(0.01)
        found = exponentials(definition, 2**16, "float64")
        assert found is not None
        assert found.states == np.unique(orders).size
        assert found.error(definition) <= tolerance(2**16, "float64")
    x = np.random.default_rng(2).standard_normal((3, 2000))
    y = kind([0.2, 0.5, 0.9])(x, dt=0.1)
    for row, order, result in zip(x, (0.2, 0.5, 0.9), y, strict=True):
        np.testing.assert_allclose(result, kind(order)(row, dt=0.1), rtol=0, atol=1e-11)


# Gradients in alpha


@every_new_case
def test_the_gradient_in_alpha_is_that_of_the_dense_matrix(kind: type[Definition], options: dict) -> None:
    n, step, g = 131, 1e-4, np.cos(np.arange(131.0))
    x = np.sin(np.arange(n) / 9) + 0.3
    for at in (0.3, 0.7):
        alpha = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        y = derivative(torch.as_tensor(x), kind(alpha, **options), dt=DT)
        (got,) = torch.autograd.grad(y @ torch.as_tensor(g), alpha)
        values = {i: g @ matrix(kind(at + i * step, **options, bounds=(0, 1)), n) @ x for i in (-2, -1, 1, 2)}
        wanted = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)
        assert abs(got.item() - wanted) < 1e-8 * max(abs(v) for v in values.values()) + 1e-8 * abs(wanted)


@only_the_first_of_each_kind_is_fast()
@pytest.mark.slow
def test_first_and_second_gradients_meet_finite_differences(kind: type[Definition], options: dict) -> None:
    x = torch.as_tensor(X[:16]).requires_grad_()
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)

    def operator(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        return derivative(x, kind(alpha, **options), dt=DT)

    assert torch.autograd.gradcheck(operator, (x, alpha))
    assert torch.autograd.gradgradcheck(operator, (x, alpha), fast_mode=True, atol=1e-4, rtol=1e-4)


@every_new_case
@pytest.mark.slow
def test_tables_give_the_weights_of_the_formula(kind: type[Definition], options: dict) -> None:
    alpha = torch.tensor([1e-6, 0.02, 0.37, 0.8, 1 - 1e-6], dtype=torch.float64)
    for n in (100, 3000):
        one, other = (
            Weights(kind(alpha, **options), n, DT, torch.float64, torch.device("cpu"), tabulated=tabulated)
            for tabulated in (True, False)
        )
        assert (one.source.family is not None) == kind.is_tabulated
        first = other.column().weights.abs().amax(-1, keepdim=True)
        # bdf2's starting column is a small difference of powers up to n**2
        for got, wanted, size in (
            (one.column().weights, other.column().weights, 1e-13 * first),
            (one.boundary_columns(), other.boundary_columns(), 8 * EPS * n**2 * first),
        ):
            if wanted is not None:
                assert got is not None
                bound = 1e-12 * wanted.abs() + size
                assert torch.all((got - wanted).abs() <= bound), (n, ((got - wanted).abs() / bound).max())


# Compiled graphs


def assert_compiles(definition: Definition) -> None:
    torch.compiler.reset()  # a function may be compiled eight times
    x = torch.as_tensor(X).requires_grad_()

    def operator(x: torch.Tensor) -> torch.Tensor:
        return derivative(x, definition, dt=DT)

    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), operator(x), rtol=0, atol=0)


@pytest.mark.parametrize("side", [pytest.param("left", marks=pytest.mark.slow), "right"])
@pytest.mark.slow
def test_numbers_and_words_reach_a_compiled_graph(side: str) -> None:
    options = {"sense": "riemann_liouville", "unit": 0.3, "side": side}
    assert_compiles(DEFINITIONS["atangana_baleanu"](0.3, **options))  # type: ignore[arg-type]


@pytest.mark.slow
@every_new_case
def test_every_definition_compiles_into_one_graph(kind: type[Definition], options: dict) -> None:
    assert_compiles(kind(0.4, **options))


# Identities


@every_case
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_operators_are_linear(kind: type[Definition], options: dict, alpha: float) -> None:
    definition, other = kind(alpha, **options), np.cos(np.arange(N))
    together = definition(2 * X - 5 * other, dt=DT)
    apart = 2 * definition(X, dt=DT) - 5 * definition(other, dt=DT)
    np.testing.assert_allclose(together, apart, rtol=0, atol=1e-13 * N * np.abs(matrix(definition)).max())


@every_case
def test_the_adjoint_is_the_transpose(kind: type[Definition], options: dict) -> None:
    for alpha in (0.0, 0.4, 0.9):
        definition = kind(alpha, **options)
        x, g = torch.as_tensor(X).requires_grad_(), torch.as_tensor(np.cos(np.arange(N)))
        y = derivative(x, definition, dt=DT)
        (gx,) = torch.autograd.grad(y, x, g)
        dense = matrix(definition)
        size = 1e-13 * N * np.abs(dense).max()
        np.testing.assert_allclose(y.detach(), dense @ X, rtol=0, atol=size)
        np.testing.assert_allclose(gx, dense.T @ g.numpy(), rtol=0, atol=size)


# Definitions with D^a D^b = D^(a + b) on functions that begin like t**3, and the sum's own order.
SEMIGROUPS = (
    "grunwald_letnikov",
    "riemann_liouville_integral",
    "hadamard_integral",
    "riemann_liouville",
    "hadamard",
    "caputo",
    "caputo_hadamard",
    "marchaud",
    "tempered_riemann_liouville",
    "tempered_caputo",
)


@pytest.mark.parametrize("name", SEMIGROUPS)
def test_orders_add_where_they_should(name: str) -> None:
    kind, gaps = DEFINITIONS[name], []
    for n_steps in (200, 400):
        t, dt = np.linspace(0, 1, n_steps + 1), 1 / n_steps
        x = t**3 * np.exp(-t)
        one_by_one = kind(0.4)(kind(0.3)(x, dt=dt), dt=dt)
        gaps.append(np.abs(one_by_one - kind(0.7)(x, dt=dt)).max())
    assert gaps[0] < 1e-12 or math.log2(gaps[0] / gaps[1]) > 0.9


@pytest.mark.parametrize("name", sorted(set(DEFINITIONS) - set(SEMIGROUPS)))
def test_orders_do_not_add_elsewhere(name: str) -> None:
    """Documented: the table of semigroups above is complete."""
    t = np.linspace(0, 1, 401)
    x, kind = t**3, DEFINITIONS[name]
    gap = kind(0.4)(kind(0.3)(x, dt=1 / 400), dt=1 / 400) - kind(0.7)(x, dt=1 / 400)
    assert np.abs(gap).max() > 1e-3


# Limits


@every_case
def test_alpha_zero_is_the_identity_but_for_the_first_sample(kind: type[Definition], options: dict) -> None:
    y = kind(0.0, **options)(X, dt=DT)
    if kind is Riesz:
        np.testing.assert_allclose(y, -X, rtol=1e-14)
        return
    fading = np.exp(-getattr(kind(0.5, **options), "rate", 0.0) * DT * np.arange(N))
    assert any(np.abs(X - y - initial).max() < 1e-13 for initial in (np.zeros(N), X[0] * fading))


@every_new_case
def test_alpha_one_is_the_ordinary_difference(kind: type[Definition], options: dict) -> None:
    definition: Any = kind(1.0, **options)
    if kind is Riesz:
        return  # nothing ordinary: the Hilbert transform of -x'
    rows = slice(3, None)  # beyond the start
    steps = {"l1": (1, -1), "grunwald": (1, -1), "l1_2": (1.5, -2, 0.5), "bdf2": (1.5, -2, 0.5)}[options["scheme"]]
    if "rate" in kind.own_fields:
        grown = np.exp(definition.rate * DT * np.arange(N)) * X
        wanted = np.convolve(steps, grown)[:N] / DT * np.exp(-definition.rate * DT * np.arange(N))
    else:
        wanted = np.convolve(steps, X)[:N] / DT * getattr(definition, "unit", 1.0)
    np.testing.assert_allclose(definition(X, dt=DT)[rows], wanted[rows], rtol=0, atol=1e-12 / DT)


@every_new_case
@pytest.mark.parametrize(("limit", "side"), [(0, 1), (1, -1)], ids=["above 0", "below 1"])
def test_operators_are_continuous_towards_whole_orders(
    kind: type[Definition], options: dict, limit: int, side: int
) -> None:
    at, gaps = matrix(kind(float(limit), **options))[1:], []
    for distance in (1e-4, 1e-6):
        gaps.append(np.abs(matrix(kind(limit + side * distance, **options))[1:] - at).max())
    assert gaps[1] < 2e-2 * gaps[0] + 1e-11


@every_new_case
def test_a_time_scale_is_a_matter_of_units(kind: type[Definition], options: dict) -> None:
    definition = kind(0.4, **options)
    in_steps = definition.in_steps(DT)
    scaled = matrix(in_steps, dt=1.0) * DT ** (kind.dt_power * 0.4)
    np.testing.assert_allclose(matrix(definition), scaled, rtol=1e-13, atol=1e-14 * np.abs(scaled).max())


# Layouts, dtypes, lengths


@every_new_case
def test_layouts_lengths_and_channels_are_those_of_the_matrix(kind: type[Definition], options: dict) -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 9, 65, 200):
        dense = matrix(kind(0.4, **options), n)
        x = rng.standard_normal((2, n, 3))
        wanted = np.einsum("ij,bjc->bic", dense, x)
        size = 1e-12 * n * np.abs(dense).max()
        np.testing.assert_allclose(kind(0.4, **options)(x, dt=DT, dim=1), wanted, rtol=0, atol=size)
        got = derivative(torch.as_tensor(x).movedim(1, -1), kind(0.4, **options), dt=DT)
        np.testing.assert_allclose(got.movedim(-1, 1), wanted, rtol=0, atol=size)
    orders = [0.2, 0.5, 0.9]
    each = kind(orders, **options)(x, dt=DT, dim=1)
    for channel, order in enumerate(orders):
        dense = matrix(kind(order, bounds=(0, 1), **options), 200)
        size = 1e-11 * 200 * np.abs(dense).max()
        np.testing.assert_allclose(each[..., channel], x[..., channel] @ dense.T, rtol=0, atol=size)


@every_new_case
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 2e-3), ("float32", 2e-6), ("float64", 1e-12)])
def test_the_dtype_stays_and_sets_the_accuracy(kind: type[Definition], options: dict, dtype: str, bound: float) -> None:
    x = X.astype(dtype)
    wanted = matrix(kind(0.5, **options)) @ x.astype(float)
    for y in (kind(0.5, **options)(x, dt=DT), kind(0.5, **options)(torch.as_tensor(x), dt=DT).numpy()):
        assert y.dtype == x.dtype
        assert np.linalg.norm(y - wanted) <= bound * np.linalg.norm(wanted)


@every_new_case
def test_values_equal_values_and_options_make_a_difference(kind: type[Definition], options: dict) -> None:
    one, other = kind(0.5, **options), kind(0.5, **options)
    assert one == other == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(other)
    for name in kind.own_fields:
        value = getattr(one, name)
        if isinstance(value, float):
            other_value: dict[str, Any] = {name: 2 * value + 1}
            assert replace(one, **other_value) != one
    assert json.dumps(one.options) == json.dumps([getattr(one, name) for name in kind.own_fields])
