"""Losses for paths."""

import math
import re

import pytest

torch = pytest.importorskip("torch")

from hpfracc_nn.solvers import FractionalBrownian, increments  # noqa: E402
from hpfracc_nn.training import energy_score, moment_loss, trajectory_loss, variogram_loss  # noqa: E402

OF_BATCHES = [moment_loss, variogram_loss, energy_score]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def motion(hurst, seed, batch=500):
    generator = torch.Generator().manual_seed(seed)
    return increments(FractionalBrownian(hurst), 64, (batch, 1), dt=1 / 64, generator=generator).double().cumsum(0)


def test_a_trajectory_is_compared_where_it_was_seen():
    ys, observed = normal(6, 3, 2), normal(6, 1, 2, seed=1)
    assert float(trajectory_loss(ys, observed)) == pytest.approx(float((ys - observed).square().mean()))
    mask = torch.zeros(6, 1, 1, dtype=torch.bool)
    mask[2:4] = True
    gaps = torch.where(mask, observed, math.nan)
    ys.requires_grad_()
    loss = trajectory_loss(ys, gaps, mask=mask)
    loss.backward()
    assert loss.item() == pytest.approx((ys - observed)[2:4].square().mean().item())
    assert ys.grad.isfinite().all()
    assert (ys.grad[:2] == 0).all()


def test_equal_paths_have_equal_moments_and_variograms():
    ys = normal(6, 30, 2)
    for order in range(1, 5):
        assert float(moment_loss(ys, ys.flip(1), orders=order)) == pytest.approx(0, abs=1e-25)
    assert float(variogram_loss(ys, ys.flip(1), lags=(1, 5))) == pytest.approx(0, abs=1e-25)


def test_moments_are_counted_in_observed_deviations():
    observed = 5 * normal(4, 50, 3)
    deviation = observed.std(1, keepdim=True)
    assert float(moment_loss(observed + 0.2 * deviation, observed, orders=1)) == pytest.approx(0.2**2)
    mean = observed.mean(1, keepdim=True)
    wider = mean + 1.5 * (observed - mean)
    assert float(moment_loss(wider, observed)) == pytest.approx(0.5**2)
    skew = ((observed - mean) / deviation).pow(3).mean(1)
    expected = 0.5**2 + float(((1.5**3 - 1) * skew).square().mean())
    assert float(moment_loss(wider, observed, orders=3)) == pytest.approx(expected)


@pytest.mark.parametrize("count", [7, 13])
def test_times_without_variation_count_with_their_mean_alone(count):
    """Of seven times 0.1 the mean is another number than 0.1, in single precision."""
    ys = normal(1, count, 2).float()
    loss = moment_loss(ys, torch.full((1, count, 2), 0.1), orders=4)
    assert float(loss) == pytest.approx(float((ys.mean(1) - 0.1).square().mean()), rel=1e-5)


def test_paths_that_start_at_one_point_have_gradients():
    ys, observed = (torch.cat([torch.ones(1, 20, 1).double(), normal(3, 20, 1, seed=seed)]) for seed in (0, 1))
    ys.requires_grad_()
    for loss in (
        moment_loss(ys, observed, orders=4),
        energy_score(ys, observed),
        variogram_loss(ys, observed, lags=(1,)),
    ):
        (gradient,) = torch.autograd.grad(loss, ys)
        assert gradient.isfinite().all()


def test_a_variogram_sees_scale_and_roughness():
    observed = motion(0.3, 0)
    doubled = variogram_loss(2 * observed, observed)
    assert float(doubled) == pytest.approx((2 * math.log(2)) ** 2)
    losses = [float(variogram_loss(motion(hurst, 1), observed)) for hurst in (0.2, 0.3, 0.4)]
    assert min(losses) == losses[1]
    # At lag k the logarithms of the variograms differ by 2 (0.4 - 0.3) log(k / 64).
    expected = sum((0.2 * math.log(lag / 64)) ** 2 for lag in (1, 2, 4, 8)) / 4
    assert losses[2] == pytest.approx(expected, rel=0.05)


def test_a_variogram_leads_to_the_hurst_index():
    observed, hurst = motion(0.3, 0), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([hurst], max_iter=20, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1)  # common random numbers
        noise = increments(FractionalBrownian(hurst), 64, (500, 1), dt=1 / 64, generator=generator, dtype=torch.float64)
        loss = variogram_loss(noise.cumsum(0), observed)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert hurst.item() == pytest.approx(0.3, abs=0.01)


def test_the_energy_score_is_its_formula():
    ys, observed = normal(5, 4, 2), normal(5, 3, 2, seed=1)
    x, y = ys.transpose(0, 1).flatten(1), observed.transpose(0, 1).flatten(1)
    apart = torch.stack([(a - b).norm() for a in x for b in y]).mean()
    among = torch.stack([(x[i] - x[j]).norm() for i in range(4) for j in range(4) if i != j]).mean()
    assert float(energy_score(ys, observed)) == pytest.approx(float(apart - among / 2) / math.sqrt(10))


def test_the_energy_score_is_least_for_the_right_law():
    observed = motion(0.3, 0)
    scores = [float(energy_score(motion(hurst, 1), observed)) for hurst in (0.1, 0.3, 0.6)]
    assert min(scores) == scores[1]
    assert float(energy_score(1.5 * motion(0.3, 1), observed)) > scores[1]


OF_HALVES = {
    "trajectory": trajectory_loss,
    "masked": lambda ys, observed: trajectory_loss(ys, observed, mask=ys == ys),
    "moment": lambda *both: moment_loss(*both, orders=4),
    "variogram": variogram_loss,
    "energy": energy_score,
}


@pytest.mark.parametrize("name", OF_HALVES)
def test_half_precision_is_computed_in_single(name):
    """More than 65504 entries: neither their number nor their sum is one of float16."""
    loss = OF_HALVES[name]
    ys, observed = (20 * normal(12, 80, 80, seed=seed).half() for seed in (0, 1))
    ys.requires_grad_()
    found = loss(ys, observed)
    assert found.dtype == torch.float16
    expected = loss(ys.detach().float(), observed.float())
    assert found.item() == pytest.approx(float(expected), rel=2**-11)  # rounded once
    assert torch.autograd.grad(found, ys)[0].isfinite().all()


@pytest.mark.parametrize("loss", [trajectory_loss, *OF_BATCHES])
def test_complex_paths_are_refused(loss):
    paths = torch.zeros(9, 4, 2, dtype=torch.complex64)
    with pytest.raises(TypeError, match=re.escape("(ys of dtype torch.complex64): needs real paths")):
        loss(paths, paths)


@pytest.mark.parametrize("loss", OF_BATCHES)
def test_gradients_are_right(loss):
    options = {"lags": (1, 3)} if loss is variogram_loss else {"orders": 4} if loss is moment_loss else {}
    ys, observed = normal(4, 3, 2).requires_grad_(), normal(4, 5, 2, seed=1)
    assert torch.autograd.gradcheck(lambda x: loss(x, observed, **options), (ys,))


@pytest.mark.parametrize("loss", OF_BATCHES)
def test_shapes_that_do_not_fit_are_refused(loss):
    name = loss.__name__
    for ys, observed, message in (
        (normal(9, 4), normal(9, 4, 1), f"{name}(ys of shape (9, 4)): needs axes [time, batch, state]"),
        (normal(9, 4, 1), normal(8, 4, 1), "needs the same times and states"),
        (normal(9, 0, 1), normal(9, 4, 1), f"{name}(ys with 0 paths): needs"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            loss(ys, observed)


REFUSALS = [
    (lambda y: trajectory_loss(y, normal(3, 3)), "needs observations that broadcast to the paths"),
    (
        lambda y: trajectory_loss(y, y, mask=y),
        "trajectory_loss(mask of torch.float64 and shape (9, 4, 2)): needs booleans",
    ),
    (lambda y: moment_loss(y, y, orders=5), "moment_loss(orders=5): needs 1 <= orders <= 4; pass for example 2."),
    (lambda y: moment_loss(y, y[:, :1]), "moment_loss(observed with 1 paths): needs 2 or more"),
    (lambda y: variogram_loss(y, y, lags=(9,)), "variogram_loss(lags=(9,)): needs lags from 1 to 8"),
    (lambda y: variogram_loss(y, y, lags=()), "variogram_loss(lags=()): needs lags from 1 to 8"),
    (lambda y: energy_score(y[:, :1], y), "energy_score(ys with 1 paths): needs 2 or more"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[message[:40] for _, message in REFUSALS])
def test_bad_input_is_refused_with_the_way_out(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(normal(9, 4, 2))
