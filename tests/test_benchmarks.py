"""The benchmarks run, and what they compare with computes the same thing."""

import json
import math
import pathlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hpfracc_nn import Caputo, FractionalLayer, FractionalLSTM, GrunwaldLetnikov, derivative, fsdeint  # noqa: E402
from tests.sde_cases import Given  # noqa: E402

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
ROUNDING = 1e-12  # float64, of values of the order of one, a few hundred terms

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="a source distribution carries no benchmarks")


@pytest.fixture
def x():
    return torch.randn(3, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def assert_same(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("dim", [-1, 1])
def test_the_cached_ffts_compute_the_derivative(load, x, dim):
    if dim == 1:
        x = x.T.contiguous()[None]
    baselines = load("baselines")
    calls = baselines.cached_ffts(baselines.column(GrunwaldLetnikov(0.5), 100), x, dim)
    assert len(calls) == 2  # 256 and 200
    for call in calls.values():
        assert_same(call(), derivative(x, GrunwaldLetnikov(0.5), dim=dim))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_benchmark_of_devices_says_so(load, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(tmp_path)])
    load("gpu").main()
    assert capsys.readouterr().out == "gpu: no CUDA device can be used here; nothing was measured.\n"
    assert not list(tmp_path.iterdir())


def test_the_package_for_fractional_brownian_motion_is_written_out_rightly(load):
    noise = load("noise")
    sampler = noise.OneByOne(4, 0.3)
    paths = np.array([sampler.fbm() for _ in range(4000)])
    t = np.arange(5) / 4
    expected = (t[:, None] ** 0.6 + t**0.6 - abs(t[:, None] - t) ** 0.6) / 2
    assert (paths[:, 0] == 0).all()
    np.testing.assert_allclose(paths.T @ paths / 4000, expected, rtol=0, atol=4 * math.sqrt(2 / 4000))


@pytest.mark.slow
def test_the_benchmark_of_noise_fills_its_tables(load, monkeypatch):
    noise = load("noise")
    first, second = noise.empty()
    noise.fractional(first, 4, 1)
    noise.numbers(second, 20, 1)
    assert {record["who"] for record in first.records} >= {"float32", "float64"}
    assert {record["name"] for record in second.records} == set(noise.NOISES)


def test_the_learned_fft_computes_the_derivative_and_its_gradient(load, x):
    alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    ours = derivative(x, GrunwaldLetnikov(alpha, bounds=(0, 1)))
    theirs = load("baselines").autograd_fft(alpha, x)
    assert_same(theirs.detach(), ours.detach())
    found, expected = (torch.autograd.grad(y.square().sum(), alpha)[0] for y in (theirs, ours))
    assert float(found) == pytest.approx(float(expected), rel=1e-9)  # some 300 squares, derivatives of all weights


@pytest.mark.parametrize("learn_alpha", [False, True])
def test_the_fft_layer_computes_the_layer(load, x, learn_alpha):
    theirs = load("baselines").FFTLayer(0.5, 100, learn_alpha)
    ours = FractionalLayer(0.5, "grunwald_letnikov", learn_alpha=learn_alpha)
    with torch.no_grad():
        torch.testing.assert_close(theirs(x.float()), ours(x.float()), rtol=0, atol=1e-5)  # 100 float32 terms


def test_the_direct_convolutions_compute_the_derivative(load, x):
    baselines, definition = load("baselines"), GrunwaldLetnikov(0.5)
    weights, row = baselines.column(definition, 100), x[0].numpy()
    assert_same(baselines.conv1d(weights, x)(), derivative(x, definition))
    assert_same(baselines.scipy_convolution(weights, row)(), derivative(row, definition))
    assert_same(baselines.dot_loop(weights, row), derivative(row, definition))


def test_the_loop_over_published_sizes_computes_caputo(load, x):
    peers, row = load("peers"), x[0].numpy()
    assert_same(peers.caputo_loop(peers.l1_weights(100), row), derivative(row, Caputo(0.5, "l1")))


def test_what_is_timed_as_the_product_is_the_public_call(load, x):
    calls, baselines = load("calls"), load("baselines")
    for definition in calls.definitions(0.5).values():
        manager = calls.BackendManager()
        found = calls.product_alone(x, definition, manager)().reshape(3, 100)
        assert_same(found, calls.public(x, definition, manager)())
        y, gradient = both = calls.product_both_ways(x, torch.ones_like(x), definition, manager)()
        assert len(both) == 2
        wanted = x.clone().requires_grad_()
        derivative(wanted, definition).sum().backward()
        assert_same(y.reshape(3, 100), found)
        assert_same(gradient[0].reshape(3, 100), wanted.grad)
    assert baselines.copied(x)().equal(x)


def test_calls_take_turns_and_their_medians_are_kept(load):
    order: list[str] = []
    times = load("timing").interleaved({name: lambda name=name: order.append(name) for name in "ab"}, 3, seconds=0)
    assert order == list("aabb" + 3 * "ab")
    assert times.rounds == 3
    assert times.best("") == min(times["a"], times["b"]) > 0


def test_a_budget_ends_the_rounds_after_three(load):
    assert load("timing").interleaved({"a": lambda: None}, 10, seconds=0, budget=0).rounds == 3


@pytest.mark.parametrize(("shape", "dim"), [((2, 40), -1), pytest.param((2, 40, 3), 1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_cell_has_both_definitions(load, shape, dim):
    cells, calls = load("cells"), load("calls")
    records = cells.forward_cell(calls.signals(*shape), 1, dim, budget=0)
    for gradient in ("x", "x, alpha") if dim == -1 else ("x",):
        records += cells.backward_cell(calls.signals(*shape), 1, dim, gradient=gradient, budget=0)
    assert {record["definition"] for record in records} == set(calls.NAMES)
    assert all(0 < record["call_ratio"] < math.inf and "/" in record["kernel"] for record in records)


@pytest.mark.slow
def test_every_kind_of_floor_is_measured(load):
    floors = load("floors")
    table = floors.empty(load("extent").Cells.QUICK)
    small = [
        floors.forward_floor(2, 64),
        floors.one_row_floor(64, 3.0),
        floors.middle_floor((2, 32, 3)),
        floors.learned_floor(2, 64, 2.0),
        floors.conv1d_floor(),
        floors.scipy_floor(),
        floors.layer_floor((2, 2, 32), False),
        floors.layer_floor((2, 2, 32), True),
    ]
    for floor in small:
        floors.measure(table, floor, "warm", 1)
    assert len(table.records) == sum(len(floor.least) for floor in small)
    assert {maker.func if hasattr(maker, "func") else maker for maker in floors.makers()} == {
        floors.forward_floor,
        floors.one_row_floor,
        floors.middle_floor,
        floors.learned_floor,
        floors.conv1d_floor,
        floors.scipy_floor,
        floors.layer_floor,
    }
    assert all(record["verdict"] in {"pass", "FAIL"} and record["copies"] > 0 for record in table.records)


@pytest.mark.slow
def test_peers_that_are_installed_are_timed(load):
    peers = load("peers")
    x = np.random.default_rng(0).standard_normal(64)
    found = peers.peer_calls(x)
    assert "scipy.signal.fftconvolve" in found
    for name, (definition, call) in found.items():
        assert peers.compare(name, call, x, definition, 1)["torch_ratio"] > 0
    assert list(peers.peer_calls(x.astype(np.float32))) == ["scipy.signal.fftconvolve"]


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "forward and backward"])
def test_the_plan_is_compared_with_every_kernel_that_accepts(load, direction):
    estimate = load("estimate")
    record = estimate.cell(2, 64, torch.float32, direction, 1)
    assert {"torch/dense", "torch/fft", record["planned"]} <= set(record["all_us"])
    assert record["ratio"] >= 1
    table = load("results").Table("estimate", "", {})
    table.records = [{**record, "direction": each} for each in estimate.DIRECTIONS]
    estimate.summary(table)
    assert len(table.notes) == 2


def test_dispatch_names_its_targets(load):
    dispatch = load("dispatch")
    verdicts = dispatch.verdicts(load("timing").interleaved(dispatch.calls(), 1, seconds=0))
    assert sum("pass" in text or "FAIL" in text for text in verdicts) == 3


@pytest.mark.slow
def test_threads_are_compared(load):
    threads = load("threads")
    table = threads.empty(2, 64)
    threads.torch_scaling(table, 2, 64, 1)
    threads.python_threads(table, 2, 64, 1)
    assert [record["count"] for record in table.records] == [1, 2, 1, 8]


def test_every_group_has_a_table_of_its_own(load):
    product = load("product")
    quick = load("extent").Cells.QUICK
    names = [group.table(quick).name for groups in product.GROUPS.values() for group in groups]
    assert len(set(names)) == len(names) >= len(product.GROUPS)


def test_a_group_is_written_as_markdown_and_json_and_a_missed_floor_is_an_error(load, tmp_path, monkeypatch):
    product, results = load("product"), load("results")

    def fill(table, allocator, cells):
        table.add(value=1.25, allocator=allocator, verdict="FAIL" if allocator == "warm" else "pass")
        table.note("A line.")

    columns = {"value": ("value", ".1f"), "allocator": ("allocator", ""), "missing": ("missing", "")}
    group = results.Group(lambda cells: results.Table("small", "A caption.", columns), fill)
    monkeypatch.setitem(product.GROUPS, "floors", (group,))
    monkeypatch.setattr(product, "calibrate", lambda count: None)
    monkeypatch.setattr(product, "set_allocator", lambda name: None)  # of the whole process
    monkeypatch.setattr(sys, "argv", ["product.py", "--group", "floors", "--strict", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="floor"):
        product.main()
    assert "| 1.2 | cold |  |" in (tmp_path / "small.md").read_text()
    assert [record["allocator"] for record in json.loads((tmp_path / "small.json").read_text())["records"]] == [
        "cold",
        "warm",
    ]


@pytest.mark.slow
def test_the_chart_is_drawn(load, tmp_path):
    pytest.importorskip("matplotlib")
    grid, plot, cells, calls = (load(name) for name in ("grid", "plot", "cells", "calls"))
    table = grid.FORWARD.table(load("extent").Cells.QUICK)
    for record in cells.forward_cell(calls.signals(2, 32), 1, budget=0):
        table.add(**record, allocator="warm")
    plot.draw(table, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


@pytest.fixture
def costs(load):
    """Two sizes; the loop is the fastest and must be compiled."""
    return load("selection_replay").Costs(
        "made up",
        [(1, 64), (8, 1024)],
        {
            "torch/fft": [40e-6, 100e-6],
            "torch/product": [20e-6, 400e-6],
            "numba/loop": [10e-6, 50e-6],
            "xla/fft": [90e-6, 80e-6],
        },
        {
            "torch/fft": [30e-6, 120e-6],
            "torch/product": [30e-6, 200e-6],
            "numba/loop": [15e-6, 60e-6],
            "xla/fft": [60e-6, 70e-6],
        },
        {"numba/loop": 0.01, "xla": 0.02},
        {"xla/fft": [0.03, 0.03]},
        {"numba/loop": "numba/loop", "xla/fft": "xla"},
        0.0,
    )


def test_hindsight_compiles_when_it_pays(load, costs):
    made = load("selection_replay")
    for count, plan, seconds in [
        (100, {0: ("torch/product",), 1: ("torch/fft",)}, 100 * 20e-6 + 100 * 100e-6),
        (1000, {0: ("numba/loop",), 1: ("numba/loop",)}, 0.01 + 1000 * 10e-6 + 1000 * 50e-6),
    ]:
        trace = made.Trace(costs, np.array([0, 1] * count))
        for fixed in (True, False):
            best = made.Hindsight(trace, fixed)
            assert best.plan == plan
            assert best.seconds == pytest.approx(seconds)


def test_hindsight_changes_its_mind_at_a_drift_unless_it_must_not(load, costs):
    made = load("selection_replay")
    trace = made.Trace(costs, np.zeros(100, int), drifts=[(50, 100, "torch/product", 3.0)])
    assert made.Hindsight(trace, fixed=False).plan == {0: ("torch/product", "torch/fft")}
    assert made.Hindsight(trace, fixed=False).seconds == pytest.approx(50 * 20e-6 + 50 * 40e-6)
    assert made.Hindsight(trace, fixed=True).seconds == pytest.approx(50 * 20e-6 + 50 * 60e-6)


@pytest.mark.parametrize("kind", ["stationary", "drift", "faults"])
def test_every_policy_plays_a_trace_and_none_beats_hindsight(load, costs, kind):
    selection, players = load("selection"), load("selection_players")
    for name, player in players.PLAYERS.items():
        found = load("selection_replay").replay(selection.TRACES[kind](costs, 400, 1), player)
        assert found["regret"] >= -1e-12, name  # the sum of some 400 times
        assert found["overspent"] == 0
    assert found["failed"] == 0 or kind == "faults"


def test_knowing_all_costs_but_not_the_future_costs_at_most_twice_each_purchase(load, costs):
    made, players = load("selection_replay"), load("selection_players")
    for calls in (100, 300, 1000, 3000):
        trace = made.stationary(costs, calls, 1)
        found = made.replay(trace, players.PLAYERS["knows all costs but not the future"])
        # Hindsight buys at most the loop; buying xla's code in vain costs no more than what was lost without it.
        assert found["seconds"] <= 2 * found["hindsight"]


def test_a_failed_arm_is_not_asked_again_before_its_time(load, costs):
    made, players = load("selection_replay"), load("selection_players")
    trace = made.Trace(costs, np.zeros(300, int), broken=frozenset({("torch/product", 0)}))
    assert made.replay(trace, players.Ours)["failed"] <= 1


def test_selection_is_printed_with_its_verdicts(load, costs, monkeypatch, tmp_path):
    selection = load("selection")
    monkeypatch.setattr(selection, "read", lambda path, caches: costs)
    monkeypatch.setattr(selection, "QUICK", {100: 1})
    monkeypatch.setattr(sys, "argv", ["selection.py", "--quick", "--output", str(tmp_path)])
    selection.main()
    text = (tmp_path / "selection.md").read_text()
    assert "exploration" in text
    assert "not worse than this package" in text


@pytest.mark.parametrize("operation", ["convolution", "taps"])
def test_the_arms_of_a_convolution_compute_the_same(load, operation):
    arms = load("selection_arms").OPERATIONS[operation]()
    for rows, n in [(1, 16), (3, 100)]:
        expected = arms["torch/fft"].make(rows, n)()
        for arm in arms.values():
            if not arm.compiles:
                torch.testing.assert_close(arm.make(rows, n)(), expected, rtol=0, atol=1e-5)  # float32, sums below 20
            assert arm.cost(rows, n).launches > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numba/loop", "xla/fft"])
def test_the_arms_that_compile_compute_the_same(load, name):
    pytest.importorskip({"numba/loop": "numba", "xla/fft": "jax"}[name])
    for operation in ("convolution", "taps"):
        arms = load("selection_arms").OPERATIONS[operation]()
        for rows, n in [(1, 16), (3, 100), (2, 61)]:
            expected = arms["torch/fft"].make(rows, n)()
            torch.testing.assert_close(arms[name].make(rows, n)(), expected, rtol=0, atol=1e-5)  # as above


def test_the_committed_tables_are_read(load):
    selection, made = load("selection"), load("selection_replay")
    for operation in (*selection.OPERATIONS, *selection.LATER):
        for caches in selection.CACHES:
            costs = made.read(selection.RESULTS / f"selection-{operation}.json", caches)
            assert len(costs.sizes) == 15
            assert set(costs.needs.values()) == set(costs.shared)
            assert all(seconds > 0 for arm in costs.arms for seconds in costs.seconds[arm] + costs.estimates[arm])


def test_costs_are_measured_and_first_uses_exceed_a_call(load):
    tables = load("selection_tables")
    arms = load("selection_arms").OPERATIONS["convolution"]()
    some = {name: arms[name] for name in ("torch/fft", "torch/product")}
    assert all(min(found) > 0 for found in tables.measured(some, [(1, 16)], 1).values())
    guessed, seconds = tables.estimates(some, [(1, 16), (8, 64)], "float32")
    assert seconds > 0
    assert all(len(found) == 2 and min(found) > 0 for found in guessed.values())
    assert len(tables.first_use("convolution", "torch/fft", [(1, 16)])) == 1


@pytest.mark.slow
def test_the_special_functions_are_timed_and_compared(load):
    special = load("special")
    values, transforms = special.empty()
    special.functions(values, 50, rounds=1)
    special.transforms(transforms, (100, 101), rounds=1)
    assert all(record["error"] is None or record["error"] < 1e-13 for record in values.records)
    ours = [record for record in transforms.records if ", order" in record["who"]]
    assert len(ours) == 6
    assert all(record["error"] < ROUNDING for record in ours)


def test_the_loops_of_the_stochastic_benchmark_are_the_same_solves(load):
    sde = load("sde")
    equation, n = sde.Equation(), 60
    normal = torch.randn(n, 4, sde.DIM, generator=torch.Generator().manual_seed(0))
    given = Given(normal / math.sqrt(n))

    def drawn():
        rows = iter(normal)
        return lambda y: next(rows)

    def ours(**options):
        return fsdeint(equation, sde.start(4), [0.0, 1.0], dt=1 / n, noise=given, **options)[-1]

    with torch.no_grad():
        torch.testing.assert_close(sde.plain_loop(equation, n, 4, drawn()), ours())
        volterra = ours(alpha=sde.ALPHA, weights="average")
        torch.testing.assert_close(sde.whole_past(equation, n, 4, drawn()), volterra, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sde.lift(equation, n, 4, drawn()), volterra, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_operators_at_any_times_are_timed_beside_equal_steps(load):
    nonuniform = load("nonuniform")
    table = nonuniform.empty()
    nonuniform.fill(table, ((2, 40),), rounds=1)
    assert {record["who"] for record in table.records} >= {"dense, learned", "chunked_scan, fixed"}
    assert all(record["ms"] > 0 for record in table.records)


def test_every_definition_is_timed_and_those_with_a_bound_are_compared_with_it(load, capsys):
    definitions = load("definitions")
    for backward in (False, True):
        calls = definitions.calls((3, 40), torch.float32, backward)
        assert set(calls) == {*definitions.DEFINITIONS, *definitions.MULTIPLIERS}
        found = calls["riesz"]()
        assert (found[0] if backward else found).shape == (3, 40)
    table = definitions.empty((3, 40))
    for name, ratio in {"caputo": 1.0, "caputo_fabrizio": 0.5, "tempered_caputo": 1.05}.items():
        table.add(dtype="float32", what="forward", name=name, ms=1.0, ratio=ratio)
    definitions.verdicts(table)
    assert "caputo_fabrizio: 2.0 times as fast as caputo or more; at least 1.5 wanted." in table.notes
    assert "tempered_caputo: at most 1.05 times the time of caputo; at most 1.1 wanted." in table.notes


def test_the_loop_over_past_cells_computes_the_layer(load):
    layers = load("layers")
    layer = FractionalLSTM(3, 5, alpha=layers.ALPHA, memory=7, dtype=torch.float64)
    cell = torch.nn.LSTMCell(3, 5, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x = torch.randn(30, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        assert_same(layers.window_loop(cell, x, 7), layer(x)[0])


@pytest.mark.slow
def test_the_benchmark_of_layers_fills_its_tables(load, capsys):
    layers = load("layers")
    for group in layers.GROUPS.values():
        assert group(load("extent").Cells.QUICK).records
    assert "wanted" in capsys.readouterr().out


def test_a_note_after_the_last_line_is_written_too(load, tmp_path):
    table = load("results").Table("small", "A caption.", {"n": ("n", "")}, folder=tmp_path)
    table.begin("group")
    table.add(n=1)
    table.note("What it means.")
    assert (tmp_path / "small.md").read_text().endswith("| 1 |\n\nWhat it means.\n")
