"""Single decisions of the policy, told exact times: what is tried, bought and counted, and when it asks again."""

import json

import pytest

from hpfracc_nn.selection.learning.model import LONGEST_PERIOD, MEASURED, STALE, Candidate
from hpfracc_nn.selection.learning.policy import AFTER_CHANGE, REMEMBERED, Policy
from hpfracc_nn.selection.workload import Key

KEY = Key(("toeplitz", "cpu"), (4.0, 10.0))
A, B, C = "torch/a", "torch/b", "torch/c"
UNIT = 2.0**-13  # seconds; powers of two, so that sums and products of times are exact
RICH = 1e6  # an allowance that allows whatever is worth it


def arm(name, seconds=UNIT, uncertainty=1.0, **more):
    return Candidate(name, seconds, uncertainty, **more)


def known(policy, name=A, seconds=UNIT, samples=MEASURED, key=KEY):
    """Let an earlier process have measured a kernel, with a ratio of 1."""
    policy.restore({key.text(): {name: {"forward": (seconds, seconds, samples)}}})


def samples_of(policy, name):
    return policy.state()[KEY.text()][name]["forward"][2]


def begun(**options):
    """Return a policy that may try whatever it likes, with a kernel for which it has decided."""
    policy = Policy(allowance=RICH, **options)
    known(policy, A)
    policy.decide(KEY, [arm(A)])
    return policy


# What is asked and told


def test_the_defaults_are_a_fiftieth_of_the_time_and_a_quarter_of_a_millisecond():
    budget = Policy().budget
    assert (budget.fraction, budget.allowance) == (0.02, 0.25e-3)


def test_what_qualifies_a_time_is_told_by_keyword():
    policy = Policy()
    policy.decide(key=KEY, candidates=[arm(A)])
    assert policy.observe(key=KEY, name=A, seconds=UNIT) is None
    with pytest.raises(TypeError, match="positional"):
        policy.observe(KEY, A, UNIT, "backward")  # type: ignore[misc]


def test_what_stands_is_empty_until_it_is_decided():
    policy, pair = Policy(allowance=RICH), [arm(A), arm(B, UNIT / 2, 4.0)]
    assert (policy.incumbent(KEY), policy.trial(KEY)) == ("", None)
    assert not policy.expects(KEY, A)
    policy.introduce(KEY, [arm(A)])
    assert [policy.expects(KEY, name) for name in (A, B)] == [True, False]
    known(policy, B, UNIT / 2)
    decision = policy.decide(KEY, [arm(A, uncertainty=4.0), pair[1]])
    assert (decision.name, decision.reason) == (A, "explore")  # as it may be the faster one
    assert (decision.incumbent, decision.basis) == (B, "wisdom")
    assert (policy.incumbent(KEY), policy.trial(KEY)) == (B, A)
    policy.decide(KEY, [arm(B, UNIT / 2)])
    assert policy.trial(KEY) is None
    assert [policy.expects(KEY, name) for name in (A, B)] == [False, True]


def test_a_pass_that_was_estimated_at_nothing_says_nothing():
    policy = Policy()
    policy.decide(KEY, [arm(A)])
    for _ in range(3):
        assert policy.observe(KEY, A, UNIT, direction="backward") is None
    assert policy.state() == {}
    policy.observe(KEY, A, UNIT)
    policy.observe(KEY, A, UNIT)
    assert json.dumps(policy.state()[KEY.text()]) == json.dumps({A: {"forward": (UNIT, UNIT, 1)}})


# How often a backward pass follows


def test_the_share_of_backward_passes_is_averaged_over_the_calls_that_are_remembered():
    policy, candidates = Policy(), [arm(A, UNIT, backward=UNIT)]
    share = 1.0

    def told(calls, backwards):
        policy.decide(KEY, candidates, calls, backwards)
        return policy.predict(KEY, candidates)[A].seconds / UNIT - 1

    for calls, backwards in ((16, 4), (1, 0), (8, None)):
        share += calls / REMEMBERED * ((calls if backwards is None else backwards) / calls - share)
        assert told(calls, backwards) == pytest.approx(share, rel=1e-15)
    assert told(10 * REMEMBERED, REMEMBERED) == pytest.approx(0.1, rel=1e-15)  # all that is remembered
    assert REMEMBERED == 64  # a share of a quarter more shows in a period of the longest


# What is counted


def test_time_is_what_was_expected_of_the_calls_before_and_the_times_of_trials():
    policy = Policy(allowance=RICH)
    pair = [arm(A, UNIT, backward=4 * UNIT), arm(B, UNIT, 4.0, backward=4 * UNIT)]
    policy.restore({KEY.text(): {A: {"forward": (UNIT, UNIT, 3), "backward": (4 * UNIT, 4 * UNIT, 3)}}})
    policy.decide(KEY, pair[:1])
    assert policy.budget.total == 0.0  # nothing was expected of what came before
    policy.observe(KEY, A, 64 * UNIT)
    assert policy.budget.total == 0.0  # no trial
    decision = policy.decide(KEY, pair, calls=10)
    assert policy.budget.total == 10 * 5 * UNIT
    assert (decision.name, decision.is_trial, decision.period, decision.incumbent) == (B, True, 1, A)
    policy.observe(KEY, B, 8 * UNIT)
    policy.observe(KEY, B, 64 * UNIT, direction="backward")
    assert policy.budget.total == (50 + 8) * UNIT
    before = policy.budget.total
    policy.decide(KEY, pair[:1])  # the one call since then was the trial
    assert policy.budget.total == before
    policy.decide(KEY, pair[:1], calls=3)
    assert policy.budget.total == before + 3 * 5 * UNIT


def test_the_price_of_code_is_what_its_first_call_takes_beyond_a_plain_one():
    policy = Policy()
    pair = [arm(A, 2 * UNIT), arm(C, UNIT, compile_seconds=2 * UNIT, backward=UNIT / 2)]
    policy.decide(KEY, pair[:1])
    total = policy.budget.total
    assert policy.decide(KEY, pair, calls=8).name == C
    policy.observe(KEY, C, 100 * UNIT)
    assert policy.budget.compiled == 99 * UNIT
    assert policy.budget.total == total + 8 * 2 * UNIT + UNIT  # of the trial only the plain call
    assert policy.budget.explored == 0.0  # which was no loss
    policy.observe(KEY, C, UNIT, direction="backward")
    assert policy.budget.compiled == 99 * UNIT  # the code is there


def test_a_first_call_that_is_faster_than_expected_pays_nothing_back():
    policy = Policy()
    policy.decide(KEY, [arm(A, compile_seconds=1.0)])
    policy.observe(KEY, A, UNIT / 2)
    assert policy.budget.compiled == 0.0


# Who is the incumbent


def test_of_two_that_are_as_fast_the_incumbent_stays():
    policy = Policy(switch_margin=0.0)
    policy.decide(KEY, [arm(B)])
    assert policy.decide(KEY, [arm(A), arm(B)]).name == B
    assert policy.decide(KEY, [arm(A, UNIT / 2), arm(B)]).name == A


@pytest.mark.parametrize(
    ("one", "other"),
    [((1.2, 0.1, 0.0), (1.0, 0.5, 0.0)), ((1.2, 0.1, 0.1), (1.0, 0.1, 0.5)), ((1.0, 1.0, 0.0), (3.0, 0.1, 0.0))],
)
def test_where_all_must_compile_the_first_is_who_has_done_a_call_soonest(one, other):
    candidates = [
        arm(name, seconds, backward=backward, compile_seconds=price)
        for name, (price, seconds, backward) in ((B, one), (A, other))
    ]
    assert Policy(learn=False).decide(KEY, candidates).name == B
    assert Policy(learn=False).decide(KEY, candidates[::-1]).name == B


# What is tried


@pytest.mark.parametrize(("low", "tries"), [(0.51, False), (0.5, False), (0.49, True)])
def test_an_arm_is_tried_that_may_beat_the_incumbent_by_the_margin(low, tries):
    for uncertainty in (2.0, 4.0):
        other = arm(B, low * uncertainty * UNIT, uncertainty)
        assert begun(switch_margin=0.5).decide(KEY, [arm(A), other]).is_trial is tries


def test_an_incumbent_that_was_never_timed_is_timed_before_others_are_tried():
    policy = Policy(allowance=RICH)
    assert not policy.decide(KEY, [arm(A), arm(B, UNIT, 9.0)]).is_trial


def test_an_arm_is_tried_until_it_is_measured_and_again_when_that_is_long_ago():
    policy = begun()
    pair = [arm(A), arm(B, 0.95 * UNIT, 2.0)]  # within the margin: it may be faster and never replaces A
    for _ in range(1 + MEASURED):  # the first call of each is no sample
        assert policy.decide(KEY, pair).name == B
        policy.observe(KEY, B, 0.95 * UNIT)
    assert samples_of(policy, B) == MEASURED == 3
    assert not policy.decide(KEY, pair, calls=STALE * MEASURED).is_trial
    assert policy.decide(KEY, pair, calls=1).is_trial
    policy.observe(KEY, B, 0.95 * UNIT)
    for _ in range(3):
        assert not policy.decide(KEY, pair).is_trial  # also with one sample more than it needs


def test_a_policy_that_does_not_learn_tries_and_buys_nothing_of_what_it_was_told():
    policy = Policy(allowance=RICH, learn=False)
    known(policy, A)
    others = [arm(B, UNIT, 9.0), arm(C, UNIT / 4, compile_seconds=UNIT)]
    for _ in range(3):
        decision = policy.decide(KEY, [arm(A), *others], calls=1000)
        assert (decision.name, decision.is_trial, decision.period) == (A, False, LONGEST_PERIOD)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_those_who_share_the_trials_each_tries_every_other_arm(rank):
    policy = begun()
    policy.share = rank, 2
    tried = set()
    for _ in range(12):
        decision = policy.decide(KEY, [arm(A), *(arm(name, UNIT, 4.0) for name in (C, B))])
        if decision.is_trial:
            tried.add(decision.name)
            policy.observe(KEY, decision.name, 2 * UNIT)
    assert tried == ({C} if rank == 0 else {B})


@pytest.mark.parametrize("rounds", [1, 2, 3, 9])
def test_after_two_rounds_of_silence_an_arm_of_somebody_else_is_tried(rounds):
    policy, pair = Policy(allowance=RICH), [arm(A), arm(B, UNIT, 4.0)]
    assert policy.rounds == 0
    policy.share, policy.rounds = (0, 2), 1
    policy.decide(KEY, pair)  # of the first round on
    known(policy, A)
    policy.rounds = rounds
    assert policy.decide(KEY, pair).is_trial is (rounds >= 3)


# What is bought


@pytest.mark.parametrize("name", ["numba/a", "torch/z"])
@pytest.mark.parametrize(("price", "buys"), [(2, True), (2.01, False)])
def test_code_is_bought_at_the_call_at_which_it_will_have_gained_its_price(name, price, buys):
    code = arm(name, UNIT, compile_seconds=price * UNIT)
    # This call and the one until the next decision gain a unit each.
    decision = Policy().decide(KEY, [arm("torch/b", 2 * UNIT), code])
    assert (decision.name == name) is buys
    assert decision.is_trial is buys


@pytest.mark.parametrize(("low", "buys"), [(0.99, True), (1.0, False), (1.01, False)])
def test_code_that_cannot_be_faster_is_not_bought_whatever_it_might_have_gained(low, buys):
    code = arm(C, 2 * low * UNIT, 2.0, compile_seconds=UNIT)
    assert (Policy().decide(KEY, [arm(A), code], calls=10**6).name == C) is buys


def test_of_two_codes_the_one_that_is_worth_more_is_bought():
    codes = [arm(C, UNIT, compile_seconds=2 * UNIT), arm(B, UNIT, compile_seconds=UNIT)]
    for order in (codes, codes[::-1]):
        assert Policy().decide(KEY, [arm(A, 2 * UNIT), *order]).name == B


@pytest.mark.parametrize("everything", [True, False])
def test_what_code_would_have_gained_is_forgotten_with_everything_and_not_with_some_keys(everything):
    policy, other = Policy(), Key(("other",), (1.0,))
    pair = [arm(A, 2 * UNIT), arm(C, UNIT, compile_seconds=20 * UNIT, code="shared")]
    assert not policy.decide(KEY, pair, calls=16).is_trial
    policy.forget(None if everything else lambda key: key == other)
    assert policy.decide(other, pair, calls=4).is_trial is not everything


# When it asks again


def periods(policy, candidates, count):
    return [policy.decide(KEY, candidates).period for _ in range(count)]


def test_the_period_doubles_after_the_first_three_decisions():
    policy, found = Policy(), []
    for _ in range(12):
        found += periods(policy, [arm(A, 2.0**-15)], 1)
        policy.observe(KEY, A, 2.0**-15)
    assert found == [1, 1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256]


@pytest.mark.parametrize(("samples", "longest"), [(1, AFTER_CHANGE), (2, AFTER_CHANGE), (3, 256)])
def test_the_period_stays_short_while_little_is_known(samples, longest):
    policy = Policy()
    known(policy, A, 2.0**-15, samples)
    assert periods(policy, [arm(A, 2.0**-15)], 15)[-1] == longest


def test_after_a_new_incumbent_the_period_is_one_again():
    policy = Policy()
    assert periods(policy, [arm(A)], 5) == [1, 1, 1, 2, 4]
    assert periods(policy, [arm(A), arm(B, UNIT / 2)], 5) == [1, 1, 1, 2, 4]


@pytest.mark.parametrize(("decisions", "period", "then"), [(4, 2, 4), (5, 4, 8), (6, 8, 1), (7, 16, 1)])
def test_an_odd_sample_asks_at_once_where_the_period_is_longer_than_after_a_change(decisions, period, then):
    policy, candidates = Policy(), [arm(A, 2.0**-15)]
    known(policy, A, 2.0**-15, 16)
    policy.decide(KEY, candidates)
    policy.observe(KEY, A, 2.0**-15)
    assert periods(policy, candidates, decisions - 1)[-1] == period
    policy.observe(KEY, A, 2.0**-14)  # twice as long as ever
    assert periods(policy, candidates, 1) == [then]
