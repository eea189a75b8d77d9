"""The commands of `hpfracc-nn`: demo, fit, info, explain, calibrate, report, and wisdom show|export|import|merge|clear.

Output passes through `say`, which escapes control characters: names may come from a file. A command imports the
optional packages that it needs, besides typer and rich, when it runs.
"""

import importlib
import math
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import track

import hpfracc_nn as fnn
from hpfracc_nn.errors import printable
from hpfracc_nn.selection import (
    Kernel,
    Machine,
    Place,
    Rates,
    Settings,
    Wisdom,
    WisdomFile,
    Workload,
    default_manager,
    kernels,
)
from hpfracc_nn.selection.learning.wisdom_file import DEFAULT, OFF, inspect
from hpfracc_nn.selection.memory import host_free, limit
from hpfracc_nn.selection.observe.explain import aligned
from hpfracc_nn.selection.recorder import summary
from hpfracc_nn.selection.settings import from_environment, shown
from hpfracc_nn.selection.workload import UNITS

if TYPE_CHECKING:
    from hpfracc_nn.training.torch.demo import Forecast

PACKAGES = ("numpy", "scipy", "torch", "lightning", "numba", "jax", "cupy")
OP = "toeplitz"
MODULES = {
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

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Fractional calculus for neural networks.")
wisdom = typer.Typer(no_args_is_help=True, help="Show, share or forget what this machine has learnt.")
app.add_typer(wisdom, name="wisdom")


class Dtype(StrEnum):
    """The dtypes that `explain --dtype` takes: those that kernels compute in."""

    float32 = "float32"
    float64 = "float64"


def say(line: str, *, err: bool = False) -> None:
    """Write one line, with control characters escaped, to standard output, or to standard error where `err`."""
    typer.echo(printable(line), err=err)


@contextmanager
def in_one_line(command: str, *errors: type[Exception]) -> Iterator[None]:
    """End the command with status 1 and one line of error where the block raises ValueError, OSError or `errors`.

    Args:
        command: Name of the command, for the message.
        errors: Further classes of exceptions; the message holds the first line of their text.
    """
    try:
        yield
    except BrokenPipeError:  # of `hpfracc-nn info | head`: the reader has left, which is no error
        raise
    except (ValueError, OSError) as error:
        _leave(command, str(error))
    except errors as error:
        _leave(command, str(error).partition("\n")[0] or type(error).__name__)


def _leave(command: str, reason: str) -> NoReturn:
    say(f"hpfracc-nn {command}: {reason}", err=True)
    raise typer.Exit(1) from None


@app.command()
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


@app.command()
def fit(
    file: Annotated[Path, typer.Argument(help="A comma separated file with a header.")],
    model: Annotated[list[str], typer.Option(help="Such as fractional_zener; several are compared.")],
    kind: Annotated[
        str,
        typer.Option(
            help="relaxation, of materials where none is given; creep; oscillation; impedance, that of circuits."
        ),
    ] = "",
    columns: Annotated[
        str, typer.Option(help="Their names: t,G or t,J or omega,G',G'' or f,Z',Z''; else the first.")
    ] = "",
    noise: Annotated[float | None, typer.Option(help="Relative standard deviation of the data, such as 0.03.")] = None,
    hertz: Annotated[bool, typer.Option(help="Frequencies are in Hz, and not angular.")] = False,
    conjugate: Annotated[bool, typer.Option("--conjugate", help="The file holds -Z'', not Z''.")] = False,
    decades: Annotated[float, typer.Option(help="To hide, for the error of extrapolation.")] = 1.0,
    output: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("fit-output"),
) -> None:
    """Fit models of rheology or impedance to your data: estimates with intervals, a comparison, and a figure."""
    with in_one_line("fit", RuntimeError):
        models = importlib.import_module("hpfracc_nn.models")
        chosen = [models.parse(each) for each in model]
        experiment = _experiment(file, kind or _default_kind(chosen), columns, noise, hertz, conjugate)
        _check_sign(file, chosen, experiment)
        output.mkdir(parents=True, exist_ok=True)
        compared = models.compare(track(chosen, "Fitting", console=Console(stderr=True)), experiment, decades=decades)
        for each in compared.fits:
            say(each.fitted.label)
            for line in each.summary().split("\n"):
                say(line)
            say("")
        for line in compared.table().split("\n"):
            say(line)
        path = output / "fit.png"
        (compared.best if len(compared.fits) == 1 else compared).plot().savefig(path, dpi=150)
    say(f"Figure: {path}")


def _default_kind(chosen: Sequence[Any]) -> str:
    return "impedance" if chosen[0].domain == "impedance" else "relaxation"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_sign(file: Path, chosen: Sequence[Any], experiment: Any) -> None:
    """Raise ValueError where the imaginary parts seem to have the wrong sign for one of the `chosen` models."""
    impedance = importlib.import_module("hpfracc_nn.models.impedance")
    if experiment.kind != "impedance":
        return
    for each in chosen:
        if impedance.has_turned_sign(each, experiment):
            raise ValueError(
                f"{file}: needs Z'' < 0 for {each.label}, which has no inductor; most are positive; pass --conjugate "
                "where the file holds -Z'', as many instruments write it, or a model with an inductor."
            )


def _experiment(file: Path, kind: str, columns: str, noise: float | None, hertz: bool, conjugate: bool) -> Any:
    """Return the Experiment in a file's columns: times or frequencies, then one or two columns of data."""
    experiments = importlib.import_module("hpfracc_nn.models.experiments")
    data = importlib.import_module("hpfracc_nn.data")
    of = experiments.KINDS.get(kind)
    if of is None:
        raise ValueError(f"--kind {kind}: needs one of {', '.join(experiments.KINDS)}; pass one of these.")
    if conjugate and not of.is_complex:
        raise ValueError(f"--conjugate: needs a kind with an imaginary part, impedance; got {kind}; leave it out.")
    count, header = 1 + len(of.parts), data.read_header(file)
    if all(_is_number(each) for each in header):
        raise ValueError(
            f"{file}: needs a header, the names of its columns; its first line is {', '.join(header)}; add them."
        )
    names = [each.strip() for each in columns.split(",")] if columns else header[:count]
    if len(names) != count:
        raise ValueError(
            f"--columns: needs {count} names for {kind}, {of.x} and {', '.join(of.parts)}; got {len(names)}; pass them "
            "with commas between."
        )
    x, *values = (data.read_column(file, each) for each in names)
    if hertz and not of.is_in_time:
        x = 2 * math.pi * x
    if of.is_complex:
        values = [values[0] + (-1j if conjugate else 1j) * values[1]]
    return getattr(experiments.Experiment, kind)(x, *values, noise=noise, name=file.stem)


@app.command()
def info() -> None:
    """Say what is installed and usable, the settings, and which kernels there are."""
    with in_one_line("info"):
        for line in _info_lines():
            say(line)


@app.command()
def explain(
    rows: Annotated[int, typer.Option(help="Signals: batch times channels.")] = 32,
    n: Annotated[int, typer.Option(help="Samples of each signal.")] = 1024,
    width: Annotated[int, typer.Option(help="Samples side by side at each time; 1: time is last.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Of the samples.")] = Dtype.float32,
    gradient: Annotated[bool, typer.Option(help="Count the backward pass, too.")] = False,
) -> None:
    """Say which kernel would run on torch tensors of this shape, and why not the others."""
    importlib.import_module(MODULES["torch"])
    with in_one_line("explain"):
        workload = fnn.workload((rows, n, width), framework="torch", dim=1, dtype=dtype.value, needs_gradient=gradient)
        for line in default_manager().explain(workload).split("\n"):
            say(line)


def _series(csv: Path | None, column: str | None) -> tuple[str, Any, Any]:
    """Return the name of a series, its days (None where only their number is known), and its values.

    Args:
        csv: A file; None is the series that comes with the package.
        column: Name of the file's column with the values.
    """
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
    for framework, module in MODULES.items():
        if framework == "numpy" or sys.modules.get(framework) is not None:  # None: someone blocks it
            importlib.import_module(module)
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


DIRECTORY = typer.Option(help="Where wisdom lies; by default HPFRACC_NN_WISDOM, or the user's cache.")


def file_in(directory: Path | None) -> WisdomFile:
    """Return this machine's wisdom file in `directory`, by default that of HPFRACC_NN_WISDOM or the user's cache.

    Raises:
        FileNotFoundError: There is no home directory.
        ValueError: HPFRACC_NN_WISDOM is off, or an environment variable is wrong.
    """
    if directory is not None:
        return WisdomFile(directory)
    said = str(from_environment().wisdom)
    if said == OFF:
        raise ValueError("HPFRACC_NN_WISDOM is off; name a place with --directory.")
    return WisdomFile(None if said == DEFAULT else said)


def rates_table(rates: Mapping[Place, Rates]) -> Iterator[str]:
    """Yield the lines of a table of rates: a header, then one line for each place."""
    lines = [("place", "threads", *(f"{unit} G/s" for unit in UNITS), "memory GB/s", "call us")]
    for place, found in sorted(rates.items()):
        speeds = (f"{found.flops[unit] / 1e9:.3g}" for unit in UNITS)
        where = f"{place.framework}/{place.device}/{place.dtype}"
        lines.append((where, str(place.threads), *speeds, f"{found.bandwidth / 1e9:.3g}", f"{1e6 * found.launch:.3g}"))
    yield from aligned(lines)


DTYPES = ("float32", "float64")
ONLY_ON_CPU = ("numpy",)


@app.command()
def calibrate(
    device: Annotated[
        str, typer.Option(help="Where torch and JAX compute, such as cuda:0; NumPy is on the cpu.")
    ] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="The fastest of so many counts.")] = 5,
    directory: Annotated[Path | None, DIRECTORY] = None,
) -> None:
    """Measure how fast this machine computes, with the threads set now, and keep it for later processes."""
    with in_one_line("calibrate", RuntimeError, AssertionError):  # AssertionError too is how torch refuses a device
        own = file_in(directory)
        rates = _measured(_places(MODULES, device), rounds)
        own.update(Wisdom(rates=rates))
    for line in rates_table(rates):
        say(line)
    say(f"Kept in {own.path}")


def _places(modules: Mapping[str, str], device: str) -> list[tuple[str, str, str]]:
    """Return (framework, device, dtype) for each of `DTYPES` in each installed framework that may use `device`.

    Args:
        modules: Framework -> the module to import for it.
        device: Such as "cpu" or "cuda:0".
    """
    places = []
    for framework, module in modules.items():
        if device != "cpu" and framework in ONLY_ON_CPU:
            continue
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != framework:
                raise
            continue
        places += [(framework, device, dtype) for dtype in DTYPES]
    if not places:
        raise RuntimeError(f"--device {device}: needs torch or JAX, which are not installed.")
    return places


def _measured(places: Sequence[tuple[str, str, str]], rounds: int) -> dict[Place, Rates]:
    """Calibrate each place several times, with a progress bar, and return the best rates by place.

    Args:
        places: (framework, device, dtype) to calibrate, in turn; frameworks that lack the device are left out.
        rounds: How often each one is calibrated.
    """
    found: dict[Place, list[Rates]] = {}
    refusals: dict[str, Exception] = {}
    work = [place for _ in range(rounds) for place in places]
    for place in track(work, "Calibrating", console=Console(stderr=True)):
        machine = Machine()
        try:
            machine.calibrate(*place)
        except (RuntimeError, AssertionError) as error:  # a framework without this device; another one may have it
            refusals[place[0]] = error
            continue
        for where, rates in machine.calibrated().items():
            found.setdefault(where, []).append(rates)
    if refusals and not found:
        raise next(iter(refusals.values()))
    return {where: _fastest(rates) for where, rates in found.items()}


def _fastest(rates: Sequence[Rates]) -> Rates:
    """Return the best of several measurements, rate by rate: a busy machine only ever takes longer."""
    return Rates(
        {unit: max(each.flops[unit] for each in rates) for unit in UNITS},
        bandwidth=max(each.bandwidth for each in rates),
        launch=min(each.launch for each in rates),
    )


REPORT = Path("report.html")


@app.command()
def report(
    file: Annotated[
        Path | None, typer.Argument(help="What History.save wrote; by default what this machine has learnt.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to: a name that ends in .html, or in .png.")] = REPORT,
    directory: Annotated[Path | None, DIRECTORY] = None,
) -> None:
    """Draw which kernel runs at which size, how right the predictions were, who ran when, and what failed."""
    analytics = importlib.import_module("hpfracc_nn.analytics")
    with in_one_line("report"):
        if file is None:
            history = analytics.History.of_wisdom(file_in(directory).read())
        else:
            history = analytics.History.load(file)
        path = analytics.report(history, output)
    say(f"Report: {path}")
    if history.is_empty:
        where = file_in(directory).path if file is None else file
        say(f"It is empty: {where} has no call yet.")


@wisdom.command()
def show(
    file: Annotated[Path | None, typer.Argument(help="A wisdom file; this machine's own by default.")] = None,
    directory: Annotated[Path | None, DIRECTORY] = None,
) -> None:
    """Show what was learnt: the machine, its rates, and the times of each kernel."""
    with in_one_line("wisdom show"):
        path = file_in(directory).path if file is None else file
        if file is None and not path.exists():
            say(f"Nothing is known yet in {path}")
            say("Measure how fast it computes:  hpfracc-nn calibrate")
            return
        for line in _shown(path, *inspect(path)):
            say(line)


@wisdom.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where to.")],
    directory: Annotated[Path | None, DIRECTORY] = None,
) -> None:
    """Copy what this machine has learnt to a file."""
    with in_one_line("wisdom export"):
        wisdom = file_in(directory).export(file)
    say(f"{_counted(wisdom)} to {file}", err=not file.is_file())  # which may be /dev/stdout


@wisdom.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A wisdom file of any machine.")],
    directory: Annotated[Path | None, DIRECTORY] = None,
) -> None:
    """Start from times of kernels that another machine measured; those measured here replace them, one by one."""
    with in_one_line("wisdom import"):
        own = file_in(directory)
        wisdom = own.load(file, trust="prior")
        own.update(wisdom)
    say(f"{_counted(wisdom)} from {file}, as a prior")


@wisdom.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Wisdom files of machines like this one.")],
    directory: Annotated[Path | None, DIRECTORY] = None,
) -> None:
    """Merge what machines with the same hardware and versions have learnt; each file once: samples are counted."""
    with in_one_line("wisdom merge"):
        own = file_in(directory)
        wisdom = Wisdom()
        for file in files:
            wisdom = wisdom.merged(own.load(file))
        own.update(wisdom)
    say(f"{_counted(wisdom)} from {len(files)} file{'s' * (len(files) > 1)}")


@wisdom.command()
def clear(
    everything: Annotated[bool, typer.Option("--all", help="Also of other machines and versions.")] = False,
    directory: Annotated[Path | None, DIRECTORY] = None,
) -> None:
    """Forget what this machine has learnt."""
    with in_one_line("wisdom clear"):
        removed = file_in(directory).clear(others=everything)
    for path in removed:
        say(f"Removed {path}")
    if not removed:
        say("Nothing was known.")


def _counted(wisdom: Wisdom) -> str:
    counts = (len(wisdom.timings), "timing"), (len(wisdom.rates), "calibration")
    return " and ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts)


def _shown(path: Path, wisdom: Wisdom, machine: Mapping[str, Any]) -> Iterator[str]:
    yield f"File      {path}"
    yield f"Machine   {_machine(machine)}"
    yield f"Packages  {', '.join(f'{name} {version}' for name, version in machine.get('packages', {}).items())}"
    if wisdom.rates:
        yield ""
        yield from rates_table(wisdom.rates)
    if wisdom.timings:
        yield ""
        lines = [("workload", "kernel", "forward ms", "backward ms", "samples", "last", "trust")]
        for _, timing in sorted(wisdom.timings.items()):
            last = time.strftime("%Y-%m-%d %H:%M", time.localtime(timing.time))
            times = _ms(timing.forward), _ms(timing.backward)
            lines.append((timing.key, timing.arm, *times, str(timing.samples), last, timing.trust))
        yield from aligned(lines)


def _machine(machine: Mapping[str, Any]) -> str:
    caches = (f"{name} {size}" for name, size in machine.get("caches", {}).items())
    facts: Iterable[Any] = (
        machine.get("cpu"),
        f"{machine.get('cores')} cores",
        *caches,
        *machine.get("gpus", ()),
        f"{machine.get('system')} {machine.get('architecture')}",
        f"Python {machine.get('python')}",
    )
    return ", ".join(str(fact) for fact in facts if fact)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.4g}"
