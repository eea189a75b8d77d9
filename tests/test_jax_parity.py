"""The same computation on PyTorch and on JAX: values, gradients, and every transform of JAX, for all registered cases.

The oracle is the torch side, which is tested by itself; transforms are held against each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.selection import default_manager
from tests.parity_cases import ParityCase, every_case

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

Weigh = Callable[[Any], np.ndarray]

EVERY = every_case()
QUICK = [pytest.param(case, marks=[pytest.mark.slow] if case.slow else [], id=case.name) for case in EVERY]
SLOW = [pytest.param(case, marks=pytest.mark.slow, id=case.name) for case in EVERY]
SMOOTH = [pytest.param(case, marks=pytest.mark.slow, id=case.name) for case in EVERY if case.forward_mode]


def as_parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


@functools.lru_cache(maxsize=64)
def on_torch(
    case: ParityCase, dtype: str, weigh: Weigh | None = None
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return values, and the gradients of their sum with weights, by default those of `weights_like`."""
    drawn = case.drawn()
    given: dict[str, Any] = {}
    for name, values in drawn.items():
        floats = np.asarray(values).dtype.kind == "f"
        given[name] = torch.as_tensor(values, dtype=getattr(torch, dtype)) if floats else torch.as_tensor(values)
    moved = case.moved(drawn)
    for name in moved:
        given[name].requires_grad_()
    found = as_parts(case.torch(given))
    if moved:
        weigh = weigh or weights_like
        total = sum((each * torch.as_tensor(weigh(each)).to(each)).sum() for each in found)
        grads = torch.autograd.grad(total, [given[name] for name in moved])
    else:
        grads = ()
    parts = [each.detach().numpy() for each in found]
    return parts, {name: grad.numpy() for name, grad in zip(moved, grads, strict=True)}


def weights_like(array: Any) -> np.ndarray:
    """Return fixed numbers of about 1 in the shape of an array: one large sum would hide what cancels in it."""
    size = int(np.prod(tuple(array.shape)))
    return np.cos(1.0 + 0.7 * np.arange(size)).reshape(tuple(array.shape))


def given_to_jax(case: ParityCase, dtype: str, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs that gradients are taken in, and the others."""
    drawn = case.drawn(seed)
    floats = {name: np.asarray(values).dtype.kind == "f" for name, values in drawn.items()}
    given = {name: jnp.asarray(values, dtype if floats[name] else None) for name, values in drawn.items()}
    moved = {name: given.pop(name) for name in case.moved(drawn)}
    return moved, given


def total_of(case: ParityCase, rest: dict[str, Any], moved: dict[str, Any]) -> tuple[Any, list[Any]]:
    found = as_parts(case.jax({**moved, **rest}))
    return sum((each * jnp.asarray(weights_like(each)).astype(each.dtype)).sum() for each in found), found


def relative(found: Any, wanted: np.ndarray) -> float:
    found = np.asarray(found)
    assert found.shape == wanted.shape
    if wanted.size == 0:
        return 0.0
    scale = float(np.abs(wanted).max())
    return float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()) / (scale or 1.0)


def size_of(array: Any) -> np.ndarray:
    """Return the sizes of the same numbers."""
    return np.abs(weights_like(array))


def nearest(found: Any, wanted: np.ndarray, exact: np.ndarray, uncancelled: np.ndarray | None = None) -> float:
    """Return how far a result is off: in single precision where terms cancel it may be torch that is further off.

    A gradient adds up what all results say. Where that cancels, its digits are those of the terms, so that it is held
    against the gradient under weights of one sign, which is no more than the sum of the terms' sizes.
    """
    if uncancelled is None or not exact.size:
        return min(relative(found, wanted), relative(found, exact))
    scale = max(float(np.abs(uncancelled).max()), float(np.abs(exact).max())) or 1.0
    return min(float(np.abs(np.asarray(found, np.float64) - each).max()) for each in (wanted, exact)) / scale


def check_parity(case: ParityCase, dtype: str) -> None:
    values, grads = on_torch(case, dtype)
    exact_values, exact_grads = on_torch(case, "float64")
    cancels = case.cancels and dtype == "float32"
    uncancelled = on_torch(case, "float64", size_of)[1] if cancels else {}
    moved, rest = given_to_jax(case, dtype)
    function = functools.partial(total_of, case, rest)
    if moved:
        found_grads, found = jax.jit(jax.grad(function, has_aux=True))(moved)
    else:
        found_grads, found = {}, jax.jit(function)(moved)[1]
    assert len(found) == len(values)
    for each, wanted, exact in zip(found, values, exact_values, strict=True):
        assert each.dtype == wanted.dtype
        assert nearest(each, wanted, exact) <= case.tolerance[dtype]
    for name, wanted in grads.items():
        assert found_grads[name].dtype == wanted.dtype
        off = nearest(found_grads[name], wanted, exact_grads[name], uncancelled.get(name))
        assert off <= case.tolerance[dtype], name


@pytest.mark.parametrize("case", QUICK)
def test_values_and_gradients_are_those_of_torch(case):
    with jax.enable_x64(True):
        check_parity(case, "float64")


@pytest.mark.parametrize("case", SLOW)
def test_single_precision_too_without_64_bit_types(case):
    check_parity(case, "float32")


@pytest.mark.parametrize("case", SLOW)
def test_a_call_outside_of_jit_gives_the_same(case):
    with jax.enable_x64(True):
        moved, rest = given_to_jax(case, "float64")
        eager = as_parts(case.jax({**moved, **rest}))
        traced = as_parts(jax.jit(lambda moved: case.jax({**moved, **rest}))(moved))
        for each, wanted in zip(eager, traced, strict=True):
            assert relative(each, np.asarray(wanted)) <= case.tolerance["float64"]


@pytest.mark.parametrize("case", SLOW)
def test_a_map_over_inputs_is_the_loop(case):
    with jax.enable_x64(True):
        first, rest = given_to_jax(case, "float64")
        second, _ = given_to_jax(case, "float64", seed=1)
        if not first or any(first[name].shape != second[name].shape for name in first):
            pytest.skip("nothing to map over")

        def gradient(moved: dict[str, Any]) -> Any:
            return jax.grad(functools.partial(total_of, case, rest), has_aux=True)(moved)

        both = jax.jit(jax.vmap(gradient))(jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second))
        for index, moved in enumerate((first, second)):
            alone = jax.jit(gradient)(moved)
            for each, wanted in zip(jax.tree.leaves(both), jax.tree.leaves(alone), strict=True):
                assert relative(each[index], np.asarray(wanted)) <= 10 * case.tolerance["float64"]


@pytest.mark.parametrize("case", SMOOTH)
def test_forward_mode_meets_reverse_mode_to_second_order(case):
    """<grad, v> is the derivative along v, and the Hessian's product with v that of the gradient."""
    with jax.enable_x64(True):
        moved, rest = given_to_jax(case, "float64")
        if not moved:
            pytest.skip("nothing moves")
        along = {name: jnp.asarray(weights_like(values)) for name, values in moved.items()}

        def value(moved: dict[str, Any]) -> Any:
            return total_of(case, rest, moved)[0]

        gradient = jax.jit(jax.grad(value))
        _, slope = jax.jit(lambda moved: jax.jvp(value, (moved,), (along,)))(moved)
        by_reverse = sum(float((gradient(moved)[name] * along[name]).sum()) for name in moved)
        assert float(slope) == pytest.approx(by_reverse, rel=1e-9, abs=1e-9)
        forward_of_reverse = jax.jit(lambda moved: jax.jvp(jax.grad(value), (moved,), (along,))[1])(moved)

        def slope_at(moved: dict[str, Any]) -> Any:
            return jax.jvp(value, (moved,), (along,))[1]

        reverse_of_forward = jax.jit(jax.grad(slope_at))(moved)
        # Against the largest entry of all: some are 0, as that of a bias in what keeps constants.
        largest = max(float(np.abs(each).max(initial=0)) for each in reverse_of_forward.values())
        for name in moved:
            off = np.abs(np.asarray(forward_of_reverse[name]) - np.asarray(reverse_of_forward[name]))
            assert off.max(initial=0) <= 1e-8 * largest, name


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in EVERY])
def test_a_gradient_is_traced_where_nothing_is_promoted_unasked(case: ParityCase) -> None:
    before = default_manager().recorder.counts.failures.copy()  # of tests that break a kernel
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        moved, rest = given_to_jax(case, "float32")
        jax.make_jaxpr(jax.grad(lambda moved: total_of(case, rest, moved)[0]))(moved)
    assert default_manager().recorder.counts.failures == before
