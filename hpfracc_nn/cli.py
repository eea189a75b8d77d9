"""The command `hpfracc-nn`: demo, info, explain, and those of `commands`: calibrate, report, wisdom.

Importing this module loads no optional package. A command loads what it needs; `main` names what is missing.
"""

import importlib
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import hpfracc_nn as fnn
from hpfracc_nn import commands
from hpfracc_nn.commands import in_one_line, say
from hpfracc_nn.selection import Kernel, Settings, Workload, default_manager, kernels
from hpfracc_nn.selection.memory import host_free, limit
from hpfracc_nn.selection.observe.counts import summary
from hpfracc_nn.selection.settings import shown

if TYPE_CHECKING:
    from hpfracc_nn.training.torch.demo import Forecast

EXTRAS = {
    "arch": "data",
    "lightning": "lightning",
    "matplotlib": "plot",
    "pandas": "data",
    "rich": "cli",
    "torch": "torch",
    "typer": "cli",
}
PACKAGES = ("numpy", "scipy", "torch", "lightning", "numba", "jax", "cupy")
OP = "toeplitz"
ROOMS = {
    "numpy": "hpfracc_nn.fractional.numpy.operator",
    "torch": "hpfracc_nn.fractional.torch.operator",
    "jax": "hpfracc_nn.fractional.jax.operator",
}
FIGURE = "forecast.png"
TYPICAL = (32, 1024)  # rows and n that `info` asks the kernels about

NEXT = (
    "Next: your own series:  hpfracc-nn demo --csv FILE --column NAME",
    "      which kernel runs, and why not the others:  hpfracc-nn explain --rows 256 --n 4096",
)


class Dtype(StrEnum):
    """The dtypes that kernels compute in."""

    float32 = "float32"
    float64 = "float64"


def main() -> None:
    """Run the command line; a missing package is named in one line, and the exit status is then 1."""
    try:
        app()()
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name not in EXTRAS:
            raise
        says_how = "pip install" in str(error)
        sys.exit(str(error) if says_how else f"needs the package {name!r}; pip install 'hpfracc-nn[{EXTRAS[name]}]'.")


def app() -> Any:
    """Return the typer application.

    Raises:
        ModuleNotFoundError: typer or rich is not installed.
    """
    typer = importlib.import_module("typer")
    importlib.import_module("rich")
    made = typer.Typer(add_completion=False, no_args_is_help=True, help="Fractional calculus for neural networks.")
    for make in (_demo, _info, _explain):
        made.command()(make(typer))
    made.command()(commands.calibrate(typer, ROOMS))
    made.command()(commands.report(typer))
    made.add_typer(commands.wisdom(typer), name="wisdom")
    return made


def _demo(typer: Any) -> Callable[..., None]:
    def demo(
        csv: Annotated[Path | None, typer.Option(help="A comma separated file with a header.")] = None,
        column: Annotated[str | None, typer.Option(help="Its column to forecast, used as it is.")] = None,
        alpha: Annotated[float | None, typer.Option(help="Order to start from, or to stay at.")] = None,
        learn: Annotated[bool, typer.Option(help="Whether the order is learned.")] = True,
        seed: Annotated[int, typer.Option(help="Seed of the values that learning starts from.")] = 0,
        quick: Annotated[bool, typer.Option(help="Use the last 600 samples only.")] = False,
        output: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("demo-output"),
    ) -> None:
        """Forecast the volatility of the S&P 500, or a series of your own, with a learned order."""
        with in_one_line("demo"):
            output.mkdir(parents=True, exist_ok=True)
            name, days, series = _series(csv, column)
            module = importlib.import_module("hpfracc_nn.training.torch.demo")
            say(f"Fitting {module.MODEL} to {name}")
            result = module.forecast(series, alpha=alpha, learn=learn, seed=seed, quick=quick)
        for line in _forecast_lines(result):
            say(line)
        typer.echo(_rendered(result))  # its cells are escaped, and it may have colours
        say(f"Figure: {_drawn(result, name, days, output)}")
        for line in NEXT:
            say(line)

    return demo


def _info(typer: Any) -> Callable[..., None]:
    def info() -> None:
        """Say what is installed and usable, the settings, and which kernels there are."""
        with in_one_line("info"):
            for line in _info_lines():
                say(line)

    return info


def _explain(typer: Any) -> Callable[..., None]:
    def explain(
        rows: Annotated[int, typer.Option(help="Signals: batch times channels.")] = 32,
        n: Annotated[int, typer.Option(help="Samples of each signal.")] = 1024,
        width: Annotated[int, typer.Option(help="Samples side by side at each time; 1: time is last.")] = 1,
        dtype: Annotated[Dtype, typer.Option(help="Of the samples.")] = Dtype.float32,
        gradient: Annotated[bool, typer.Option(help="Count the backward pass, too.")] = False,
    ) -> None:
        """Say which kernel would run on torch tensors of this shape, and why not the others."""
        importlib.import_module(ROOMS["torch"])
        with in_one_line("explain"):
            workload = fnn.workload(
                (rows, n, width), framework="torch", dim=1, dtype=dtype.value, needs_gradient=gradient
            )
            for line in default_manager().explain(workload).split("\n"):
                say(line)

    return explain


def _series(csv: Path | None, column: str | None) -> tuple[str, Any, Any]:
    """Return what the series is, its days (None where only their number is known), and its values."""
    data = importlib.import_module("hpfracc_nn.data")
    if csv is None and column is None:
        return "the log Parkinson range of the S&P 500", *data.sp500_volatility()
    if csv is None or column is None:
        raise ValueError("--csv and --column: needs both or neither; pass the file and the name of its column.")
    return f"{column} of {csv.name}", None, data.read_column(csv, column)


def _forecast_lines(result: "Forecast") -> Iterator[str]:
    count = len(result.series) - result.start
    yield f"Mean squared error one step ahead over the last {count} of {len(result.series)} samples, held out"
    yield "(1 is the variance of the samples before them; all are fitted on those):"
    for name, value in result.errors.items():
        yield f"  {name:<16} {value:.4f}"
    error = "" if result.standard_error is None else f" +- {result.standard_error:.3f} (standard error)"
    yield f"Order alpha {result.alpha:.4f}{error}, phi {result.phi:.4f}, level {result.mu:.4g}"


def _rendered(result: "Forecast") -> str:
    table = importlib.import_module("hpfracc_nn.training.table")
    return str(table.render(result.rows, "rich"))


def _drawn(result: "Forecast", name: str, days: Any, output: Path) -> Path:
    module = importlib.import_module("hpfracc_nn.training.torch.demo")
    count = len(result.series) - result.start
    path = output / FIGURE
    module.draw_forecast(
        path,
        range(result.start, len(result.series)) if days is None else days[-count:],
        result.series[result.start :],
        result.forecasts,
        result.weights,
        alpha=result.alpha,
        title=f"{name}, mean squared error {result.error:.3f}",
    )
    return path


def _info_lines() -> Iterator[str]:
    try:
        yield f"hpfracc-nn  {metadata.version('hpfracc-nn')}"
    except metadata.PackageNotFoundError:
        yield "hpfracc-nn  not installed: this is its source"
    yield f"python      {platform.python_version()}"
    for package in PACKAGES:
        yield f"{package:<10}  {_status(package)}"
    settings = default_manager().settings
    for name, value in asdict(settings).items():
        yield f"{name}={_setting(value)}"
    for variable, said in shown().items():
        yield f"{variable} {'is unset' if said is None else '= ' + said}"
    yield f"memory of the host: {_size(host_free())} free, {_size(limit('numpy', 'cpu', settings))} for one call"
    for framework, room in ROOMS.items():
        if framework == "numpy" or sys.modules.get(framework) is not None:  # None: someone blocks it
            importlib.import_module(room)
            yield from _kernel_lines(framework, settings)


def _setting(value: Any) -> str:
    if isinstance(value, frozenset):
        return ", ".join(sorted(value))
    if isinstance(value, tuple):
        return ", ".join(each if isinstance(each, str) else f"{each[1]:g} {each[0]}" for each in value)
    return str(value)


def _size(count: int | None) -> str:
    return "an unknown number of bytes" if count is None else f"{count / 2**30:.1f} GiB"


def _kernel_lines(framework: str, settings: Settings) -> Iterator[str]:
    workload = fnn.workload(TYPICAL, framework=framework)
    yield f"{framework} on cpu, threads {workload.threads}; kernels for {summary(workload)} {workload.dtype}:"
    for kernel in kernels(OP, framework):
        yield f"  {kernel.name:<20} {_refusal(kernel, workload, settings) or 'usable'}"


def _refusal(kernel: Kernel, workload: Workload, settings: Settings) -> str | None:
    settings = settings.of(kernel.op)
    if settings.disables(kernel.backend, kernel.algorithm):
        return "disabled"
    if not settings.admits(kernel.backend, kernel.algorithm):
        return f"left out: {settings.forced}"
    refusal: str | None = kernel.ask("refuses", workload)
    return refusal


def _status(package: str) -> str:
    """Return the version of `package`, or why it cannot be used."""
    try:
        return str(importlib.import_module(package).__version__)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == package else f"does not load: {error}"
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"does not load: {error}"
