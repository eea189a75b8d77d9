"""What is asked of the arguments of `fsdeint`, and what is said when it goes wrong."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import (
    NOISES,
    SDE,
    AlphaStable,
    Coloured,
    FractionalBrownian,
    MarkovFractionalBrownian,
    Noise,
    fsdeint,
)
from hpfracc_nn.solvers.rules import DRIVERS, INTERPRETATIONS, NOISE_TYPES, REASONS, RULES, Case, rule_of, table

TS = torch.linspace(0, 1, 11, dtype=torch.float64)


def drift(t, y):
    return -y


def scale(t, y):
    return 0.3 * y


def matrix(t, y):
    return y[..., None] * torch.ones(2, dtype=y.dtype)


def constant(t, y):
    return torch.full_like(y, 0.3)


class Plain:
    noise_type = "diagonal"

    def drift(self, t, y):
        return -y


def call(**changes):
    given = {"sde": SDE(drift, scale), "y0": torch.ones(4, 3, dtype=torch.float64), "ts": TS, **changes}
    return fsdeint(given.pop("sde"), given.pop("y0"), given.pop("ts"), **given)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"sde": 3}, TypeError, r"sde of type int\): needs a method drift\(t, y\)"),
        ({"sde": Plain()}, TypeError, r"needs a method diffusion.*SDE\(drift, diffusion\)"),
        ({"sde": SDE(drift, scale, "coloured")}, ValueError, r"sde\.noise_type='coloured'\): needs one of 'additive'"),
        (
            {"sde": SDE(drift, matrix)},
            ValueError,
            r"\(4, 3\), a number for each entry.*\(4, 3, 2\); declare noise_type ",
        ),
        ({"sde": SDE(drift, scale, "general")}, ValueError, r"\(4, 3, m\), m motions.*'additive' or|'diagonal'"),
        ({"sde": SDE(drift, matrix, "scalar")}, ValueError, r"\(4, 3, 1\), one motion for all entries"),
        ({"sde": SDE(drift, scale, "additive")}, ValueError, r"does not depend on y, for noise_type 'additive'"),
        (
            {"sde": SDE(drift, lambda t, y: y.roll(1, -1)), "scheme": "milstein"},
            ValueError,
            r"same entry of y alone.*pass scheme='euler'",
        ),
        ({"sde": SDE(drift, lambda t, y: 1.0)}, TypeError, r"sde\.diffusion\): needs a tensor; it returned float"),
        ({"sde": SDE(lambda t, y: y[:1], scale)}, ValueError, r"sde\.drift\): needs the state's shape \(4, 3\)"),
        ({"sde": SDE(lambda t, y: y.float(), scale)}, TypeError, r"sde\.drift\): needs the state's dtype"),
        ({"y0": 1.0}, TypeError, r"fsdeint\(y0 of type float\)"),
        ({"y0": torch.ones(2, dtype=torch.int64)}, TypeError, r"float32 or float64"),
        ({"y0": torch.tensor([1.0, float("nan")])}, ValueError, r"needs finite numbers"),
        ({"ts": [0.0, 0.2, 0.1]}, ValueError, r"times must increase; ts\[2\]=0\.1"),
        ({"ts": [0.0, 0.1, 0.3]}, ValueError, r"equal steps or a step.*pass dt"),
        ({"ts": [0.0, 0.1, 0.3], "dt": 0.07}, ValueError, r"dt=0\.07\): needs a step.*ts\[1\] lies 1\.42857 steps"),
        ({"ts": [0.0, 0.1, 0.1000001], "dt": 0.1}, ValueError, r"one for each of them; ts\[2\]"),
        ({"dt": 0.0}, ValueError, r"dt=0\.0\): needs a finite dt > 0"),
        ({"dt": "small"}, TypeError, r"dt='small'\): needs a real number"),
        ({"alpha": 0.5}, ValueError, r"alpha=0\.5\): needs 1/2 < alpha <= 1.*not square integrable"),
        ({"alpha": 1.2}, ValueError, r"alpha=1\.2\): needs 1/2 < alpha <= 1"),
        ({"alpha": float("nan")}, ValueError, r"needs 1/2 < alpha <= 1"),
        ({"alpha": torch.tensor([0.7, 0.8])}, ValueError, r"fsdeint\(alpha of shape \(2,\)\).*broadcasts to y0's"),
        ({"scheme": "rectangle"}, ValueError, r"scheme='rectangle'\): needs one of 'euler'"),
        ({"scheme": 3}, TypeError, r"scheme of type int"),
        ({"weights": "exact"}, ValueError, r"weights='exact'\): needs one of 'average'"),
        ({"interpretation": "young"}, ValueError, r"interpretation='young'\): needs one of 'ito', 'stratonovich'"),
        ({"history": "window"}, ValueError, r"history='window'\): needs one of"),
        ({"noise": "brownian"}, TypeError, r"noise of type str\): needs a noise; pass Brownian\(\)"),
        ({"noise": 0.5}, TypeError, r"noise of type float"),
        ({"sde": SDE(drift, constant, "additive"), "noise": FractionalBrownian([0.3, 0.4])}, ValueError, r"shape"),
        (
            {"sde": SDE(lambda t, y: y, lambda t, y: y, "scalar"), "y0": (torch.ones(2),)},
            ValueError,
            r"'diagonal' or 'additive' noise for a state that is a tuple",
        ),
        (
            {"sde": SDE(lambda t, y: y, lambda t, y: y[0]), "y0": (torch.ones(2),)},
            ValueError,
            r"needs a tuple of y0's shapes \[\(2,\)\]",
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_the_rule_and_the_way_out(changes, error, text):
    with pytest.raises(error, match=text):
        call(**changes)


@pytest.mark.parametrize(
    ("diffusion", "noise_type", "text"),
    [
        (lambda t, y: y**2, "additive", r"does not depend on y, for noise_type 'additive', and at t=0 it does"),
        (lambda t, y: t * y, "additive", "does not depend on y, for noise_type 'additive', and at t=1 it does"),
        (lambda t, y: (1 - t) * y**2, "additive", "at t=0 it does"),
        (lambda t, y: y.detach(), "additive", "at t=0 it does"),
        (lambda t, y: torch.where(y > 0, 1.0, 2.0).to(y), "additive", "at t=0 it does"),
        (lambda t, y: y * y.roll(1, -1), "diagonal", "same entry of y alone.*at t=0 they depend"),
        (lambda t, y: t * y.roll(1, -1), "diagonal", "same entry of y alone.*at t=1 they depend"),
    ],
)
def test_a_noise_type_is_looked_at_where_a_slope_does_not_vanish(diffusion, noise_type, text):
    scheme = "milstein" if noise_type == "diagonal" else "euler"
    with pytest.raises(ValueError, match=text):
        call(sde=SDE(drift, diffusion, noise_type), y0=torch.zeros(2, 3).double(), scheme=scheme)


@pytest.mark.parametrize("noise_type", ["additive", "diagonal"])
def test_a_look_at_the_noise_type_takes_no_random_numbers_and_bears_the_end_of_a_domain(noise_type):
    # sqrt(y (1 - y)) is NaN beyond 1, where the look may be.
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    states = []

    def diffusion(t, y):
        states.append(torch.get_rng_state())
        torch.rand(())
        return scale.expand_as(y) if noise_type == "additive" else scale * (y * (1 - y)).sqrt()

    y0 = torch.full((2, 3), 0.999, dtype=torch.float64)
    sde = SDE(lambda t, y: 0 * y, diffusion, noise_type)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        call(sde=sde, y0=y0, ts=[0.0, 1e-9], scheme="srk", generator=generator)
    # Once for the shape; then what is looked at draws on from there, and the first step does so again.
    assert torch.equal(states[4], states[1])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"alpha": 0.7, "scheme": "heun"}, "pass scheme='euler'"),
        ({"alpha": 0.7, "interpretation": "stratonovich"}, "correction would be infinite"),
        ({"alpha": 0.7, "noise": FractionalBrownian(0.7), "interpretation": "stratonovich"}, "or alpha=1"),
        ({"noise": FractionalBrownian(0.3), "interpretation": "stratonovich"}, r"diverge like n_steps\*\*\(1 - 2 H\)"),
        ({"noise": MarkovFractionalBrownian(0.3), "interpretation": "stratonovich"}, r"diverge like n_steps"),
        ({"noise": FractionalBrownian(0.7)}, "no semimartingale"),
        ({"noise": FractionalBrownian(0.7), "scheme": "milstein"}, "its formula is that of Brownian increments"),
        ({"noise": FractionalBrownian(0.2), "scheme": "heun", "interpretation": "stratonovich"}, "above H = 1/3"),
        (
            {
                "sde": SDE(drift, matrix, "general"),
                "noise": FractionalBrownian(0.4),
                "scheme": "heun",
                "interpretation": "stratonovich",
            },
            "areas between them",
        ),
        ({"noise": AlphaStable(1.7), "interpretation": "stratonovich"}, "no Stratonovich integral"),
        ({"noise": AlphaStable(1.7), "scheme": "milstein"}, "the sum of the jumps"),
        ({"noise": Coloured(0.1), "scheme": "srk"}, "pass scheme='euler' or 'heun'"),
        ({"interpretation": "stratonovich"}, "Euler's step is Ito's"),
        ({"scheme": "heun"}, "pass interpretation='stratonovich'"),
        ({"scheme": "srk", "interpretation": "stratonovich"}, "pass interpretation='ito'"),
        ({"sde": SDE(drift, constant, "additive"), "scheme": "milstein"}, "it is Euler's method"),
        ({"sde": SDE(drift, matrix, "general"), "scheme": "srk"}, "share a motion"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason_and_the_table(changes, text):
    with pytest.raises(ValueError, match=text) as raised:
        call(**changes)
    assert "| driver | alpha |" in str(raised.value)


def cases():
    """Yield every combination of what the table has columns for."""
    schemes = sorted({rule.scheme for rule in RULES})
    for driver in DRIVERS:
        for hurst in (0.2, 0.4, 0.5, 0.7) if driver == "fractional" else (0.5,):
            for interpretation in INTERPRETATIONS:
                for alpha in (0.7, 1.0):
                    for noise_type in NOISE_TYPES:
                        for scheme in schemes:
                            yield Case(driver, interpretation, alpha, noise_type, scheme, hurst)


LEARNED = torch.tensor(0.6, dtype=torch.float64)


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0), (0.0, 0.7)])
def test_additive_noise_takes_a_learned_index_whose_bounds_begin_at_zero(bounds):
    for scheme in ("euler", "heun"):
        call(sde=SDE(drift, constant, "additive"), noise=FractionalBrownian(LEARNED, bounds=bounds), scheme=scheme)
        call(sde=SDE(drift, constant, "additive"), noise=FractionalBrownian(0.6, bounds=bounds), scheme=scheme)


def test_a_lower_bound_of_a_learned_index_is_not_reached():
    along = {"interpretation": "stratonovich"}
    call(noise=FractionalBrownian(LEARNED, bounds=(1 / 2, 0.9)), **along)
    call(noise=FractionalBrownian(LEARNED, bounds=(1 / 3, 0.9)), scheme="heun", **along)
    with pytest.raises(ValueError, match=r"of H=0.49.*diverge like"):
        call(noise=FractionalBrownian(LEARNED, bounds=(0.49, 0.9)), **along)
    with pytest.raises(ValueError, match=r"of H=0.5.*diverge like"):
        call(noise=FractionalBrownian((0.5, 0.6, 0.7)), **along)


@dataclass(frozen=True)
class Own(Noise):
    """Brownian motion times a scale, or whatever is said of it."""

    smoothness: float = 0.5
    scale: float = 1.0
    name = "own"

    @property
    def regularity(self):
        return self.smoothness

    def increments(self, n_steps, shape, dt, source, state):
        return self.scale * math.sqrt(dt) * source.normal((n_steps, *shape)), ()


def test_a_semimartingale_of_ones_own_has_its_ito_integral():
    # Milstein's formula stands on the variance of Brownian increments; Euler's sums converge whatever it is.
    twice = call(noise=Own(scale=2.0), generator=torch.Generator().manual_seed(0))
    other = call(sde=SDE(drift, lambda t, y: 2 * scale(t, y)), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(twice, other, rtol=1e-14, atol=0)
    call(noise=Own(), scheme="heun", interpretation="stratonovich")
    for wrong in ({"scheme": "milstein"}, {"scheme": "heun"}, {"interpretation": "stratonovich"}, {"alpha": 0.7}):
        with pytest.raises(ValueError, match=r"driven by Own: a continuous semimartingale\): "):
            call(noise=Own(), **wrong)


@pytest.mark.parametrize("noise", [FractionalBrownian(0.5), MarkovFractionalBrownian(0.5)])
def test_a_hurst_index_of_one_half_has_an_ito_integral(noise):
    call(noise=noise)
    with pytest.raises(ValueError, match="Euler's step is Ito's"):
        call(noise=noise, interpretation="stratonovich")


@pytest.mark.parametrize("smoothness", [0.3, 0.7])
def test_a_noise_of_ones_own_that_is_no_semimartingale_is_called_by_its_name(smoothness):
    with pytest.raises(ValueError, match=rf"by Own: paths like those of .* of H={smoothness}\): the noise is no semi"):
        call(noise=Own(smoothness))


def test_whether_a_noise_is_a_semimartingale_decides_what_may_drive_an_equation():
    class Claimed(Own):
        is_semimartingale = False

    with pytest.raises(ValueError, match="no semimartingale"):
        call(noise=Claimed())
    for noise in (each for kind in NOISES.values() for each in kind.examples()):
        if noise.is_semimartingale and not noise.regularity >= 1:
            call(sde=SDE(drift, scale), noise=noise)


def test_every_combination_is_in_one_row_of_the_table_or_refused_with_a_reason():
    said = set()
    for case in cases():
        rules = [rule for rule in RULES if rule.takes(case)]
        assert len(rules) <= 1
        if rules:
            assert rule_of("fsdeint", case) is rules[0]
            continue
        said.add(next(reason.text for reason in REASONS if reason.applies(case)))
        with pytest.raises(ValueError, match=r"Allowed for this driver( and alpha)? are") as caught:
            rule_of("fsdeint", case)
        shown = str(caught.value).split("\n")[3:]
        assert shown
        if case.driver == "brownian":
            alpha = "1/2 to 1" if case.alpha < 1 else "1"
            assert all(row.startswith(f"| Brownian motion | {alpha} |") for row in shown)
    assert said == {reason.text for reason in REASONS}


def test_the_table_of_the_documentation_is_the_one_that_counts():
    import pathlib

    page = (pathlib.Path(__file__).parents[1] / "docs" / "sde.md").read_text("utf-8")
    assert table() in page


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 0.8])
def test_a_solution_that_is_not_finite_names_the_step(alpha, adjoint):
    sde = SDE(lambda t, y: y**3, lambda t, y: y**3)
    for learns in (False, True):
        y0 = torch.full((4,), 30.0, requires_grad=learns)
        with pytest.raises(FloatingPointError, match=r"not finite at step \d+, t=.*smaller steps"):
            call(sde=sde, y0=y0, alpha=alpha, adjoint=adjoint)
    with pytest.raises(FloatingPointError, match=r"not finite at step \d+, t=.*smaller steps"):
        torch.func.grad(lambda y0: call(sde=sde, y0=y0, alpha=alpha)[-1].sum())(torch.full((4,), 30.0))


def test_progress_is_told_after_each_block():
    for alpha in (1.0, 0.8):
        seen = []
        fsdeint(
            SDE(drift, scale),
            torch.ones(2),
            [0.0, 1.0],
            dt=0.0025,
            alpha=alpha,
            progress=lambda *step: seen.append(step),  # noqa: B023
        )
        assert seen == [(127, 400), (255, 400), (383, 400), (400, 400)]


def test_the_same_generator_gives_the_same_path_with_and_without_gradients():
    for alpha in (1.0, 0.7):
        paths = []
        for adjoint, grad in ((True, True), (False, True), (True, False)):
            with torch.set_grad_enabled(grad):
                generator = torch.Generator().manual_seed(4)
                y0 = torch.ones(3, requires_grad=True)
                paths.append(call(y0=y0, alpha=alpha, adjoint=adjoint, generator=generator).detach())
        torch.testing.assert_close(paths[0], paths[1], rtol=1e-5, atol=1e-6)
        assert torch.equal(paths[0], paths[2])


def test_without_a_generator_the_default_one_is_used():
    torch.manual_seed(0)
    first = call()
    torch.manual_seed(0)
    assert torch.equal(first, call())
    assert not torch.equal(first, call())


@pytest.mark.parametrize("wrong", [0, "cpu"])
def test_a_generator_is_no_seed(wrong):
    with pytest.raises(
        TypeError, match=r"generator=.*needs a torch\.Generator or None; pass torch\.Generator\(\)\.manual"
    ):
        call(generator=wrong)


@pytest.mark.parametrize("alpha", [1.0, 0.8])
@pytest.mark.parametrize(("which", "other"), [("drift", "diffusion"), ("diffusion", "drift")])
def test_a_coefficient_is_named_that_writes_to_the_state_or_has_no_value_at_the_start(which, other, alpha):
    def equation(function):
        parts: dict[str, Any] = {which: function, other: lambda t, y: y.cos()}
        return SDE(**parts)

    def solved(function):
        y0 = torch.ones(2, dtype=torch.float64)
        with torch.no_grad():
            fsdeint(equation(function), y0, [0.0, 1.0], dt=0.1, alpha=alpha)

    held = torch.ones(2, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=rf"fsdeint\(sde\.{which}\): .*step 0, t=0, sde\.{which} wrote to it.*y\.clone"
    ):
        solved(lambda t, y: y.neg_())
    sde = equation(lambda t, y: y.neg_())
    with pytest.raises(ValueError, match="leaves y as it is"), torch.no_grad():
        fsdeint(sde, held, [0.0, 1.0], dt=0.1, alpha=alpha)
    assert torch.equal(held, torch.ones(2).double())
    with pytest.raises(FloatingPointError, match=rf"fsdeint\(sde\.{which}\): .*sde\.{which} is infinite at t = 0"):
        solved(lambda t, y: y * t**-0.3)
    with pytest.raises(FloatingPointError, match=rf"sde\.{which} is NaN at t = 0"):
        solved(lambda t, y: y * (t / t))
