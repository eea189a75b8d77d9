"""Maps over an explicit axis of a mesh, as `jax.make_mesh` makes it: values and gradients of the map on one device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from tests.parity_cases import ParityCase, every_case

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytest.importorskip("flax")

from tests.test_jax_shard_map import RATES, SOLVES, Y0, Solve  # noqa: E402

pytestmark = pytest.mark.skipif("jax.device_count() < 4", reason="needs four devices")

Arrays = dict[str, Any]
# What a loop of the caller's own carries does not know of the mesh unless that is set, which JAX refuses.
LOOPS = ("FractionalLayer in steps",)
EVERY = [pytest.param(case, id=case.name) for case in every_case() if case.moved(case.drawn())]
COMPILED = (
    "FractionalAttention added keys",
    "FractionalGraphConv attention",
    "FractionalConv1d same",
    "FractionalLSTM projection window",
    "SpectralFractional on a line",
    "noise markov_fractional",
    "periodic-weyl",
    "caputo-l1_2",
    "riesz-centred",
    "grunwald-letnikov-both",
    "caputo-at-times",
    "variable-caputo",
    "solve-caputo",
    "fdiff-above-one",
    "atangana_baleanu-l1",
    "mittag-leffler",
    "mittag-leffler-orders",
    "fractional-fourier-orders",
    "fdeint-bdf2-full",
    "fdeint-trapezoid-exponentials",
    "fdeint-graded",
    "fdeint-orders-of-rows",
    "fsdeint srk, ito, diagonal, adjoint",
    "fsdeint hybrid, adjoint",
)
SOME = [pytest.param(case, id=case.name) for case in every_case() if case.name in COMPILED]
EACH_SOLVE = [pytest.param(each, id=name) for name, each in SOLVES.items()]
WHERE = {"both": (True, True), "y0": (True, False), "rates": (False, True)}
each_setting = pytest.mark.parametrize("is_set", [False, True], ids=["no mesh is set", "the mesh is set"])


def mesh_of_rows() -> Any:
    return jax.make_mesh((4,), ("rows",))


def spread(tree: Any) -> Any:
    """Return arrays that lie over four devices by their first axis."""
    return jax.device_put(tree, jax.NamedSharding(mesh_of_rows(), jax.P("rows")))


def setting(is_set: bool) -> AbstractContextManager[Any]:
    return jax.set_mesh(mesh_of_rows()) if is_set else nullcontext()


def drawn(case: ParityCase, names: list[str]) -> tuple[Arrays, Arrays]:
    """Return four rows of the inputs of these names, and the other inputs."""
    rest = {name: jnp.asarray(each) for name, each in case.drawn().items()}  # floats in single precision
    scales = np.array([1, 0.97, 0.99, 0.98], np.float32)
    mapped = {name: jnp.tensordot(scales, rest.pop(name), 0) for name in names}
    return mapped, rest


def total_of(case: ParityCase, mapped: Arrays, rest: Arrays) -> Any:
    found = case.jax({**mapped, **rest})
    return sum((each**2).sum() for each in (found if isinstance(found, tuple | list) else [found]))


def places(found: Any) -> set[Any]:
    """Return over what the first axis of each result lies."""
    return {jax.typeof(each).sharding.spec[0] for each in jax.tree.leaves(found)}


def assert_close(found: Any, wanted: Any, case: ParityCase | None = None) -> None:
    tolerance = 1e-5 if case is None else 10 * case.tolerance["float32"]  # sums in another order, in single precision
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.shape == other.shape
        size = float(np.abs(np.asarray(other)).max(initial=0))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=tolerance * size)


@each_setting
@pytest.mark.parametrize("case", EVERY)
def test_a_map_and_its_gradients_are_traced_whichever_input_is_mapped(case: ParityCase, is_set: bool) -> None:
    """What is not mapped knows no mesh: a state that a function of mapped rates closes over, weights of a layer."""
    if case.name in LOOPS and not is_set:
        pytest.skip("the loop of the case is the caller's own")
    names = case.moved(case.drawn())
    for some in {tuple(names[:1]), tuple(names[-1:])}:
        mapped, rest = drawn(case, list(some))
        moved = {name: rest.pop(name) for name in names if name in rest}

        def gradients(mapped: Arrays, moved: Arrays, rest: Arrays = rest) -> Any:
            of_each = jax.vmap(jax.value_and_grad(lambda each: total_of(case, each, {**moved, **rest})))
            return of_each(mapped)

        def of_all(mapped: Arrays, moved: Arrays, rest: Arrays = rest) -> Any:
            of_each = jax.vmap(lambda each, moved: total_of(case, each, {**moved, **rest}), (0, None))
            return of_each(mapped, moved).sum()

        with setting(is_set):
            assert places(jax.jit(gradients).trace(spread(mapped), moved).out_info) == {"rows"}
            if is_set:  # else JAX knows no place for the gradient by what all rows share
                jax.jit(jax.grad(of_all, (0, 1))).trace(spread(mapped), moved)


@pytest.mark.slow
@each_setting
@pytest.mark.parametrize("case", SOME)
def test_a_map_over_an_explicit_axis_has_the_values_and_gradients_of_one_device(case: ParityCase, is_set: bool) -> None:
    mapped, rest = drawn(case, case.moved(case.drawn())[:1])
    both = jax.vmap(jax.value_and_grad(lambda each: total_of(case, each, rest)))
    wanted = jax.jit(both)(mapped)
    with setting(is_set):
        found = jax.jit(both)(spread(mapped))
        assert places(found) == {"rows"}
        assert_close(found, wanted, case)
        if is_set:  # outside of jit JAX asks for it
            assert_close(jax.vmap(lambda each: total_of(case, each, rest))(spread(mapped)), wanted[0], case)


@each_setting
@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("solve", EACH_SOLVE)
def test_a_map_of_solves_has_the_values_and_gradients_of_one_device(
    solve: Solve, where: tuple[bool, bool], is_set: bool
) -> None:
    given = [each.reshape(4, 2) if is_mapped else each[:2] for each, is_mapped in zip((Y0, RATES), where, strict=True)]
    # JAX knows no place for a product over what lies on devices, and by that an order that all share has its gradient.
    knows_place = is_set or where[1] or solve not in (SOLVES["order"], SOLVES["rough order"])
    by = (0, 1) if knows_place else (0,)

    def both(*given: Any) -> Any:
        def total(*given: Any) -> Any:
            found = jax.vmap(solve, [0 if is_mapped else None for is_mapped in where])(*given)
            return (found**2).sum(), found

        return jax.jit(jax.grad(total, by, has_aux=True))(*given)

    wanted = both(*given)
    with setting(is_set):
        found = both(*(spread(each) if is_mapped else each for each, is_mapped in zip(given, where, strict=True)))
    assert_close(found, wanted)
