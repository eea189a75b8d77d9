"""Public calls return what they returned: values and gradients, frozen, for when what lies behind them is rebuilt.

`tests/freeze.py` drew the calls and wrote the file. Where a change of numbers is meant, it is run again, and the commit
says what changed and why.
"""

from __future__ import annotations

import json
import lzma
import pathlib
import re
from typing import Any

import pytest

from tests.frozen_calls import Call, difference, public, summary, uniform

FILE = pathlib.Path(__file__).parent / "reference" / "frozen_calls.json.xz"
CALLS: list[dict[str, Any]] = [json.loads(line) for line in lzma.decompress(FILE.read_bytes()).splitlines()]
COMPILED = [call for call in CALLS if call["framework"] == "jax"]  # seconds each
OTHERS = [call for call in CALLS if call["framework"] != "jax"]
# Gradients that are zero in exact arithmetic, such as that of a bias before a softmax, are what is left of others.
LEAST = 1e-3
# The path of a seed follows eigenvectors of the states' covariance, whose least eigenvalues are rounding, and weights
# that cancel 4e10 to one for 16 states: with SSE4.2 in place of AVX-512 paths move by up to 2.5e-3, of 8 by 1.5e-10.
OF_STATES = {8: 1e-8, 16: 2e-2}
FAST = {call["seed"] for call in [*COMPILED[:: len(COMPILED) // 4], *OTHERS[:: len(OTHERS) // 196]]}


def cases() -> list[Any]:
    return [
        pytest.param(
            call,
            id=f"{call['framework']}-{call['family']}-{call['seed']}",
            marks=[] if call["seed"] in FAST else [pytest.mark.slow],
        )
        for call in CALLS
    ]


@pytest.mark.parametrize("call", cases())
def test_a_public_call_returns_what_it_did(call):
    pytest.importorskip(call["framework"])
    if "preprocessing" in json.dumps(call["call"]):
        pytest.importorskip("sklearn")
    found = Call(call).run()
    text = json.dumps({key: value for key, value in call.items() if key not in ("results", "others")})
    assert set(found) == set(call["results"]), text
    largest = max((each["scale"] for key, each in call["results"].items() if key.startswith("gradient")), default=0.0)
    for key, wanted in call["results"].items():
        scale = max(wanted["scale"], LEAST * largest) if key.startswith("gradient") else wanted["scale"]
        off = difference(summary(found[key]), wanted | {"scale": scale})
        assert off <= tolerance(call) or off <= 10 * last_bits(call, key, scale), f"{key} of {text}"


def last_bits(call: dict[str, Any], key: str, scale: float) -> float:
    """Return how far a result moves with the last bits of the arrays given: rounding that some solves amplify."""
    own = summary(Call(call).run()[key]) | {"scale": scale}
    return max(difference(summary(Call(call, 1 + bits * 2.0**-52).run()[key]), own) for bits in (-2, -1, 1, 2))


def tolerance(call: dict[str, Any]) -> float:
    """Return the largest difference relative to the scale of a result."""
    states = re.search(r'hpfracc_nn.solvers.Markov.*"n_states": (\d+)', json.dumps(call["call"]))
    return max(call["tolerance"], OF_STATES.get(int(states[1]), 0.0) if states else 0.0)


def test_there_are_two_thousand_over_all_that_is_registered():
    from hpfracc_nn import DEFINITIONS, MULTIPLIERS
    from hpfracc_nn.solvers import HISTORIES, NOISES, SCHEMES, STOCHASTIC_SCHEMES, VOLTERRA_WEIGHTS

    text = json.dumps([call["call"] for call in CALLS])
    assert len(CALLS) >= 2000
    assert len({call["seed"] for call in CALLS}) == len(CALLS)
    assert FILE.stat().st_size < 3_000_000
    for kind in [*DEFINITIONS.values(), *MULTIPLIERS.values(), *NOISES.values()]:
        assert f".{kind.__name__}" in text
    for word in [*SCHEMES, *STOCHASTIC_SCHEMES, *VOLTERRA_WEIGHTS, *HISTORIES]:
        assert f'"{word}"' in text or word == "window"


def test_a_leaf_is_drawn_alike_everywhere():
    # Philox's raw bits for key 25, which NumPy promises.
    assert uniform(25, 3).tolist() == [0.5588762639900628, 0.6000972038859642, 0.6139251620006081]
    with pytest.raises(LookupError):
        public("nothing.there")
