"""Sums of exponentials: whole vectors of states, as few as the weights allow, and coefficients that do not cancel."""

from collections.abc import Iterator

import numpy as np
import pytest

from hpfracc_nn.fractional import exponentials as fits
from hpfracc_nn.fractional.definitions import (
    Caputo,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouvilleIntegral,
)
from hpfracc_nn.fractional.exponentials import exponentials, nodes, tolerance
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numba import kernel as numba_kernel
from tests.definition_cases import CLASSICAL

FIXED = (0.0, 0.02, 0.25, 0.26, 0.5, 0.9, 1.02, 1.24, 1.9, 2.0)
# The steepest weights (m - alpha = -1/4), those that vanish, and those that do not decay, between the wider bounds.
HARDEST = ((0.0, 1.0), (1.0, 2.0), (0.0, 0.25), (1.0, 1.25))
LENGTHS = [128, *(pytest.param(n, marks=pytest.mark.slow) for n in (512, 2048, 8192, 65536, 2**20))]
precisions = pytest.mark.parametrize("precision", ["float32", "float64"])


class Tensor:
    """Stands for a framework's tensor, whose values are never read."""

    shape, dtype = (), "float64"


def learned(kind: type[Definition], scheme: str, bounds: tuple[float, float]) -> Definition:
    return kind(Tensor(), scheme, bounds)


def fixed_orders(kind: type[Definition], scheme: str) -> list[Definition]:
    return [kind(alpha, scheme) for alpha in (FIXED if kind.lowest == 0 else (-1.0, -0.5, -0.1, *FIXED))]


def every_definition() -> Iterator[Definition]:
    for kind in CLASSICAL:
        for scheme in kind.schemes:
            yield from fixed_orders(kind, scheme)
            yield from (learned(kind, scheme, bounds) for bounds in HARDEST)
            if kind.lowest < 0:
                yield learned(kind, scheme, (-1.0, 0.0))


@precisions
@pytest.mark.parametrize("n", LENGTHS)
def test_every_definition_has_exponentials_in_whole_vectors_of_states(n: int, precision: str) -> None:
    for definition in every_definition():
        found = exponentials(definition, n, precision)
        assert found is not None, definition
        assert found.states % numba_kernel._FILLED == 0
        # In double precision the steepest weights of all take the third try.
        more = 2 if (precision, definition.scheme, definition.bounds) == ("float64", "l1_2", (1.0, 1.25)) else 1
        assert found.states <= fits.FITS[precision].fewest(n) + more * fits.LANES, definition


@pytest.mark.parametrize("n", [128, 512, 2048])
def test_bounds_on_both_sides_of_zero_have_exponentials_while_the_series_is_short(n: int) -> None:
    """Their weights grow over one part of the bounds and decay over the other."""
    for scheme in GrunwaldLetnikov.schemes:
        assert exponentials(learned(GrunwaldLetnikov, scheme, (-0.4, 0.5)), n, "float32") is not None


@pytest.mark.parametrize(
    ("n", "states"), [(256, 24), (1024, 24), (4096, 24), (8192, 24), (16384, 32), (65536, 32), (2**19, 32), (2**20, 40)]
)
def test_the_default_operators_take_the_fewest_vectors_in_single_precision(n: int, states: int) -> None:
    for definition in (Caputo(Tensor()), Caputo(0.5), GrunwaldLetnikov(0.5), RiemannLiouvilleIntegral(0.5)):
        found = exponentials(definition, n, "float32")
        assert found is not None
        assert found.states <= states, definition


def test_a_fixed_order_of_a_half_takes_two_vectors_up_to_256_samples() -> None:
    for definition in (Caputo(0.5), Caputo(0.3), GrunwaldLetnikov(0.5)):
        found = exponentials(definition, 256, "float32")
        assert found is not None
        assert found.states == 2 * fits.LANES, definition


@precisions
@pytest.mark.parametrize("n", [1024, *(pytest.param(n, marks=pytest.mark.slow) for n in (128, 65536))])
def test_terms_of_the_sum_do_not_cancel(n: int, precision: str) -> None:
    """At a lag that the sum stands for they add up to little more than the weight, in single precision.

    At exact lags the sum is taken off again; there its terms may be 32 times the largest weight (measured: 12, in
    both precisions), which costs as many roundings.
    """
    fit = fits.FITS[precision]
    found = nodes(n, fit, fit.fewest(n))
    lags = np.arange(1, min(n, 2000)) if precision == "float32" else np.arange(1, fit.first)
    terms = np.exp(-found.rates[:, None] * (lags - fit.first))
    for kind in CLASSICAL:
        for scheme in kind.schemes:
            for definition in fixed_orders(kind, scheme):
                column = definition.stencil(1, 1.0, NUMPY).column
                size = abs(found.fit(column(found.lags), NUMPY)) @ abs(terms)
                exact, weights = lags < fit.first, abs(column(lags))
                largest = max(abs(column(np.arange(1)))[0], weights.max())
                assert size[exact].max() <= 32 * largest, definition
                if found.error(definition) <= tolerance(n, precision):
                    # measured: 1.06; what vanishes, as at a whole alpha, is rounding
                    assert np.all(size[~exact] <= 1.5 * weights[~exact] + 1e-9 * largest), definition
