"""The task of classes of signals: its generators, its rows, and the example beside it."""

import importlib
import pathlib
import runpy
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="a source distribution has no benchmarks")


@pytest.fixture
def task(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "task_roughness", raising=False)
    yield importlib.import_module("task_roughness")
    sys.modules.pop("task_roughness", None)


def test_a_class_is_the_shape_that_its_formula_has(task):
    rng = np.random.default_rng(0)
    signals, classes = task.cylinder_bell_funnel(3000, rng)
    np.testing.assert_allclose(
        (signals.mean(1), signals.std(1)), np.broadcast_to([[0.0], [1.0]], (2, 3000)), atol=1e-12
    )
    early, late = signals[:, 32:56].mean(1), signals[:, 72:96].mean(1)
    rise = [np.mean(late[classes == label] - early[classes == label]) for label in range(3)]
    # Of the bell the end is higher, of the funnel the beginning; the cylinder lies between them.
    assert rise[1] > rise[0] + 0.5 > rise[2] + 1
    charts, kinds = task.synthetic_control(600, rng)
    slopes = np.array([np.polyfit(np.arange(60), charts[kinds == kind].mean(0), 1)[0] for kind in range(6)])
    assert (abs(slopes[:2]) < 0.01).all()
    assert (slopes[[2, 4]] > 0.03).all()
    assert (slopes[[3, 5]] < -0.03).all()


def test_noise_has_the_indices_of_its_classes(task):
    signals, classes = task.noise_classes(1000, np.random.default_rng(0))
    products = np.array([np.mean(signals[classes == c, 1:] * signals[classes == c, :-1]) for c in range(5)])
    np.testing.assert_allclose(products, [2 ** (2 * h - 1) - 1 for h in task.INDICES], atol=0.03)  # 200 x 127 products


@pytest.mark.slow
def test_the_rows_have_what_the_table_shows_and_features_tell_classes_apart(task):
    rows = task.rows(quick=True)
    keys = {"task", "model", "parameters", "metric", "values", "mean", "spread", "bar", "higher_is_better"}
    assert all(set(row) - {"note"} == keys for row in rows)
    found = {row["model"]: row for row in rows}
    assert found[task.STATISTICS]["parameters"] == 65
    assert found[task.STATISTICS]["bar"] == 0.45
    assert len(found[task.STATISTICS]["values"]) == 3
    assert found["nearest index to Whittle's estimate"]["mean"] > 0.6  # 0.2 by chance


@pytest.mark.slow
def test_the_example_finds_the_hurst_indices(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    picture = tmp_path / "roughness.png"
    monkeypatch.setattr(sys, "argv", ["roughness.py", "--quick", "--output", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "roughness.py"), run_name="__main__")
    assert picture.stat().st_size > 1000
    assert "Hurst index 0.8: 0.8" in capsys.readouterr().out
