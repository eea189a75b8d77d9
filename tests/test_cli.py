"""The command line: what it prints, and what it says when something is missing."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("rich")
pytest.importorskip("typer")

from typer import testing

from hpfracc_nn import cli, commands, data
from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.selection import manager as managers
from hpfracc_nn.selection.registry import find_spec

ROOT = pathlib.Path(__file__).parents[1]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def run(*arguments):
    return testing.CliRunner().invoke(cli.app(), [str(argument) for argument in arguments])


def process(source, *arguments):
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def needs_demo():
    for package in ("arch", "lightning.pytorch", "matplotlib"):
        pytest.importorskip(package)


def test_the_module_is_the_command(tmp_path):
    arguments = ["demo", "--csv", "prices.csv", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "hpfracc_nn", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == run(*arguments).stderr
    assert done.stderr.startswith("hpfracc-nn demo: --csv and --column: needs both")


def test_help_names_the_commands():
    result = run("--help")
    assert result.exit_code == 0
    for command in ("demo", "info", "explain"):
        assert command in result.output


@pytest.fixture
def forgetful():
    """What is installed is looked for once in a process: a test that hides a package leaves no answer behind."""
    find_spec.cache_clear()
    yield
    find_spec.cache_clear()


@pytest.mark.usefixtures("forgetful")
def test_info_names_versions_settings_and_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "jax", None)
    result = run("info")
    assert result.exit_code == 0, result.output
    assert f"numpy       {np.__version__}\n" in result.output
    assert "jax         not installed\n" in result.output
    assert "force_backend=None\n" in result.output


@pytest.mark.parametrize("command", ["info", pytest.param("explain", marks=needs_torch)])
def test_a_bad_variable_is_told_in_one_line(monkeypatch, command):
    monkeypatch.setattr(managers, "_process_wide", None)
    monkeypatch.setenv("HPFRACC_NN_SELECTION", "fast")
    result = run(command)
    assert result.exit_code == 1
    said = f"hpfracc-nn {command}: HPFRACC_NN_SELECTION='fast': needs one of off, prior, frozen, learn.\n"
    assert result.stderr == said
    assert isinstance(result.exception, SystemExit)


def test_info_shows_settings_environment_and_memory(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("JAX_PLATFORM_NAME", raising=False)
    monkeypatch.setenv("HPFRACC_DISABLE_NUMBA", "1")
    settings = Settings(memory_limit="1GiB", objective={"memory": 0.5, "latency": 1}, offload=["cuda:0", "cuda:1"])
    monkeypatch.setattr(commands, "default_manager", lambda: BackendManager(settings))
    lines = run("info").output.splitlines()
    for line in (
        "memory_limit=1GiB",
        "objective=1 latency, 0.5 memory",
        "offload=cuda:0, cuda:1",
        "mode=learn",
        "JAX_PLATFORMS = cpu",
        "JAX_PLATFORM_NAME is unset",
        "HPFRACC_DISABLE_NUMBA = 1",
    ):
        assert line in lines
    (memory,) = (line for line in lines if line.startswith("memory of the host: "))
    assert memory.endswith("GiB for one call")


@needs_torch
def test_info_says_why_a_kernel_is_left_out(monkeypatch):
    manager = BackendManager(Settings(disabled=frozenset({"torch/dense"}), force_algorithm="dense"))
    monkeypatch.setattr(commands, "default_manager", lambda: manager)
    lines = [line.split(maxsplit=1) for line in run("info").output.splitlines() if line[:2] == "  "]
    said = {line[0]: line[1] for line in lines}
    assert said["torch/dense"] == "disabled"
    assert said["torch/fft"] == "left out: force_algorithm='dense'"


@needs_torch
def test_explain_names_every_kernel():
    result = run("explain", "--rows", 2, "--n", 300, "--width", 3, "--dtype", "float64", "--gradient")
    assert result.exit_code == 0, result.output
    first = result.output.splitlines()[0]
    assert first.startswith("toeplitz on torch/cpu/float64: rows=2 n=300 width=3 channels=1 exponentials=")
    assert "exponentials=0" not in first
    assert first.endswith("gradient in the input")
    for kernel in ("torch/dense", "torch/fft", "torch/chunked_scan", "numba/recurrence"):
        assert kernel in result.output
    for column in ("predicted ms", "bounds ms", "samples", "compile s", "workspace", "saves", "front", "reason"):
        assert column in result.output.splitlines()[1]
    assert sum(line.startswith("*") for line in result.output.splitlines()) == 1


@needs_torch
def test_explain_refuses_a_negative_length():
    result = run("explain", "--n", -1)
    assert result.exit_code == 1
    assert result.stderr == "hpfracc-nn explain: Workload(n=-1): needs n >= 0.\n"


def test_the_demo_prints_errors_order_and_table(tmp_path):
    needs_demo()
    result = run("demo", "--quick", "--output", tmp_path / "new" / "folder")
    assert result.exit_code == 0, result.output
    for word in ("ARFIMA(1, d, 0)", "random walk", "AR(5)", "AR(22)", "HAR", "Order alpha", "standard error"):
        assert word in result.output
    assert "Which kernel ran" in result.output
    assert result.output.splitlines()[-2].startswith("Next: ")
    assert (tmp_path / "new" / "folder" / "forecast.png").is_file()


def test_the_demo_takes_a_series_of_the_users_own(tmp_path):
    needs_demo()
    file = tmp_path / "own.csv"
    series = data.arfima(200, 0.3, np.random.default_rng(0))
    file.write_text("\n".join(["day,flow", *(f"{day},{value}" for day, value in enumerate(series))]))
    result = run("demo", "--csv", file, "--column", "flow", "--output", tmp_path, "--alpha", 0.3, "--no-learn")
    assert result.exit_code == 0, result.output
    assert "Fitting ARFIMA(1, d, 0) to flow of own.csv\n" in result.output
    assert "over the last 60 of 200 samples" in result.output
    assert "Order alpha 0.3000, phi" in result.output


FAULTS = [
    (["--csv", "none.csv", "--column", "a"], "no file 'none.csv'; pass the path of a comma separated file"),
    (["--csv", "none.csv"], "--csv and --column: needs both or neither; pass the file and the name of its"),
    (["--csv", "{file}", "--column", "b"], "{file}: no column 'b'; pass one of the columns there are: 'a'."),
    (["--csv", "{file}", "--column", "a"], "forecast(series): needs at least 100 samples on one axis"),
    (["--output", "{file}"], "{file}"),
]


@pytest.mark.parametrize(("arguments", "message"), FAULTS)
def test_what_is_wrong_is_said_in_one_line(tmp_path, arguments, message):
    needs_demo()
    file = tmp_path / "short.csv"
    file.write_text("a\n1\n2\n3\n")
    arguments = [argument.format(file=file) for argument in arguments]
    if "--output" not in arguments:
        arguments += ["--output", str(tmp_path / "output")]
    result = run("demo", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("hpfracc-nn demo: ")
    assert message.format(file=file) in result.stderr
    assert result.stderr.count("\n") == 1


BLOCKED = "import sys; sys.modules[sys.argv.pop(1)] = None; from hpfracc_nn.cli import main; main()"


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("typer", "needs the package 'typer'; pip install 'hpfracc-nn[cli]'.\n"),
        ("rich", "needs the package 'rich'; pip install 'hpfracc-nn[cli]'.\n"),
        (
            "arch",
            "sp500_volatility(): needs the package 'arch' for the prices; pip install 'hpfracc-nn[data]', "
            "or use a series of your own.\n",
        ),
    ],
)
@pytest.mark.slow
def test_a_missing_package_is_named_in_one_line(tmp_path, package, message):
    done = process(BLOCKED, package, "demo", "--quick", "--output", tmp_path)
    assert done.returncode == 1
    assert done.stderr == message


def test_the_module_loads_no_optional_package():
    packages = ("typer", "rich", "torch", "lightning", "matplotlib", "pandas", "arch")
    done = process(f"import sys, hpfracc_nn.cli; print([name for name in {packages} if name in sys.modules])")
    assert done.stdout == "[]\n"


def test_models_are_fitted_to_a_file(tmp_path):
    pytest.importorskip("matplotlib")
    from hpfracc_nn.models.rheology import FractionalMaxwell

    t = np.geomspace(0.01, 1000, 40)
    modulus = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2).relaxation(t)
    modulus = modulus * np.exp(0.03 * np.random.default_rng(0).standard_normal(40))
    file = tmp_path / "relaxation.csv"
    file.write_text("t, G\n" + "".join(f"{a}, {b}\n" for a, b in zip(t, modulus, strict=True)))
    chosen = ["--model", "fractional_maxwell", "--model", "maxwell", "--output", tmp_path]
    result = run("fit", file, *chosen)
    assert result.exit_code == 0, result.output
    assert "FractionalMaxwell\n" in result.output
    assert "last decade" in result.output
    assert (tmp_path / "fit.png").is_file()
    omega = np.geomspace(0.1, 100, 20)
    spectrum = tmp_path / "cell.csv"
    lines = [f"{w / (2 * np.pi)}, {1 + 0 * w}, {-1 / (0.1 * w)}\n" for w in omega]
    spectrum.write_text("f, Re, Im\n" + "".join(lines))
    circuit = ["--hertz", "--model", "Resistor - Capacitor", "--output", tmp_path]
    result = run("fit", spectrum, *circuit)
    assert result.exit_code == 0, result.output
    assert "\nC           0.1 " in result.output


def test_the_kind_that_is_taken_by_default_is_told():
    assert "of materials where none is given" in " ".join(run("fit", "--help").output.replace("\u2502", " ").split())


def test_a_file_without_a_header_loses_no_line_in_silence(tmp_path):
    file = tmp_path / "bare.csv"
    file.write_text("0.1, 3\n1, 2\n2, 1.5\n3, 1\n")
    result = run("fit", file, "--model", "maxwell", "--output", tmp_path)
    assert result.exit_code == 1
    assert "needs a header, the names of its columns; its first line is 0.1, 3" in result.stderr


def test_the_turned_sign_of_an_instrument_is_found_and_turned_back(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "cell.csv"
    omega = np.geomspace(0.1, 100, 20)
    file.write_text("w, Re, -Im\n" + "".join(f"{w}, 1, {10 / w}\n" for w in omega))
    chosen = ["fit", file, "--model", "Resistor - Capacitor", "--output", tmp_path]
    result = run(*chosen)
    assert result.exit_code == 1
    assert "pass --conjugate" in result.stderr
    result = run(*chosen, "--conjugate")
    assert result.exit_code == 0, result.output
    assert "\nC           0.1 " in result.output


FIT_REFUSALS = [
    (["--model", "maxwell", "--conjugate"], "--conjugate: needs a kind with an imaginary part, impedance"),
    (["--model", "foo"], "needs the name of a model"),
    (["--model", "maxwell", "--columns", "t"], "--columns: needs 2 names for relaxation"),
    (["--model", "maxwell", "--columns", "t,H"], "no column 'H'"),
    (["--model", "maxwell", "--kind", "flow"], "--kind flow: needs one of relaxation, creep, oscillation, impedance"),
    (["--model", "resistor"], "--columns: needs 3 names for impedance"),
    (["--model", "maxwell"], "leave it out, or pass deviation="),
]


@pytest.mark.parametrize(("arguments", "text"), FIT_REFUSALS)
def test_a_fit_that_cannot_be_is_told_in_one_line(tmp_path, arguments, text):
    file = tmp_path / "relaxation.csv"
    file.write_text("t, G\n1, 2\n2, 0\n3, 1\n")
    result = run("fit", file, *arguments, "--output", tmp_path)
    assert result.exit_code == 1
    assert text in result.stderr
    assert result.stderr.count("\n") == 1 or "Fitting" in result.stderr
