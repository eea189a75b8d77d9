"""What every operator does for any order, scheme, length, step and layout: identities on examples that are drawn."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from hpfracc_nn.fractional import DEFINITIONS, Definition, GrunwaldLetnikov, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.namespace import NUMPY
from tests.operator_problems import Problem, problems, seeds, steps
from tests.properties import between, holds_for


@holds_for(6, problem=problems(), a=st.floats(-100, 100), b=st.floats(-100, 100))
def test_operators_are_linear(problem: Problem, a: float, b: float) -> None:
    x, z = problem.samples(2)
    together = problem.definition(a * x + b * z, dt=problem.dt)
    apart = a * problem.definition(x, dt=problem.dt) + b * problem.definition(z, dt=problem.dt)
    size = abs(a) * np.abs(x) + abs(b) * np.abs(z)
    np.testing.assert_allclose(together, apart, rtol=0, atol=2 * problem.rounding(size))


@holds_for(6, problem=problems(least=2), data=st.data())
def test_the_past_does_not_know_the_future(problem: Problem, data: st.DataObject) -> None:
    """But where x'(0) is estimated, which takes the first four samples."""
    assume(problem.definition.side == "left")
    stencil = problem.definition.stencil(problem.n, problem.dt, NUMPY)
    ahead = 3 if stencil.subtract and stencil.taylor == 2 else 0
    now = data.draw(st.integers(min(ahead + 1, problem.n), problem.n))
    x = problem.samples()
    other = x.copy()
    other[now:] = 1e3 * np.cos(np.arange(problem.n - now))
    before, after = (problem.definition(each, dt=problem.dt)[:now] for each in (x, other))
    np.testing.assert_allclose(after, before, rtol=0, atol=problem.rounding(other))


@holds_for(6, problem=problems(), later=st.integers(1, 9))
def test_what_begins_later_has_the_same_result_later(problem: Problem, later: int) -> None:
    """Four zeros first: schemes treat the first samples in their own way, and all else alike."""
    x, longer = problem.samples(), replace(problem, n=problem.n + later + 4)
    early, late = np.zeros((2, longer.n))
    early[4 : 4 + problem.n], late[4 + later :] = x, x
    first, second = (longer.definition(each, dt=problem.dt) for each in (early, late))
    np.testing.assert_allclose(second[later:], first[:-later], rtol=0, atol=2 * longer.rounding(x))


@holds_for(6, problem=problems(), unit=st.floats(1e-2, 1e2))
def test_another_unit_of_time_is_a_power_of_it(problem: Problem, unit: float) -> None:
    """A derivative is in x / time**alpha, an integral in x time**alpha; rates and times of a definition change too."""
    own, x = problem.definition, problem.samples()
    changed = {"rate": lambda rate: rate / unit, "unit": lambda time: time * unit}
    other = replace(own, **{name: changed[name](getattr(own, name)) for name in own.own_fields if name in changed})
    power = {"caputo_fabrizio": 0.0, "atangana_baleanu": 0.0}.get(name_of(own), 1.0 if is_integral(own) else -1.0)
    got = other(x, dt=unit * problem.dt)
    # The order's power of the step is rounded by its exponent, alpha |log dt|, which the units add to.
    digits = 1 + 2 * (abs(math.log(unit)) + abs(math.log(problem.dt)))
    scale = unit ** (power * float(own.alpha))  # type: ignore[arg-type]
    np.testing.assert_allclose(got, scale * own(x, dt=problem.dt), rtol=0, atol=digits * scale * problem.rounding(x))


def name_of(definition: Definition) -> str:
    return next(name for name, kind in DEFINITIONS.items() if kind is type(definition))


def is_integral(definition: Definition) -> bool:
    return name_of(definition).endswith("_integral")


@holds_for(
    4, a=between(-1, 1), b=between(-1, 1), scheme=st.sampled_from(GrunwaldLetnikov.schemes), seed=seeds, dt=steps
)
def test_orders_of_grunwald_and_letnikov_add(a: float, b: float, scheme: str, seed: int, dt: float) -> None:
    assume(a + b >= -1)
    one, other, both = (Problem(GrunwaldLetnikov(order, scheme), 24, dt, seed) for order in (a, b, a + b))
    x = both.samples()
    between_them = other.definition(x, dt=dt)
    found = one.definition(between_them, dt=dt)
    lost = both.rounding(x) + one.rounding(between_them) + np.abs(one.matrix).sum(-1).max() * other.rounding(x)
    np.testing.assert_allclose(found, both.definition(x, dt=dt), rtol=0, atol=lost)


@holds_for(4, a=st.floats(0.05, 1.5), b=st.floats(0.05, 0.5), rate=st.floats(-3, 3))
def test_orders_of_integrals_add_to_second_order(a: float, b: float, rate: float) -> None:
    errors = []
    for n_steps in (50, 100, 200):
        t, dt = np.linspace(0, 1, n_steps + 1), 1 / n_steps
        x = t**3 * np.exp(rate * t)
        twice = RiemannLiouvilleIntegral(a)(RiemannLiouvilleIntegral(b)(x, dt=dt), dt=dt)
        errors.append(np.abs(twice - RiemannLiouvilleIntegral(a + b)(x, dt=dt)).max())
    assert errors[-1] <= errors[0] / 16 * 2 or errors[-1] < 1e-12, errors  # two halvings, and a factor to spare


@holds_for(6, problem=problems(), part=st.floats(0.001, 0.999))
def test_operators_are_continuous_in_their_order(problem: Problem, part: float) -> None:
    """The weights change by log(lag) and log(dt) of themselves, and by digamma functions of the order's distance."""
    own, apart = problem.definition, 1e-8
    low = max(type(own).lowest, math.floor(float(own.alpha)))  # type: ignore[arg-type]
    low = min(low, type(own).highest - 1)
    alpha = low + part  # inside of an interval of whole numbers
    here, there = (replace(problem, definition=replace(own, alpha=order)) for order in (alpha, alpha + apart))
    change = 40 / min(part, 1 - part) + 4 * abs(math.log(problem.dt)) + 4 * math.log(1 + problem.n)
    gap = np.abs(there.matrix - here.matrix).max()
    assert gap <= apart * change * here.size + here.rounding(np.ones(1))


@holds_for(6, problem=problems())
def test_single_precision_loses_roundings_only(problem: Problem) -> None:
    x = problem.samples().astype(np.float32)
    assume(np.abs(problem.matrix).max() * 64 * problem.n < np.finfo(np.float32).max)
    y, exactly = (problem.definition(each, dt=problem.dt) for each in (x, x.astype(float)))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, exactly, rtol=0, atol=problem.rounding(x, "float32"))
