"""The decision core: told estimates and times, it answers which kernel runs. No clock is looked at."""

import itertools
import json
import math
import random
from dataclasses import astuple

import pytest

from hpfracc_nn.selection.learning import model
from hpfracc_nn.selection.learning.model import KEPT_SAMPLES, Candidate, NearbyRatios, Prediction, RatioSamples
from hpfracc_nn.selection.learning.policy import Budget, Policy
from hpfracc_nn.selection.workload import DIRECTIONS, Key, Workload, bucket, key_of

KEY = Key(("toeplitz", "cpu"), (4.0, 10.0))
FAST, SLOW, JIT = "torch/fft", "torch/dense", "numba/recurrence"


def arms(uncertainty=2.0, **seconds):
    """Candidates by short name: fft=..., dense=..., loop=..."""
    names = {"fft": FAST, "dense": SLOW, "loop": JIT}
    return [Candidate(names[name], each, uncertainty) for name, each in seconds.items()]


class Machine:
    """Runs decisions on known times, as a site does: asks when the period is over, tells the time."""

    def __init__(self, policy, times, noise=0.0, seed=0):
        self.policy, self.times, self.rng, self.noise = policy, times, random.Random(seed), noise
        self.ran, self.decisions, self.changes = [], [], []
        self.plans = {}
        self.compiled = set()

    def call(self, candidates, key=KEY):
        decision, since = self.plans.get(key, (None, 0))
        if decision is None or since >= decision.period:
            ready = [self._ready(each) for each in candidates]
            decision = self.policy.decide(key, ready, max(1, since))
            self.decisions.append(decision)
            self.compiled.add(decision.name)
            seconds = self.times[decision.name] * math.exp(self.noise * self.rng.gauss(0, 1))
            change = self.policy.observe(key, decision.name, seconds)
            since = 0
            if change is not None:
                self.changes.append(change)
                self.plans.clear()
        self.plans[key] = decision, since + 1
        self.ran.append(decision.name)
        return decision

    def calls(self, count, candidates, key=KEY):
        for _ in range(count):
            last = self.call(candidates, key)
        return last

    def _ready(self, each):
        seconds = 0.0 if each.name in self.compiled else each.compile_seconds
        return Candidate(each.name, each.seconds, each.uncertainty, each.backward, seconds, each.code)


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 1000, 4095, 4096, 123_456_789])
def test_a_bucket_is_less_than_a_quarter_wide_and_four_fill_an_octave(size):
    assert bucket(size) <= size < bucket(size) * 1.25
    assert bucket(bucket(size)) == bucket(size)
    assert len({bucket(each) for each in range(1024, 2048)}) == 4


def test_a_key_keeps_apart_what_says_nothing_of_one_another():
    work = Workload("toeplitz", "torch", rows=16, n=1000)
    assert key_of(work) == key_of(Workload("toeplitz", "torch", rows=16, n=1023))
    others = [
        Workload("toeplitz", "torch", rows=16, n=1000, dtype="float64"),
        Workload("toeplitz", "torch", rows=16, n=1000, threads=2),
        Workload("toeplitz", "torch", rows=16, n=1000, needs_gradient=True),
        Workload("toeplitz", "torch", device="cuda:0", rows=16, n=1000),
    ]
    assert len({key_of(each).group for each in [work, *others]}) == 5
    assert Key.parse(key_of(work).text()) == key_of(work)
    assert key_of(work).distance(key_of(Workload("toeplitz", "torch", rows=16, n=2000))) == 1.0


def test_the_level_is_a_quantile_that_spikes_do_not_move():
    track = RatioSamples()
    for sample in [1.0, 1.1, 20.0, 1.05, 1.0, 15.0, 1.02, 1.1, 1.01, 1.03]:
        track.add(sample)
    assert track.level in (1.0, 1.01, 1.02)


def test_the_first_call_is_no_sample_and_bounds_the_level():
    track = RatioSamples()
    track.begin(1.5)  # cold, so too long
    assert track.level is None
    track.add(9.0)  # a spike
    assert track.level == 1.5
    track.add(1.0)
    assert (track.level, len(track)) == (1.0, 2)


@pytest.mark.parametrize("factor", [3.0, 0.3])
def test_four_odd_samples_in_a_row_are_a_change_and_three_are_none(factor):
    track, interrupted = RatioSamples(), RatioSamples()
    for _ in range(KEPT_SAMPLES):
        track.add(1.0)
        interrupted.add(1.0)
    assert [interrupted.add(ratio) for ratio in [factor] * 3 + [1.0] + [1 / factor] * 3] == [None] * 7
    assert [track.add(factor) for _ in range(3)] == [None] * 3
    assert track.level == 1.0
    assert track.add(factor) == pytest.approx(factor)
    assert track.level == factor
    assert len(track) == 4  # only what showed the change


def test_estimates_are_corrected_by_the_neighbours_and_the_nearest_counts_most():
    neighbours = NearbyRatios()
    near, far, here = (Key(("op",), (size,)) for size in (9.0, 2.0, 10.0))
    assert neighbours.correction(here, FAST, "forward", 4.0) == (1.0, 4.0)
    neighbours.set(near, FAST, "forward", 3.0)
    ratio, either = neighbours.correction(here, FAST, "forward", 4.0)
    assert 2.5 < ratio < 3.0  # the estimate itself still counts a little
    assert either == 1.5  # half for an octave
    neighbours.set(far, FAST, "forward", 0.1)
    assert 2.0 < neighbours.correction(here, FAST, "forward", 4.0)[0] < ratio
    assert neighbours.correction(here, SLOW, "forward", 4.0) == (1.0, 4.0)  # another kernel
    assert neighbours.correction(Key(("other",), (10.0,)), FAST, "forward", 4.0) == (1.0, 4.0)


def test_the_other_direction_counts_as_a_neighbour_an_octave_away():
    neighbours = NearbyRatios()
    neighbours.set(KEY, FAST, "forward", 2.0)
    assert neighbours.correction(KEY, FAST, "backward", 4.0)[1] == 1.5


@pytest.mark.parametrize(("seconds", "arm", "either"), [(1.0, 1.0, 2.0), (1.0, 3.0, 2.0), (3.0, 1.0, 1.5)])
def test_the_expected_gain_is_the_mean_over_a_lognormal_time(seconds, arm, either):
    deviation = math.log(either) / 2
    steps = 20_000  # the midpoint rule over +-8 standard deviations: error below 1e-6
    grid = [-8 + 16 * (i + 0.5) / steps for i in range(steps)]
    density = [math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in grid]
    gains = [max(0.0, seconds - arm * math.exp(deviation * z)) for z in grid]
    expected = sum(p * gain for p, gain in zip(density, gains, strict=True)) * 16 / steps
    assert Prediction(arm, arm / either, arm * either, 0).expected_gain(seconds) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds", "arm", "either"), [(1.0, 1.0, 2.0), (1.0, 3.0, 2.0), (3.0, 1.0, 1.5), (2.0, 3.0, 1.0)]
)
def test_expected_gain_and_loss_differ_by_the_difference_of_the_means(seconds, arm, either):
    found = Prediction(arm, arm / either, arm * either, 0)
    mean = arm * math.exp((math.log(either) / 2) ** 2 / 2)
    assert found.expected_gain(seconds) - found.expected_loss(seconds) == pytest.approx(seconds - mean)


def test_the_expected_gain_of_a_certain_arm_is_the_difference():
    assert Prediction(1.0, 1.0, 1.0, 9).expected_gain(3.0) == 2.0
    assert Prediction(3.0, 3.0, 3.0, 9).expected_gain(1.0) == 0.0


def test_the_first_choice_is_the_lowest_estimate():
    policy = Policy()
    decision = policy.decide(KEY, arms(fft=1e-4, dense=2e-4))
    assert (decision.name, decision.reason, decision.is_trial, decision.period) == (FAST, "prior", False, 1)
    assert policy.decide(Key(("op",), ()), arms(dense=1.0)).reason == "prior"


def test_a_wrong_estimate_is_found_out_and_the_period_grows_to_its_end():
    machine = Machine(Policy(), {FAST: 5e-4, SLOW: 1e-4}, noise=0.1)
    last = machine.calls(3000, arms(fft=1e-4, dense=1.5e-4))
    assert (last.name, last.reason) == (SLOW, "measured")
    assert 90 < last.period < 130  # of 0.1 ms: a decision every 10 ms
    assert machine.ran.count(FAST) < 12


@pytest.mark.parametrize(("seconds", "longest"), [(1e-6, 256), (39e-6, 256), (1e-3, 10), (2e-3, 5), (1.0, 4)])
def test_the_longer_the_calls_the_sooner_the_next_decision(seconds, longest):
    machine = Machine(Policy(), {FAST: seconds})
    assert machine.calls(2000, arms(fft=seconds)).period in (longest, longest - 1)  # rounded


def test_an_arm_within_the_margin_does_not_replace_the_incumbent():
    machine = Machine(Policy(), {FAST: 1e-4, SLOW: 0.95e-4}, noise=0.01)
    machine.calls(2000, arms(fft=1e-4, dense=1.05e-4))
    switches = sum(a != b for a, b in itertools.pairwise(d.name for d in machine.decisions if not d.is_trial))
    assert switches == 0
    assert SLOW in machine.ran  # it was tried


def test_trials_never_cost_more_than_the_fraction_and_the_allowance():
    for seed in range(5):
        rng = random.Random(seed)
        names = [f"torch/{letter}" for letter in "abcdef"]
        times = {name: 1e-4 * rng.lognormvariate(0, 1) for name in names}
        policy = Policy(explore_fraction=0.02, allowance=1e-3)
        machine = Machine(policy, times, noise=0.1, seed=seed)
        worst = max(times.values())
        for index in range(1500):
            key = Key(("op",), (float(index % 3),))
            machine.call([Candidate(name, 1e-4, 4.0) for name in names], key)
            budget = policy.budget
            # One trial may take longer than was feared, noise included (3 standard deviations); the next must wait.
            assert budget.explored <= 0.02 * budget.total + 1e-3 + math.exp(0.3) * worst
        assert policy.budget.explored > 0


def test_without_a_budget_nothing_is_tried():
    machine = Machine(Policy(explore_fraction=0.0, allowance=0.0), {FAST: 1e-4, SLOW: 1e-5})
    machine.calls(2000, arms(fft=1e-4, dense=1.1e-4))
    assert set(machine.ran) == {FAST}


def test_a_policy_that_does_not_learn_keeps_the_estimate_and_still_follows_wisdom():
    frozen = Policy(learn=False)
    machine = Machine(frozen, {FAST: 5e-4, SLOW: 1e-4})
    machine.calls(500, arms(fft=1e-4, dense=1.5e-4))
    assert set(machine.ran) == {FAST}
    assert frozen.state() == {}
    frozen.restore({KEY.text(): {FAST: {"forward": (5e-4, 1e-4, 5)}}})
    assert frozen.decide(KEY, arms(fft=1e-4, dense=1.5e-4)).name == SLOW


def test_one_spike_does_not_strand_an_arm():
    policy = Policy(allowance=1.0)
    times = {FAST: 3e-4, SLOW: 1e-4}
    machine = Machine(policy, times)
    candidates = arms(fft=1e-4, dense=2.5e-4)
    while not (machine.decisions and machine.decisions[-1].name == SLOW):
        times[SLOW] = 20e-4  # its first sample, and the call before
        machine.call(candidates)
    machine.call(candidates)
    times[SLOW] = 1e-4
    assert machine.calls(2000, candidates).name == SLOW


def compiled(gain, price, key_code="code"):
    """Two arms: fft at 1 ms and one that gains `gain` of it and must be compiled for `price`."""
    return [Candidate(FAST, 1e-3, 1.1), Candidate(JIT, 1e-3 - gain, 1.1, compile_seconds=price, code=key_code)]


def test_what_must_be_compiled_is_bought_when_it_would_have_gained_its_price():
    machine = Machine(Policy(), {FAST: 1e-3, JIT: 5e-4})
    price = 0.2
    while machine.call(compiled(5e-4, price)).name != JIT:
        assert len(machine.ran) < 2000
    bought = len(machine.ran)
    # Half a millisecond for each of 400 calls; it is asked every 10 calls at most, and those to come count as made.
    assert 400 - 10 <= bought <= 400
    assert machine.decisions[-1].is_trial
    assert machine.calls(300, compiled(5e-4, price)).name == JIT


def test_whatever_the_length_a_purchase_costs_at_most_twice_what_hindsight_pays():
    price, gain = 0.05, 5e-4
    policy = Policy()
    machine = Machine(policy, {FAST: 1e-3, JIT: 1e-3 - gain})
    paid = 0.0
    for count in range(1, 1500):
        before = len(machine.compiled)
        name = machine.call(compiled(gain, price)).name
        is_bought = len(machine.compiled) > before and name == JIT
        paid += machine.times[name] + (price if is_bought else 0.0)
        best = min(count * 1e-3, price + count * (1e-3 - gain))
        # 10 calls: the longest that a site does not ask; 10 calls: trials and hysteresis.
        assert paid <= best + price + (10 + 10) * gain


def test_keys_share_the_price_of_shared_code():
    machine = Machine(Policy(), {FAST: 1e-3, JIT: 5e-4})
    keys = [Key(("op",), (float(i),)) for i in range(10)]
    for index in range(1000):
        if machine.call(compiled(5e-4, 0.2), keys[index % 10]).name == JIT:
            break
    assert index < 410  # in all, not for each key
    coming = 10 * max(decision.period for decision, _ in machine.plans.values())
    assert index + coming >= 400  # the calls until each key is asked again count as made


def test_an_arm_that_nobody_believes_in_is_bought_after_the_others_slow_down():
    times = {FAST: 1e-3, JIT: 1.5e-3}
    candidates = [Candidate(FAST, 1e-3, 2.0), Candidate(JIT, 1.5e-3, 2.0, compile_seconds=0.3, code="c")]
    machine = Machine(Policy(), times)
    machine.calls(500, candidates)
    assert JIT not in machine.ran
    times[FAST] = 3e-3
    assert machine.calls(1500, candidates).name == JIT


def test_a_change_is_reported_and_spreads_to_the_same_backend_only():
    other = Key(KEY.group, (4.0, 12.0))
    times = {FAST: 1e-4, SLOW: 1.3e-4, JIT: 1.8e-4}
    candidates = arms(fft=1e-4, dense=1.3e-4, loop=1.8e-4)
    policy = Policy()
    machine = Machine(policy, times, noise=0.02)
    for _ in range(400):
        machine.call(candidates)
        machine.call(candidates, other)
    before = policy.predict(other, candidates)
    times[FAST] *= 3
    times[SLOW] *= 3
    while not machine.changes:
        machine.call(candidates)
    after = policy.predict(other, candidates)
    assert machine.changes[0].name == FAST
    assert machine.changes[0].factor == pytest.approx(3, rel=0.1)
    assert after[FAST].seconds / before[FAST].seconds == pytest.approx(3, rel=0.1)
    assert after[FAST].low < 1.1 * before[FAST].seconds  # it may not apply there
    assert after[JIT].seconds == before[JIT].seconds
    assert machine.calls(300, candidates).name == JIT
    assert machine.calls(300, candidates, other).name == JIT


def test_a_slowdown_that_both_passes_reveal_counts_once_for_the_other_arms_and_keys():
    other, never = Key(KEY.group, (4.0, 12.0)), "torch/never"
    candidates = [Candidate(name, 1e-4, 2.0, backward=3e-4) for name in (FAST, SLOW, never)]
    policy = Policy()

    def run(name, key, factor):
        """Observe calls that take `factor` times the estimate in both passes; return the changes."""
        policy.decide(key, candidates)
        calls = [*zip(DIRECTIONS, (1e-4 * factor, 3e-4 * factor), strict=True)] * 8
        found = [policy.observe(key, name, seconds, direction=direction) for direction, seconds in calls]
        return [change.direction for change in found if change is not None]

    for key in (KEY, other):
        for name in (FAST, SLOW):
            assert run(name, key, 1.0) == []
    assert run(FAST, KEY, 8.0) == ["forward", "backward"]
    for key in (KEY, other):
        found = policy.predict(key, candidates)
        assert found[FAST].seconds == pytest.approx(8 * 4e-4)
        assert found[SLOW].seconds == pytest.approx(8 * 4e-4)
        assert found[never].seconds == pytest.approx(8 * 4e-4)


def test_a_pass_that_slows_down_says_nothing_of_the_other_pass():
    candidates = [Candidate(name, 1e-4, 2.0, backward=3e-4) for name in (FAST, SLOW)]
    policy = Policy()
    for name, forward in ((FAST, 1e-4), (SLOW, 1e-4), (FAST, 8e-4)):
        for _ in range(8):
            policy.decide(KEY, candidates)
            policy.observe(KEY, name, forward)
            policy.observe(KEY, name, 3e-4, direction="backward")
    assert policy.predict(KEY, candidates)[SLOW].seconds == pytest.approx(8e-4 + 3e-4)


def test_a_change_that_does_not_apply_elsewhere_is_taken_back_by_one_sample():
    track = RatioSamples()
    for _ in range(8):
        track.add(1.0)
    track.scale(3.0)
    assert track.level == 3.0
    track.add(1.05)
    assert track.level == 1.05


def test_a_slowdown_that_passes_is_noticed():
    times = {FAST: 1e-4, JIT: 2e-4}
    candidates = arms(fft=1e-4, loop=2e-4)
    machine = Machine(Policy(), times, noise=0.05)
    machine.calls(1000, candidates)
    times[FAST] = 4e-4
    assert machine.calls(1500, candidates).name == JIT
    times[FAST] = 1e-4
    assert machine.calls(6000, candidates).name == FAST


def test_an_arm_that_is_not_among_the_candidates_never_runs_and_comes_back():
    machine = Machine(Policy(), {FAST: 1e-4, SLOW: 2e-4})
    both = arms(fft=1e-4, dense=2e-4)
    machine.calls(100, both)
    machine.plans.clear()  # whoever quarantines an arm asks again
    machine.ran.clear()
    machine.calls(300, arms(dense=2e-4))
    assert set(machine.ran) == {SLOW}
    assert machine.calls(600, both).name == FAST


def test_forward_and_backward_are_planned_together_by_how_often_a_backward_follows():
    forward_wins = Candidate(FAST, 1e-4, 2.0, backward=9e-4)
    both_win = Candidate(SLOW, 2e-4, 2.0, backward=2e-4)
    policy = Policy()
    assert policy.decide(KEY, [forward_wins, both_win]).name == SLOW
    inference = Policy()
    for _ in range(300):
        last = inference.decide(KEY, [forward_wins, both_win], calls=1, backwards=0)
    assert last.name == FAST


def test_a_backward_that_was_timed_corrects_the_joint_time():
    candidates = [Candidate(FAST, 1e-4, 2.0, backward=1e-4), Candidate(SLOW, 2e-4, 2.0, backward=2e-4)]
    policy = Policy()
    for _ in range(12):
        name = policy.decide(KEY, candidates).name
        policy.observe(KEY, name, {FAST: 1e-4, SLOW: 2e-4}[name])
        policy.observe(KEY, name, {FAST: 9e-4, SLOW: 2e-4}[name], direction="backward")
    assert policy.predict(KEY, candidates)[FAST].seconds == pytest.approx(1e-3)
    assert policy.decide(KEY, candidates).name == SLOW


def test_preempted_samples_count_as_spent_and_say_nothing():
    policy = Policy()
    candidates = arms(fft=1e-4, dense=3e-4)
    for _ in range(50):
        policy.observe(KEY, policy.decide(KEY, candidates).name, 5e-3, keep=False)
    assert policy.predict(KEY, candidates)[FAST].seconds == 1e-4
    assert policy.decide(KEY, candidates).period <= 4  # still waiting for a sample


def test_sizes_that_share_a_key_share_the_ratio_and_not_the_time():
    policy = Policy()
    for _ in range(5):
        policy.decide(KEY, arms(fft=1e-4))
        policy.observe(KEY, FAST, 2e-4, estimate=1e-4)
    assert policy.predict(KEY, arms(fft=1.2e-4))[FAST].seconds == pytest.approx(2.4e-4)


def test_wisdom_survives_json_and_a_second_process_starts_where_the_first_ended():
    times = {FAST: 5e-4, SLOW: 1e-4}
    candidates = arms(fft=1e-4, dense=1.5e-4)
    first = Machine(Policy(), times, noise=0.1)
    first.calls(1000, candidates)
    second = Policy()
    second.restore(json.loads(json.dumps(first.policy.state())))
    decision = second.decide(KEY, candidates)
    assert (decision.name, decision.reason) == (SLOW, "wisdom")
    for name, belief in second.predict(KEY, candidates).items():
        assert belief.seconds == pytest.approx(first.policy.predict(KEY, candidates)[name].seconds)


def test_foreign_wisdom_widens_the_bounds_and_is_soon_overruled():
    candidates = arms(uncertainty=4.0, fft=1e-4, dense=2e-4)
    policy = Policy()
    policy.restore({KEY.text(): {FAST: {"forward": (9e-4, 1e-4, 16)}}}, trust="prior")
    belief = policy.predict(KEY, candidates)[FAST]
    assert belief.seconds > 4e-4
    assert belief.samples == 0
    assert belief.high / belief.seconds == pytest.approx(2.0)
    assert Machine(policy, {FAST: 1e-4, SLOW: 4e-4}).calls(500, candidates).name == FAST


def test_what_this_process_measured_stays_when_wisdom_comes():
    machine = Machine(Policy(), {FAST: 1e-4, SLOW: 2e-4})
    machine.calls(50, arms(fft=1e-4, dense=2e-4))
    other = Key(KEY.group, (4.0, 11.0))
    before = machine.policy.predict(other, arms(fft=1e-4))
    for trust in ("own", "prior"):
        machine.policy.restore({KEY.text(): {FAST: {"forward": (1.0, 1e-4, 16)}}}, trust)
    assert machine.policy.predict(KEY, arms(fft=1e-4))[FAST].seconds == pytest.approx(1e-4)
    assert machine.policy.predict(other, arms(fft=1e-4)) == before


@pytest.mark.parametrize("trust", ["own", "prior"])
def test_wisdom_without_estimates_takes_those_of_the_first_candidates(trust):
    whole, bare = Policy(), Policy()
    whole.restore({KEY.text(): {FAST: {"forward": (5e-4, 1e-4, 5)}}}, trust)
    bare.restore({KEY.text(): {FAST: {"forward": (5e-4, None, 5)}, JIT: {"forward": (1e-4, None, 5)}}}, trust)
    both = arms(fft=1e-4, dense=2e-4)
    assert bare.predict(KEY, both) == whole.predict(KEY, both)
    assert bare.decide(KEY, both) == whole.decide(KEY, both)
    loop = bare.predict(KEY, arms(loop=2e-4))[JIT]  # who comes later is not forgotten
    assert loop.seconds < 1.3e-4
    assert (loop.samples == 5) == (trust == "own")


def test_where_every_estimate_is_another_what_was_measured_stays():
    machine = Machine(Policy(), {FAST: 1e-4, SLOW: 2e-4})
    other = Key(KEY.group, (4.0, 11.0))
    machine.calls(50, arms(fft=2e-4, dense=3e-4))
    policy, before = machine.policy, machine.policy.predict(KEY, arms(fft=2e-4))[FAST]
    policy.rebase()
    assert policy.state()[KEY.text()][FAST]["forward"][1] is None
    assert policy.predict(other, arms(fft=1e-3))[FAST].seconds == 1e-3  # it is not known what that is worth
    after = policy.predict(KEY, arms(fft=1e-3, dense=1e-3))[FAST]
    assert astuple(after) == pytest.approx(astuple(before))
    assert policy.predict(other, arms(fft=1e-3))[FAST].seconds < 2e-4  # a tenth of the estimate, as measured nearby
    assert policy.decide(KEY, arms(fft=1e-3, dense=1e-3)).reason == "measured"
    assert policy.state()[KEY.text()][FAST]["forward"][1] == 1e-3


def test_forgetting_reaches_what_was_never_measured_here():
    policy = Policy()
    policy.restore({KEY.text(): {FAST: {"forward": (9e-4, 1e-4, 16)}}}, trust="prior")
    policy.forget(lambda key: key.group[0] == "toeplitz")
    assert policy.predict(KEY, arms(fft=1e-4))[FAST].seconds == 1e-4


def test_forgetting_drops_the_keys_that_match():
    machine = Machine(Policy(), {FAST: 1e-4, SLOW: 2e-4})
    other = Key(("optimizer",), (1.0,))
    candidates = arms(fft=1e-4, dense=2e-4)
    machine.calls(20, candidates)
    machine.calls(20, candidates, other)
    machine.policy.forget(lambda key: key.group[0] == "optimizer")
    assert list(machine.policy.state()) == [KEY.text()]
    machine.policy.forget()
    assert machine.policy.state() == {}


def test_a_time_that_comes_after_its_key_was_forgotten_is_not_learnt():
    policy = Policy()
    assert policy.observe(KEY, FAST, 1e-4) is None
    policy.decide(KEY, arms(fft=1e-4))
    policy.forget()
    assert policy.observe(KEY, FAST, 1e-4) is None
    assert policy.state() == {}


def test_of_too_many_keys_the_one_not_asked_for_longest_is_forgotten(monkeypatch):
    monkeypatch.setattr(model, "MOST_KEYS", 3)
    machine = Machine(Policy(), {FAST: 1e-4})
    keys = [Key(("op",), (float(i),)) for i in range(4)]
    for key in [*keys[:3], keys[0], keys[3]]:
        machine.plans.clear()
        machine.calls(3, arms(fft=1e-4), key)
    assert {Key.parse(text) for text in machine.policy.state()} == {keys[2], keys[0], keys[3]}


def test_the_backward_of_a_trial_counts_as_explored_also_after_another_decision():
    policy = Policy(allowance=1.0)
    pair = [Candidate(FAST, 1e-4, 2.0, backward=1e-4), Candidate(SLOW, 1.1e-4, 2.0, backward=1.1e-4)]
    while not (decision := policy.decide(KEY, pair)).is_trial:
        policy.observe(KEY, decision.name, 1e-4)
        policy.observe(KEY, decision.name, 1e-4, direction="backward")
    policy.observe(KEY, decision.name, 1e-4)
    policy.decide(KEY, pair[:1])
    before = policy.budget.explored
    policy.decide(KEY, pair)
    policy.observe(KEY, SLOW, 5e-4, direction="backward")
    assert policy.budget.explored - before == pytest.approx(4e-4)


def test_decisions_are_the_same_on_every_run():
    def names():
        machine = Machine(Policy(), {FAST: 3e-4, SLOW: 1e-4, JIT: 0.9e-4}, noise=0.1, seed=3)
        machine.calls(500, arms(fft=1e-4, dense=1.5e-4, loop=2e-4))
        return machine.ran

    assert names() == names()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Candidate(FAST, 0.0, 2.0), "seconds > 0"),
        (lambda: Candidate(FAST, math.nan, 2.0), "finite"),
        (lambda: Candidate(FAST, 1.0, 0.5), "factor >= 1"),
    ],
)
def test_wrong_arguments_raise_with_the_rule(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_a_quarter_of_the_budget_is_for_what_is_expected_all_of_it_for_the_worst():
    budget = Budget(0.02, 0.02)
    budget.total = 1.0
    assert budget.allows(0.0099, 0.0399)
    assert not budget.allows(0.0101, 0.0)
    assert not budget.allows(0.0, 0.0401)
    budget.explored = 0.02
    assert budget.allows(0.0049, 0.0199)
    assert not budget.allows(0.0051, 0.0)


def test_what_a_trial_costs_is_taken_as_its_expectation():
    policy = Policy(explore_fraction=0.02, allowance=0.0)
    slow, unsure = Candidate(FAST, 1e-3, 1.01), Candidate(JIT, 1.2e-3, 2.0)
    loss = Prediction(1.2e-3, 0.6e-3, 2.4e-3, 0).expected_loss(1e-3)
    while not policy.decide(KEY, [slow, unsure]).is_trial:
        policy.observe(KEY, FAST, 1e-3)
    needed = max(4 * loss, 1.4e-3) / 0.02
    assert needed <= policy.budget.total <= needed + 2e-3
