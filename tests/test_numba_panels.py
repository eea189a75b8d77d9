"""Each instruction of the compiled core's inner loops is the formula in its docstring, and touches nothing else."""

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("needs Numba", allow_module_level=True)

from numba import njit

from hpfracc_nn.fractional.numba import panels
from hpfracc_nn.fractional.numba.panels import VECTOR

PRECISIONS = [np.float32, np.float64]
USED = [(8, 1), (4, 1)]  # rows and parts of what the kernels call; `advance` has half vectors too, the rest is slow
SHAPES = [*USED, *(pytest.param(r, p, marks=pytest.mark.slow) for r, p in [(1, 1), (1, 2), (2, 1), (8, 2)])]
every_precision = pytest.mark.parametrize("dtype", PRECISIONS)
every_shape = pytest.mark.parametrize(("rows", "parts"), SHAPES)


@lru_cache(maxsize=1)
def instructions() -> dict[str, Callable[..., Any]]:
    """Return makers of compiled functions on arrays whose strides are one more than they need to be."""

    def panel(rows: int, parts: int) -> Any:
        @njit
        def call(c, a, b, d, e):  # type: ignore[no-untyped-def]
            panels.panel(
                c[0, 0], rows, parts, c.ctypes.data, c.shape[1],
                a.ctypes.data, a.shape[1], 2, b.ctypes.data, b.shape[1], b.shape[0],
                d.ctypes.data, 1, d.shape[1], e.ctypes.data, e.shape[1], e.shape[0],
            )  # fmt: skip

        return call

    def add_panel(rows: int, parts: int) -> Any:
        @njit
        def call(c, a, b):  # type: ignore[no-untyped-def]
            panels.add_panel(
                c[0, 0], rows, parts, c.ctypes.data, c.shape[1],
                a.ctypes.data, a.shape[1], 2, b.ctypes.data, b.shape[1], b.shape[0],
            )  # fmt: skip

        return call

    def advance(rows: int, parts: int) -> Any:
        @njit
        def call(s, a, b, decay, state, powers):  # type: ignore[no-untyped-def]
            panels.advance(
                s[0, 0], rows, parts, s.ctypes.data, s.shape[1], a.ctypes.data, a.shape[1], 2,
                b.ctypes.data, b.shape[1], b.shape[0], decay.ctypes.data, state.ctypes.data,
                powers.ctypes.data, powers.shape[1],
            )  # fmt: skip

        return call

    def advance_side_by_side(rows: int, parts: int) -> Any:
        @njit
        def call(s, a, b, decay, state):  # type: ignore[no-untyped-def]
            panels.advance_side_by_side(
                s[0, 0], rows, parts, s.ctypes.data, a.ctypes.data, a.shape[1], 2, b.ctypes.data, b.shape[1],
                b.shape[0], decay.ctypes.data, state.ctypes.data,
            )  # fmt: skip

        return call

    made = (panel, add_panel, advance, advance_side_by_side)
    return {make.__name__: lru_cache(make) for make in made}


class Numbers:
    """Random arrays, and a tolerance: one rounding per term of at most 40."""

    def __init__(self, dtype: type, parts: int):
        self.dtype, self.lanes = dtype, VECTOR // np.dtype(dtype).itemsize // parts
        self.tolerance = 40 * float(np.finfo(dtype).eps)
        self._rng = np.random.default_rng(0)

    def __call__(self, *shape: int, dtype: type | None = None) -> np.ndarray:
        return self._rng.standard_normal(shape).astype(dtype or self.dtype)

    def assert_rows(self, found: np.ndarray, before: np.ndarray, right: np.ndarray) -> None:
        """Compare the rows' first lanes; nothing after them may have changed."""
        rows, lanes = right.shape
        assert np.abs(found[:rows, :lanes] - right).max() <= self.tolerance * max(1, np.abs(right).max())
        assert np.array_equal(found[:rows, lanes:], before[:rows, lanes:])
        assert np.array_equal(found[rows:], before[rows:])


@every_precision
@every_shape
@pytest.mark.slow
def test_a_panel_is_two_products_and_an_added_one_is_one_more(dtype: type, rows: int, parts: int) -> None:
    make = Numbers(dtype, parts)
    for first, second in ((16, 24), (0, 8), (5, 0), (0, 0)):
        b, e = make(first, make.lanes + 1), make(second, make.lanes + 3)
        a, d = make(rows, 2 * first + 1), make(second, rows + 1)
        before = make(rows + 1, make.lanes + 1)
        c = before.copy()
        instructions()["panel"](rows, parts)(c, a, b, d, e)
        one = a[:, : 2 * first : 2].astype(float) @ b[:, : make.lanes]
        two = d[:, :rows].T.astype(float) @ e[:, : make.lanes]
        make.assert_rows(c, before, one + two)
        c = before.copy()
        instructions()["add_panel"](rows, parts)(c, a, b)
        make.assert_rows(c, before, before[:rows, : make.lanes] + one)


@pytest.mark.slow
@every_precision
@pytest.mark.parametrize(("rows", "parts"), [*USED, (8, 2), (4, 2)])
def test_an_advance_is_a_scan_that_carries_its_state_in_double_precision(dtype: type, rows: int, parts: int) -> None:
    make = Numbers(dtype, parts)
    lanes = make.lanes
    a, b, before = make(rows, 33), make(16, lanes + 1), make(rows + 1, lanes + 1)
    decay = np.abs(make(lanes, dtype=np.float64)) % 1
    state, s = make(lanes, dtype=np.float64), before.copy()
    powers = np.pad((decay ** np.arange(rows)[:, None]).astype(dtype), ((0, 0), (0, 1)))
    rows_of, running, after = [], state.copy(), state.copy()
    for u in a[:, :32:2].astype(float) @ b[:, :lanes]:
        rows_of.append(running)
        running = decay * running + u
    factor = decay if dtype == np.float64 else decay**rows
    instructions()["advance"](rows, parts)(s, a, b, factor, after, powers)
    make.assert_rows(s, before, np.array(rows_of))
    make.assert_rows(after[None], state[None], running[None])


@every_precision
def test_an_advance_never_rounds_the_state_that_it_carries(dtype: type) -> None:
    make = Numbers(dtype, 1)
    a, b, s = np.zeros((8, 33), dtype), np.zeros((16, make.lanes), dtype), make(8, make.lanes)
    state = 1 + np.arange(1, make.lanes + 1) * 2.0**-50
    carried, ones = state.copy(), np.ones((8, make.lanes))
    instructions()["advance"](8, 1)(s, a, b, ones[0], carried, ones.astype(dtype))
    assert np.array_equal(carried, state)


@every_precision
@every_shape
def test_an_advance_side_by_side_has_one_decay_a_row(dtype: type, rows: int, parts: int) -> None:
    make = Numbers(dtype, parts)
    a, b, s = make(rows, 33), make(16, make.lanes + 1), make(rows + 1, make.lanes)
    decay, state, before = make(rows, dtype=np.float64), make(rows, make.lanes, dtype=np.float64), s.copy()
    carried = state.copy()
    instructions()["advance_side_by_side"](rows, parts)(s, a, b, decay, carried)
    make.assert_rows(s, before, state)
    right = decay[:, None] * state + a[:, :32:2].astype(float) @ b[:, : make.lanes]
    make.assert_rows(carried, state, right)


@every_precision
def test_rows_are_subtracted_in_place_where_none_is_read_after_it_was_written(dtype: type) -> None:
    @njit
    def subtract(out, a, b, at, count):  # type: ignore[no-untyped-def]
        size = panels.size_of(a[0, 0])
        row = a.shape[1]
        panels.subtract_rows(
            a[0, 0], out.ctypes.data, row, a.ctypes.data + at * row * size, row, b.ctypes.data, row, count
        )

    make = Numbers(dtype, 1)
    for count in (-1, 0, 1, 7):
        a, b = make(9, make.lanes + 1), make(9, make.lanes + 1)
        right = (a - b)[: max(count, 0), : make.lanes]
        first, second = a.copy(), b.copy()
        for out, left, minus in ((make(9, make.lanes + 1), a, b), (first, first, b), (second, a, second)):
            before = out.copy()
            subtract(out, left, minus, 0, count)
            assert np.array_equal(out[: max(count, 0), : make.lanes], right)
            assert np.array_equal(out[:, make.lanes :], before[:, make.lanes :])
            assert np.array_equal(out[max(count, 0) :], before[max(count, 0) :])
        walked = a.copy()
        subtract(walked, walked, walked, 1, count)
        assert np.array_equal(walked[: max(count, 0), : make.lanes], (a[1:] - a[:-1])[: max(count, 0), : make.lanes])


@every_precision
def test_constants_are_those_of_the_vector(dtype: type) -> None:
    @njit
    def constants(like):  # type: ignore[no-untyped-def]
        return panels.size_of(like), panels.lanes_of(like)

    size = np.dtype(dtype).itemsize
    assert constants(dtype(1)) == (size, VECTOR // size)
    assert VECTOR in (32, 64)
