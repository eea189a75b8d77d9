"""Series over the processes of a group: the results and gradients of one process, however time is cut."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpfracc_nn import distributed
from hpfracc_nn.fractional.definitions import DEFINITIONS
from tests.definition_cases import SCHEMES

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
# Two processes at once: what compiles or learns has no part in them.
SETTINGS = {"HPFRACC_NN_SELECTION": "prior", "HPFRACC_NN_WISDOM": "off", "HPFRACC_NN_DISABLE": "numba, xla"}
SETTINGS |= {"OMP_NUM_THREADS": "1"}
# Errors of y, of the gradient in x and in alpha, relative to a row's largest value. float32: of the gradient in x one
# process is 2.2e-6 off the one in double precision, in whose sums at x(0) all samples meet. In alpha's gradient the
# products with weights of tables, right to 1e-12 of the largest weight, add up, in one process too. float16: rounding.
LARGEST = {"float64": (1e-12, 1e-12, 1e-10), "float32": (1e-6, 2.5e-6, 1e-4), "float16": (1e-3, 1e-3, 1e-3)}
AT_ZERO = 1.5e-5  # of the gradient in x, float32: at order 0 such sums cancel at the first sample of every slice


def on_ranks(size: int, name: str, argument: Any = None) -> Any:
    """Return what the first of so many processes prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {**os.environ, **SETTINGS, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", "tests.rank_programs", name, json.dumps(argument)]
    started = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=given | {"RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    try:
        printed = [each.communicate(timeout=540) for each in started]
    finally:
        for each in started:
            each.kill()
    assert [each.returncode for each in started] == [0] * size, printed[0][1] + printed[-1][1]
    return json.loads(printed[0][0].splitlines()[-1])


def cuts(n: int, size: int, seed: int) -> list[int]:
    """Return drawn lengths of slices that make up n samples; some are 0."""
    ends = np.sort(np.random.default_rng(seed).integers(0, n + 1, size - 1))
    return np.diff(np.concatenate([[0], ends, [n]])).tolist()


def case(definition: str, alpha: float, lengths: list[int], **options: Any) -> dict[str, Any]:
    kind = DEFINITIONS[definition]
    return (
        {"dtype": "float64", "scheme": kind(0.5).scheme, "learn": False}
        | options
        | {
            "definition": definition,
            "alpha": alpha,
            "lengths": lengths,
        }
    )


FEW = [
    case("caputo", 0.6, [500, 300], learn=True),
    case("caputo", 0.6, [200, 100], dtype="float32"),
    case("caputo", 0.1, [120, 90]),  # x(0) is subtracted without differences
    case("caputo", 1.2, [100, 80]),
    case("riemann_liouville", 1.6, [3, 300], learn=True, bounds=[1, 2]),  # the first slope is that of both slices
    case("riemann_liouville_integral", 1.5, [100, 200]),  # samples are summed up
    case("grunwald_letnikov", -0.5, [0, 60]),
    case("grunwald_letnikov", 0.5, [60, 0]),
    case("riesz", 0.7, [200, 130]),
    case("caputo", 0.4, [70, 50], side="right"),
    case("riemann_liouville", 0.7, [20, 18]),
    case("caputo", 0.6, [17, 23]),  # one sample is left for the exponentials
    case("caputo_fabrizio", 0.7, [3000, 1500]),  # its exponential has faded long before the end
    case("caputo", 0.7, [5000, 9100], dtype="float32"),  # several windows of exponentials, the last of them short
    case("riemann_liouville", 1.6, [1100, 2100], dtype="float16", bounds=[1, 2]),
    case("caputo", 0.1, [5000, 9000], dtype="float16"),  # large parts of the gradient cancel
    case("riemann_liouville", 0.7, [4000, 9100], dtype="float32", learn=True),  # two columns beside the exponentials
]


LENGTHS = [10_000, 1_000_000]  # of both slices together


@functools.cache
def on_two() -> dict[str, Any]:
    """Return what two processes, started once, find in the fast tests."""
    halves = [n // 2 for n in LENGTHS]
    return on_ranks(
        2,
        "several",
        {"all_compared": FEW, "sent": halves, "refused": None, "layers": None, "one_sided": None, "surrounded": None},
    )


def check(found: list[float], case: dict[str, Any]) -> None:
    """Compare errors with those that are allowed."""
    y, x, alpha = LARGEST[case["dtype"]]
    if case["alpha"] == 0 and case["dtype"] == "float32":
        x = AT_ZERO
    assert all(one < other for one, other in zip(found, (y, x, alpha), strict=False)), (found, case)


@pytest.mark.parametrize("number", range(len(FEW)))
def test_two_processes_have_the_results_and_gradients_of_one(number: int) -> None:
    check(on_two()["all_compared"][number], FEW[number])


def drawn(size: int) -> list[dict[str, Any]]:
    """Return cases of every definition and scheme, in both precisions, and with a learned order where one may be."""
    found, seed = [], 0
    for kind, scheme in SCHEMES:
        name = next(name for name, each in DEFINITIONS.items() if each is kind)
        for alpha in (0.0, 0.3, 0.7, 1.0, 1.4, 2.0):
            if not kind.lowest <= alpha <= kind.highest:
                continue
            for dtype in ("float64", "float32"):
                seed += 1
                n = (40, 300, 3000)[seed % 3]
                found.append(case(name, alpha, cuts(n, size, seed), scheme=scheme, dtype=dtype))
        found += [case(name, 0.9, [n, 40 - n, *[30] * (size - 2)], scheme=scheme) for n in (16, 17, 18, 19, 20)]
        if name not in ("caputo_fabrizio", "atangana_baleanu"):  # their rates follow alpha
            found.append(case(name, 0.4, cuts(700, size, seed), scheme=scheme, learn=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_every_definition_goes_over_ranks_at_any_cut(size: int) -> None:
    cases = drawn(size)
    for found, each in zip(on_ranks(size, "all_compared", cases), cases, strict=True):
        check(found, each)


@pytest.mark.slow
def test_long_series_go_over_ranks() -> None:
    names, learn = ("caputo", "riemann_liouville"), (False, True)
    cases = [case(name, 0.6, cuts(n, 2, n), learn=each) for n in (8192, 60_000) for name in names for each in learn]
    for found, each in zip(on_ranks(2, "all_compared", cases), cases, strict=True):
        largest = 1e-12 if sum(each["lengths"]) <= 8192 else 1e-11
        assert max(found[:2]) < largest, (found, each)
        assert max(found) < 1e-9, (found, each)


def test_what_is_sent_does_not_depend_on_the_length(capsys: pytest.CaptureFixture[str]) -> None:
    short, long = on_two()["sent"]
    with capsys.disabled():
        print(f"\nbytes that a rank gives for 3 signals of {LENGTHS} samples: {short}, {long}")  # noqa: T201
    assert short == long
    header, forward, backward, of_alpha = short
    assert header < 1000
    assert forward == 3 * 8 * (4 + 17 + 57)
    assert backward == 2 * forward  # a part for each rank
    assert of_alpha == 8


REFUSALS = {
    "rows": "slices of 30, 31 samples): needs the same sizes beside time on all ranks",
    "dtype": "rank 1 torch.float32",
    "axis": "needs the same time axis on all ranks",
    "order": "needs the same operator on all ranks",
    "no samples": "rank 1 refuses its own",
    "dt": "needs a finite dt > 0",
    "wide": "needs weights that are a sum of decaying exponentials",
    "no group": "needs a process group",
    "integral": "needs an order or a RiemannLiouvilleIntegral",
    "no grad": "rank 1 is under no_grad, and rank 0 is not",
    "second derivatives": "needs create_graph=False",
    "state": "time lies over a process group",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_fit_is_an_error_on_every_rank(name: str) -> None:
    first, second = on_two()["refused"][name]
    assert REFUSALS[name] in first
    assert "Error" in second


def test_a_rank_that_is_gone_is_an_error_that_names_the_rank() -> None:
    found = on_ranks(2, "lost")
    assert found.startswith("RuntimeError: distributed.derivative(rank 0 of 2")
    assert "the exchange with the other ranks failed" in found


def test_layers_go_over_ranks() -> None:
    found = on_two()["layers"]
    assert max(found.values()) < 1e-10, found


def test_a_gradient_that_only_one_rank_wants_is_complete_on_all() -> None:
    *found, wanted = on_two()["one_sided"]
    assert found == pytest.approx([wanted] * 2, rel=1e-10)


def test_the_modes_of_pytorch_change_no_digit() -> None:
    """A call in inference mode keeps nothing that a later call cannot use; a result may be changed in place."""
    errors = on_two()["surrounded"]
    assert all(max(each) < 2.5e-6 for each in errors.values()), errors


def test_without_a_group_there_is_an_error_that_says_so() -> None:
    with pytest.raises(RuntimeError, match="start the program by torchrun"):
        distributed.derivative(torch.randn(2, 30), DEFINITIONS["caputo"](0.5))
