"""What every noise must do: draw by the law that it states, and draw the same again from the same numbers."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hpfracc_nn.fractional.torch.namespace import TORCH  # noqa: E402
from hpfracc_nn.solvers import (  # noqa: E402
    NOISES,
    AlphaStable,
    Coloured,
    CompoundPoisson,
    FractionalBrownian,
    MarkovFractionalBrownian,
    Noise,
    NoisePath,
    NormalJumps,
    increments,
    paths,
)
from hpfracc_nn.solvers.noise import increments as numpy_increments  # noqa: E402
from hpfracc_nn.solvers.noise import markov  # noqa: E402

PATHS, STEPS = 20_000, 16
EXAMPLES = [pytest.param(each, id=repr(each)) for noise in NOISES.values() for each in noise.examples()]
WHOLE = [pytest.param(noise.examples()[0], id=name) for name, noise in NOISES.items()]
HURST = [pytest.param(noise, id=name) for name, noise in NOISES.items() if hasattr(noise.examples()[0], "hurst")]
K = np.array([-7.0, -3.0, -1.5, -0.7, -0.2, 0.1, 0.4, 1.0, 2.5, 6.0])  # over the size of an increment


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def covariance_of(noise: Noise, n_steps: int, dt: float) -> np.ndarray:
    found = noise.covariance(n_steps, dt)
    if found is None:
        pytest.skip("its variance is infinite")
    return found


def assert_within(x: np.ndarray, expected: np.ndarray, errors: float) -> None:
    """Assert that the means of products of steps, over paths, are within so many standard errors of a covariance."""
    count = x.shape[1]
    squares = x**2 @ (x**2).T / count
    products = x @ x.T / count
    z = (products - expected) / np.sqrt(np.maximum(squares - products**2, 1e-300) / count)
    assert np.abs(z).max() < errors


@pytest.mark.parametrize("noise", EXAMPLES)
def test_the_covariance_of_the_increments_is_the_one_stated(noise):
    dt = 0.05
    expected = covariance_of(noise, STEPS, dt)
    x = increments(noise, STEPS, (PATHS,), dt=dt, generator=generator(1)).double().numpy()
    # 136 entries: the largest of so many normal numbers is above 5 with a chance of 1e-4. Rare and large jumps are less
    # normal: their standard errors are estimated from few of them.
    assert_within(x - x.mean(1, keepdims=True), expected, 5.0 if noise.is_continuous else 6.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("noise", EXAMPLES)
def test_the_characteristic_function_of_an_increment_is_the_one_stated(noise, dtype):
    dt = 0.3
    x = increments(noise, 1, (2 * PATHS,), dt=dt, generator=generator(2), dtype=dtype)[0].double().numpy()
    k = K / np.median(np.abs(x[x != 0]))
    expected = noise.characteristic(k, dt)
    waves = np.exp(1j * k[:, None] * x)
    for found, wanted in ((waves.real, expected.real), (waves.imag, expected.imag)):
        z = (found.mean(1) - wanted) / (found.std(1) / math.sqrt(x.size))
        assert np.abs(z).max() < 4.5  # of 20 numbers, some of them alike: a chance of 1e-4


@pytest.mark.parametrize("noise", EXAMPLES)
def test_half_the_step_makes_the_same_process(noise):
    if type(noise).__name__.startswith("Markov"):
        pytest.skip("the rates depend on the step: the error is tested instead")
    n, dt = 12, 0.08
    pairs = np.kron(np.eye(n), np.ones(2))
    coarse = covariance_of(noise, n, dt)
    # Second differences of the path's covariance, of size 1, are rounded.
    np.testing.assert_allclose(pairs @ covariance_of(noise, 2 * n, dt / 2) @ pairs.T, coarse, rtol=0, atol=1e-9)


@pytest.mark.parametrize("noise", EXAMPLES)
def test_numpy_draws_by_the_same_law(noise):
    dt = 0.05
    x = numpy_increments(noise, 8, (PATHS // 4,), dt=dt, rng=np.random.default_rng(3))
    assert x.shape == (8, PATHS // 4)
    assert x.dtype == np.float64
    k = K / np.median(np.abs(x[0][x[0] != 0]))
    waves = np.exp(1j * k[:, None] * x[0])
    z = np.abs(waves.mean(1) - noise.characteristic(k, dt)) / math.sqrt(1 / x.shape[1])
    assert z.max() < 4.5  # the variance of a wave is 1 at most
    if noise.covariance(8, dt) is not None:
        assert_within(x - x.mean(1, keepdims=True), noise.covariance(8, dt), 5.0 if noise.is_continuous else 6.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("noise", WHOLE)
def test_shape_and_dtype_are_those_asked_for(noise, dtype):
    for n_steps, shape in itertools.product([1, 2, 65], [(), (3,), (2, 5), (0,), (3, 1)]):
        x = increments(noise, n_steps, shape, dt=0.1, generator=generator(), dtype=dtype)
        assert x.shape == (n_steps, *shape)
        assert x.dtype == dtype
        assert not x.isnan().any()


@pytest.mark.parametrize("noise", WHOLE)
def test_a_seed_draws_the_same_numbers_and_another_seed_others(noise):
    draws = [increments(noise, 50, (4,), dt=0.1, generator=generator(seed)) for seed in (7, 7, 8)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("shape", [(), (0,), (70,), (2, 40)])
def test_paths_are_running_sums(shape):
    steps, found = (
        draw(NOISES["fractional"](0.3), 20, shape, dt=0.1, generator=generator(), dtype=torch.float64)  # type: ignore[call-arg]
        for draw in (increments, paths)
    )
    assert found.shape == (21, *shape)
    assert (found[0] == 0).all()
    torch.testing.assert_close(found[1:], steps.cumsum(0))


@pytest.mark.parametrize("noise", WHOLE)
def test_blocks_are_drawn_again_bit_for_bit_in_any_order(noise):
    source = generator(5)
    path = NoisePath(noise, 3000, (8, 6), dt=0.1, generator=source)
    first = [path.block(i).clone() for i in range(path.n_blocks)]
    source.manual_seed(99)  # what others draw from the generator meanwhile does not matter
    torch.randn(100, generator=source)
    for i in reversed(range(path.n_blocks)):
        assert torch.equal(path.block(i), first[i])
    assert torch.equal(path.whole(), torch.cat(first))
    assert torch.equal(increments(noise, 3000, (8, 6), dt=0.1, generator=generator(5)), torch.cat(first))
    assert noise.is_whole == (path.n_blocks == 1)


@pytest.mark.parametrize("noise", WHOLE)
def test_the_first_block_asked_for_may_be_the_last(noise):
    path = NoisePath(noise, 3000, (48,), dt=0.1, generator=generator(5))
    last = path.block(path.n_blocks - 1)
    whole = increments(noise, 3000, (48,), dt=0.1, generator=generator(5))
    assert torch.equal(last, whole[-len(last) :])


@pytest.mark.parametrize("noise", WHOLE)
def test_the_entries_of_a_step_are_independent(noise):
    x = increments(noise, 4, (10_000, 2, 2), dt=0.3, generator=generator(4), dtype=torch.float64)
    ranks = x[0].reshape(-1, 4).argsort(0).argsort(0).double()  # of any law; ties are broken at random for few jumps
    correlation = torch.corrcoef(ranks.T)
    if noise.is_continuous:
        assert (correlation - torch.eye(4)).abs().max() < 5 / math.sqrt(10_000)
    assert len({tuple(row) for row in x[:, :50].reshape(4, -1).T.tolist()} - {(0.0,) * 4}) > 50


@pytest.mark.parametrize("noise", HURST)
@pytest.mark.slow
def test_the_gradient_in_the_hurst_index_is_right(noise):
    hurst = torch.tensor(0.31, dtype=torch.float64, requires_grad=True)

    def draw(value):
        return increments(noise(value), 70, (3,), dt=0.02, generator=generator(), dtype=torch.float64)

    assert torch.autograd.gradcheck(draw, (hurst,))
    assert torch.autograd.gradgradcheck(lambda value: draw(value)[:9].square(), (hurst,))


@pytest.mark.parametrize("name", ["fractional", "riemann_liouville"])
def test_a_tensor_draws_what_its_number_draws(name):
    found, expected = (
        increments(NOISES[name](hurst), 70, (3,), dt=0.02, generator=generator(), dtype=torch.float64)  # type: ignore[call-arg]
        for hurst in (torch.tensor(0.31, dtype=torch.float64), 0.31)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["markov_fractional", "markov_riemann_liouville"])
def test_a_tensor_draws_by_the_law_of_its_number(name):
    # A number's states are fewer: those that forget within a step are one. So the draws are others.
    noise: Any = NOISES[name]
    bounds = (0.25, 0.4)  # on which the rates depend
    process_of, parameters, first = noise(torch.tensor(0.31, dtype=torch.float64), bounds)._process(70, 0.02)
    process = process_of(TORCH, *parameters)
    arrays = [getattr(process, field.name).numpy() for field in dataclasses.fields(process)]
    found = markov.covariance(markov.Linear(*arrays), first, 70)
    # The weights' table is right to 1e-12 of a sum of several.
    np.testing.assert_allclose(found, noise(0.31, bounds).covariance(70, 0.02), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["fractional", "riemann_liouville"])
def test_channels_may_have_a_hurst_index_each(name):
    noise: Any = NOISES[name]
    hursts = (0.2, 0.8)
    x = increments(noise(hursts), STEPS, (PATHS // 4, 2), dt=0.05, generator=generator(), dtype=torch.float64).numpy()
    for channel, hurst in enumerate(hursts):
        assert_within(x[..., channel], noise(hurst).covariance(STEPS, 0.05), 5.0)
    tensor = torch.tensor(hursts, dtype=torch.float64)
    same = increments(noise(tensor), STEPS, (PATHS // 4, 2), dt=0.05, generator=generator(), dtype=torch.float64)
    np.testing.assert_allclose(same.numpy(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NOISES)
def test_a_noise_is_a_frozen_value(name):
    for one, other in zip(NOISES[name].examples(), NOISES[name].examples(), strict=True):
        assert one == other
        assert hash(one) == hash(other)
        assert one.name == name
        assert 0 <= one.regularity <= 1
    assert len(set(NOISES[name].examples())) == len(NOISES[name].examples())


@pytest.mark.parametrize("i", [-1, 3])
def test_a_block_that_is_not_there_is_refused(i):
    path = NoisePath(CompoundPoisson(2.0), 70_000, (2,), dt=0.1, generator=generator())
    assert path.n_blocks == 3
    with pytest.raises(IndexError, match=r"NoisePath\.block\(i=.*needs"):
        path.block(i)


@pytest.mark.gpu
@pytest.mark.parametrize("noise", WHOLE)
def test_on_a_gpu_the_law_and_the_replay_are_the_same(noise):
    source = torch.Generator("cuda").manual_seed(1)
    path = NoisePath(noise, 400, (500, 3), dt=0.05, generator=source)
    first = path.whole()
    assert first.device.type == "cuda"
    assert torch.equal(path.whole(), first)
    x = increments(noise, 8, (PATHS,), dt=0.05, device="cuda", dtype=torch.float64).cpu().numpy()
    k = K / np.median(np.abs(x[0][x[0] != 0]))
    z = np.abs(np.exp(1j * k[:, None] * x[0]).mean(1) - noise.characteristic(k, 0.05)) * math.sqrt(PATHS)
    assert z.max() < 4.5


@pytest.mark.gpu
@pytest.mark.parametrize("noise", HURST)
def test_on_a_gpu_a_learned_index_has_its_gradient(noise):
    hurst = torch.tensor(0.31, dtype=torch.float64, device="cuda", requires_grad=True)
    loss = increments(noise(hurst), 70, (3,), dt=0.02, device="cuda").square().sum()
    (gradient,) = torch.autograd.grad(loss, hurst)
    assert gradient.isfinite()


@pytest.mark.parametrize(
    "noise",
    [
        lambda value: CompoundPoisson(2.0, NormalJumps(value)),
        lambda value: AlphaStable(value + 1),
        Coloured,
        lambda value: MarkovFractionalBrownian(value, (0.2, 0.6)),
        FractionalBrownian,
    ],
)
def test_a_noise_draws_the_same_numbers_where_it_learns(noise):
    def draw(learns):
        value = torch.tensor(0.3, dtype=torch.float64, requires_grad=learns)
        path = NoisePath(noise(value), 30_000, (4,), dt=0.01, generator=generator(), dtype=torch.float64)
        return path.whole(), path

    (found, path), (expected, other) = draw(True), draw(False)
    assert found.requires_grad
    assert path.n_blocks == other.n_blocks
    assert path.n_blocks > 1 or path.noise.is_whole
    assert torch.equal(found, expected)
    assert all(torch.equal(path.block(i), other.block(i)) for i in reversed(range(path.n_blocks)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (8, 5), (2, 100)])
def test_paths_are_the_running_sums_of_the_increments_in_double_precision(shape, dtype):
    options: dict[str, Any] = {"dt": 0.01, "dtype": dtype}
    found = paths(FractionalBrownian(0.3), 70, shape, generator=generator(), **options)
    steps = increments(FractionalBrownian(0.3), 70, shape, generator=generator(), **options).double()
    expected = torch.cat([torch.zeros_like(steps[:1]), steps.cumsum(0)])
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-13
    torch.testing.assert_close(found.double(), expected, rtol=eps, atol=torch.finfo(dtype).tiny)
