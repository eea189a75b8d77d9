"""The problems that the benchmark of the optimizers sets, and its tables."""

import importlib
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "fractional_optimizers.py"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="a source distribution carries no benchmarks")


@pytest.mark.parametrize("name", ["quadratic", "Rosenbrock", "digits", "LSTM"])
def test_every_task_is_the_same_for_all_and_can_be_solved(load, name):
    if name == "digits":
        pytest.importorskip("sklearn")
    tasks = load("optimizer_tasks")
    task = tasks.TASKS[name]
    scores = [tasks.run(task, torch.optim.Adam, 1e-2, 0, steps)[task.goal] for steps in (0, 0, 20)]
    assert scores[0] == scores[1] > scores[2]


def test_the_functions_have_their_minima_at_zero(load):
    tasks = load("optimizer_tasks")
    for make, best in ((tasks.quadratic, 0.0), (tasks.rosenbrock, 1.0)):
        problem = make(0)
        (x,) = problem.params
        with torch.no_grad():
            x.fill_(best)
        value = problem.loss(0)
        value.backward()
        assert value.item() == 0
        assert not x.grad.any()


def test_a_run_that_diverges_scores_infinity(load):
    tasks = load("optimizer_tasks")
    assert tasks.run(tasks.TASKS["Rosenbrock"], torch.optim.SGD, 1e3, 0, 100)["value"] == float("inf")


def test_digits_are_left_out_with_a_line_where_scikit_learn_is_not_installed(load, monkeypatch, capsys):
    module = load("optimizers")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "OPTIMIZERS", {"Adam": torch.optim.Adam})
    table = module.tasks_table(quick=True)
    module.fill_tasks(table, quick=True)
    assert table.notes == ["digits: left out, scikit-learn is not installed."]
    assert table.notes[0] in capsys.readouterr().out
    assert "digits" not in table.records[0]
    assert table.records[0]["LSTM"]


@pytest.mark.slow
def test_the_tables_are_written(load, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["optimizers.py", "--quick", "--output", str(tmp_path)])
    load("optimizers").main()
    for name in ("optimizers-tasks-quick", "optimizers-cost-quick"):
        assert (tmp_path / f"{name}.json").exists()
        assert (tmp_path / f"{name}.md").read_text().count("\n") > 10


def test_the_example_resumes_bit_for_bit(monkeypatch, capsys):
    runpy = importlib.import_module("runpy")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--quick"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["Adam"] == lines["FractionalAdam, alpha 1"]
    resumed = lines["stopped and resumed"]
    assert resumed.split(", ")[0] == resumed.split(": ")[1]
