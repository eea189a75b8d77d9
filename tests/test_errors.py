"""Bad input, by its whole message: the rule, the value that broke it, the way out."""

import re

import numpy as np
import pytest

import hpfracc_nn as fnn
from hpfracc_nn.errors import printable
from hpfracc_nn.training import table
from tests.selection_kernels import WORK, fake, fake_manager, registering

X = np.zeros((2, 3, 8))
NAN, INF = float("nan"), float("inf")


def says(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


ALPHAS = [
    (
        lambda: fnn.Caputo(2.3),
        "Caputo(alpha=2.3): needs 0 <= alpha <= 2; take the samples' own derivative first, "
        "such as scipy.interpolate.CubicSpline(t, x, axis=-1)(t, 1), then alpha=1.3 of it.",
    ),
    (
        lambda: fnn.RiemannLiouville(2.5),
        "RiemannLiouville(alpha=2.5): needs 0 <= alpha <= 2; "
        "take alpha=1.5 first, then differentiate the result once with alpha=1.",
    ),
    (
        lambda: fnn.GrunwaldLetnikov(2.5),
        "GrunwaldLetnikov(alpha=2.5): needs -1 <= alpha <= 2; "
        "difference once with alpha=1, then use alpha=1.5 on the result.",
    ),
    (
        lambda: fnn.GrunwaldLetnikov(-1.5),
        "GrunwaldLetnikov(alpha=-1.5): needs -1 <= alpha <= 2; "
        "sum once with alpha=-1, then use alpha=-0.5 on the result.",
    ),
    (
        lambda: fnn.RiemannLiouvilleIntegral(2.5),
        "RiemannLiouvilleIntegral(alpha=2.5): needs 0 <= alpha <= 2; "
        "integrate once with alpha=1, then use alpha=1.5 on the result.",
    ),
    (
        lambda: fnn.Caputo(-0.5),
        "Caputo(alpha=-0.5): needs 0 <= alpha <= 2; for an integral of order 0.5 use RiemannLiouvilleIntegral(0.5).",
    ),
    (
        lambda: fnn.integral(X, -0.5),
        "RiemannLiouvilleIntegral(alpha=-0.5): needs 0 <= alpha <= 2; "
        "for a derivative of order 0.5 use RiemannLiouville(0.5).",
    ),
    (
        lambda: fnn.Caputo([0.5, 2.3, 0.2]),
        "Caputo(alpha=2.3): needs 0 <= alpha <= 2; take the samples' own derivative first, "
        "such as scipy.interpolate.CubicSpline(t, x, axis=-1)(t, 1), then alpha=1.3 of it.",
    ),
    (lambda: fnn.Caputo(NAN), "Caputo(alpha=nan): needs a finite alpha; pass 0 <= alpha <= 2."),
    (lambda: fnn.Caputo(INF), "Caputo(alpha=inf): needs a finite alpha; pass 0 <= alpha <= 2."),
    (
        lambda: fnn.caputo(X, [0.5, NAN, 0.5]),
        "Caputo(alpha=nan): needs a finite alpha; pass 0 <= alpha <= 2.",
    ),
    (
        lambda: fnn.Caputo([0.5, 1.5]),
        "Caputo(alpha=(0.5, 1.5)): needs all orders on one side of 1; apply the operator once per side.",
    ),
]


@pytest.mark.parametrize(("call", "message"), ALPHAS)
def test_an_order_out_of_range(call, message):
    with says(ValueError, message):
        call()


@pytest.mark.parametrize("alpha", [True, np.True_, "0.5", b"0.5", 0.5j, np.complex64(1), None, object, {0.5}])
def test_an_order_that_is_no_number(alpha):
    message = (
        f"Caputo(alpha={alpha!r}): needs a real number, a sequence of them or a tensor; pass for example alpha=0.5."
    )
    with says(TypeError, message):
        fnn.Caputo(alpha)


@pytest.mark.parametrize("alpha", [[], ["a"], [0.5, True, None], np.array([True, False]), np.array([0.5j])])
def test_orders_that_are_no_numbers(alpha):
    message = f"Caputo(alpha={alpha!r}): needs real numbers, one per channel; pass for example alpha=[0.3, 0.7]."
    with says(TypeError, message):
        fnn.Caputo(alpha)


def test_orders_in_ragged_lists():
    message = (
        "Caputo(alpha=[[0.5], [0.5, 0.6]]): needs real numbers, one per channel; pass for example alpha=[0.3, 0.7]."
    )
    with says(TypeError, message):
        fnn.Caputo([[0.5], [0.5, 0.6]])


@pytest.mark.parametrize("dt", [0, 0.0, -0.1, NAN, INF])
def test_a_step_that_is_not_positive(dt):
    out = "pass the spacing of the samples, such as dt=0.01."
    with says(ValueError, f"derivative(dt={dt!r}): needs a finite dt > 0; {out}"):
        fnn.derivative(X, fnn.Caputo(0.5), dt=dt)
    with says(ValueError, f"integral(dt={dt!r}): needs a finite dt > 0; {out}"):
        fnn.integral(X, 0.5, dt=dt)
    with says(ValueError, f"Caputo(dt={dt!r}): needs a finite dt > 0; {out}"):
        fnn.Caputo(0.5)(X, dt=dt)
    with says(ValueError, f"grunwald_letnikov(dt={dt!r}): needs a finite dt > 0; {out}"):
        fnn.grunwald_letnikov(np.zeros((0, 3)), 0.5, dt=dt)


@pytest.mark.parametrize("dt", ["0.1", None, True, 1j, [0.1]])
def test_a_step_that_is_no_number(dt):
    message = f"derivative(dt={dt!r}): needs a real number; pass the spacing of the samples, such as dt=0.01."
    with says(TypeError, message):
        fnn.derivative(X, fnn.Caputo(0.5), dt=dt)


@pytest.mark.parametrize("dtype", ["object", "longdouble", "clongdouble", "datetime64[s]"])
def test_samples_that_are_no_numbers_or_too_wide(dtype):
    name = np.dtype("longdouble" if dtype == "clongdouble" else dtype)
    message = f"derivative(x of dtype {name}): needs float16, float32 or float64; pass x.astype(numpy.float64)."
    with says(TypeError, message):
        fnn.derivative(X.astype(dtype), fnn.Caputo(0.5))


def test_samples_in_a_string():
    with says(
        TypeError,
        "caputo(x of type str): needs samples in an array; pass a NumPy array, a list, a torch tensor or a JAX array.",
    ):
        fnn.caputo("abc", 0.5)


@pytest.mark.parametrize(
    ("alpha", "shape", "dim", "rest"),
    [
        ([0.2, 0.3], "(2,)", -1, "(2, 3)"),
        ([0.2, 0.3], "(2,)", 1, "(2, 8)"),
        ([[[0.2]]], "(1, 1, 1)", 0, "(3, 8)"),
    ],
)
def test_orders_that_do_not_fit_the_channels(alpha, shape, dim, rest):
    message = (
        f"derivative(alpha of shape {shape}, x of shape (2, 3, 8)): needs alpha to broadcast to the "
        f"axes other than "
        f"time, {rest}; pass one alpha, or one per channel shaped to fit."
    )
    with says(ValueError, message):
        fnn.derivative(X, fnn.Caputo(alpha), dim=dim)


@pytest.mark.parametrize("dim", [3, -4, 100])
def test_a_time_axis_that_is_not_there(dim):
    message = f"derivative(dim={dim}): needs -3 <= dim < 3 for 3 axes; pass the index of the time axis, such as dim=-1."
    with says(ValueError, message):
        fnn.derivative(X, fnn.Caputo(0.5), dim=dim)


@pytest.mark.parametrize("dim", [0.0, "1", True, (0,)])
def test_a_time_axis_that_is_no_index(dim):
    message = f"derivative(dim={dim!r}): needs an integer; pass the index of the time axis, such as dim=-1."
    with says(TypeError, message):
        fnn.derivative(X, fnn.Caputo(0.5), dim=dim)


@pytest.mark.parametrize("x", [np.float64(1.0), np.array(1.0), 1.0])
def test_a_single_number_is_no_series(x):
    message = "derivative(x): needs at least one axis; x has shape (), pass a series of samples."
    with says(ValueError, message):
        fnn.derivative(x, fnn.Caputo(0.5))


def test_a_scheme_that_the_definition_has_not():
    with says(
        ValueError,
        "Caputo(scheme='l2'): needs one of 'bdf2', 'grunwald', 'l1', 'l1_2'; pass one of these names.",
    ):
        fnn.Caputo(0.5, "l2")
    with says(ValueError, "GrunwaldLetnikov(scheme='l1'): needs one of 'bdf2', 'grunwald'; pass one of these names."):
        fnn.grunwald_letnikov(X, 0.5, scheme="l1")
    with says(
        ValueError,
        "RiemannLiouvilleIntegral(scheme='l1'): needs one of 'trapezoid'; pass one of these names.",
    ):
        fnn.RiemannLiouvilleIntegral(0.5, "l1")


BOUNDS = [
    (TypeError, 0.5, "Caputo(bounds=0.5): needs two numbers; pass a pair such as (0, 1)."),
    (TypeError, (0, 1, 2), "Caputo(bounds=(0, 1, 2)): needs two numbers; pass a pair such as (0, 1)."),
    (TypeError, "ab", "Caputo(bounds='ab'): needs two numbers; pass a pair such as (0, 1)."),
    (ValueError, (1, 0), "Caputo(bounds=(1, 0)): needs low < high; pass a pair such as (0, 1)."),
    (ValueError, (0, NAN), "Caputo(bounds=(0, nan)): needs low < high; pass a pair such as (0, 1)."),
    (ValueError, (-1, 1), "Caputo(bounds=(-1, 1)): needs bounds within [0, 2]; pass a pair such as (0, 1)."),
    (
        ValueError,
        (0.2, 1.5),
        "Caputo(bounds=(0.2, 1.5)): needs no whole number between the bounds, where the operator jumps; pass (1, 1.5).",
    ),
    (
        ValueError,
        (0.6, 1),
        "Caputo(alpha=0.5, bounds=(0.6, 1)): needs alpha within its bounds; widen the bounds.",
    ),
]


@pytest.mark.parametrize(("error", "bounds", "message"), BOUNDS)
def test_bad_bounds(error, bounds, message):
    with says(error, message):
        fnn.Caputo(0.5, bounds=bounds)


@pytest.mark.parametrize(
    ("definition", "named"), [("caputo", "'caputo'"), (0.5, "0.5"), (None, "None"), (fnn.Caputo, "Caputo")]
)
def test_an_operator_that_is_no_definition(definition, named):
    message = f"derivative(definition={named}): needs a definition with its alpha; pass for example Caputo(0.5)."
    with says(TypeError, message):
        fnn.derivative(X, definition)


def test_an_integral_that_is_a_derivative():
    message = (
        "integral(alpha=Caputo(alpha=0.5, scheme='l1_2', bounds=None, side='left')): needs an order or a "
        "RiemannLiouvilleIntegral; "
        "pass a derivative to derivative(x, definition)."
    )
    with says(TypeError, message):
        fnn.integral(X, fnn.Caputo(0.5))


class Foreign:
    """An array of another framework, as far as its class tells."""

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("an array of a framework is not converted behind the caller's back")


@pytest.mark.parametrize("package", ["jax", "jaxlib"])
def test_what_only_looks_like_an_array_of_a_framework(package):
    pytest.importorskip("jax")
    array = type("Array", (Foreign,), {"__module__": f"{package}._src.array"})()
    with says(TypeError, "derivative(x of type Array): needs a JAX array; pass jax.numpy.asarray(x)."):
        fnn.derivative(array, fnn.Caputo(0.5))


def test_what_holds_no_samples():
    out = "needs samples in an array; pass a NumPy array, a list, a torch tensor or a JAX array."
    with says(TypeError, f"derivative(x of type NoneType): {out}"):
        fnn.derivative(None, fnn.Caputo(0.5))
    with says(TypeError, f"derivative(x of type dict): {out}"):
        fnn.derivative({}, fnn.Caputo(0.5))
    with says(
        ValueError,
        "derivative(x of type list): needs rows of one length; pass an array, or a list of equal lists.",
    ):
        fnn.derivative([[1.0], [1.0, 2.0]], fnn.Caputo(0.5))


def test_masked_samples():
    message = (
        "derivative(x of type numpy.ma.MaskedArray): needs a sample at every step; "
        "pass x.filled(value) with a value for the gaps."
    )
    with says(TypeError, message):
        fnn.derivative(np.ma.masked_invalid([1.0, NAN]), fnn.Caputo(0.5))


def test_an_order_of_another_framework_with_numpy_samples():
    class Tensor:
        shape, dtype = (), "float32"

    message = (
        "derivative(alpha of type Tensor): needs a float or an array of floats for a NumPy x; "
        "pass x as a tensor of the same framework as alpha."
    )
    with says(TypeError, message):
        fnn.derivative(X, fnn.Caputo(Tensor()))


def test_nothing_is_wrong_with_an_array_without_samples():
    for shape in ((0,), (3, 0), (0, 8)):
        assert fnn.derivative(np.zeros(shape), fnn.Caputo(0.5)).shape == shape


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 23])
def test_what_is_printable_stays_and_all_else_is_escaped(step):
    every = [chr(code) for code in [*range(0x300), *range(0x300, 0x110000, step)]]
    shown = [printable(each) for each in every]
    assert all(text.isprintable() for text in shown)
    assert all(text == each for text, each in zip(shown, every, strict=True) if each.isprintable())
    assert len(set(shown)) == len(every)
    assert printable("a\x1b[2J\n\u202eb\ud800 ü") == r"a\x1b[2J\n\u202eb\ud800 ü"


def test_names_in_the_tables_of_a_report_are_escaped():
    with registering() as add:
        add(fake("torch/\x1b[2J"))
        manager = fake_manager()
        site = manager.site("test_op", "torch", "layer\n\x1b]0;gotcha\x07")
        site.pick(0, lambda: WORK)
        rows = manager.report()
    texts = [table.plain(rows), table.plain(rows, 40), table.markdown(rows, "")]
    assert all(line.isprintable() for text in texts for line in text.split("\n"))
    assert all("gotcha" in text for text in texts)
