"""Commands of `hpfracc-nn`: calibrate, report, and wisdom show|export|import|merge|clear.

Importing this module loads no optional package: each command is made from typer, which its caller has loaded. What the
commands print passes through `say`: names out of a file may hold what a terminal acts upon.
"""

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

from hpfracc_nn.errors import printable
from hpfracc_nn.selection import Machine, Place, Rates, Wisdom, WisdomFile
from hpfracc_nn.selection.learning.wisdom_file import DEFAULT, OFF, inspect
from hpfracc_nn.selection.settings import from_environment
from hpfracc_nn.selection.workload import UNITS


def say(line: str, *, err: bool = False) -> None:
    """Write one line to standard output, or to standard error."""
    importlib.import_module("typer").echo(printable(line), err=err)


@contextmanager
def in_one_line(command: str, *errors: type[Exception]) -> Iterator[None]:
    """Leave with status 1 where an argument, a file or the environment is wrong, and say so in one line.

    Args:
        command: What was called.
        errors: What else says so, besides ValueError and OSError, in the first line of its text.
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
    raise importlib.import_module("typer").Exit(1) from None


NEXT = "Measure how fast it computes:  hpfracc-nn calibrate"


def wisdom(typer: Any) -> Any:
    """Return the group of commands, to be added to an application as `wisdom`."""
    made = typer.Typer(no_args_is_help=True, help="Show, share or forget what this machine has learnt.")
    for name, make in (
        ("show", _show),
        ("export", _export),
        ("import", _import),
        ("merge", _merge),
        ("clear", _clear),
    ):
        made.command(name)(make(typer))
    return made


def directory_option(typer: Any) -> Any:
    """Return the option that all of these commands have."""
    return typer.Option(help="Where wisdom lies; by default HPFRACC_NN_WISDOM, or the user's cache.")


def file_in(directory: Path | None) -> WisdomFile:
    """Return this machine's file there, or where its processes keep it.

    Raises:
        FileNotFoundError: There is no home directory.
        ValueError: They keep none, or an environment variable is wrong.
    """
    if directory is not None:
        return WisdomFile(directory)
    said = str(from_environment().wisdom)
    if said == OFF:
        raise ValueError("HPFRACC_NN_WISDOM is off; name a place with --directory.")
    return WisdomFile(None if said == DEFAULT else said)


def rates_table(rates: Mapping[Place, Rates]) -> Iterator[str]:
    """Yield a line for each place, under a header."""
    lines = [("place", "threads", *(f"{unit} G/s" for unit in UNITS), "memory GB/s", "call us")]
    for place, found in sorted(rates.items()):
        speeds = (f"{found.flops[unit] / 1e9:.3g}" for unit in UNITS)
        where = f"{place.framework}/{place.device}/{place.dtype}"
        lines.append((where, str(place.threads), *speeds, f"{found.bandwidth / 1e9:.3g}", f"{1e6 * found.launch:.3g}"))
    yield from _aligned(lines)


def _show(typer: Any) -> Callable[..., None]:
    def show(
        file: Annotated[Path | None, typer.Argument(help="A wisdom file; this machine's own by default.")] = None,
        directory: Annotated[Path | None, directory_option(typer)] = None,
    ) -> None:
        """Show what was learnt: the machine, its rates, and the times of each kernel."""
        with in_one_line("wisdom show"):
            path = file_in(directory).path if file is None else file
            if file is None and not path.exists():
                say(f"Nothing is known yet in {path}")
                say(NEXT)
                return
            for line in _shown(path, *inspect(path)):
                say(line)

    return show


def _export(typer: Any) -> Callable[..., None]:
    def export(
        file: Annotated[Path, typer.Argument(help="Where to.")],
        directory: Annotated[Path | None, directory_option(typer)] = None,
    ) -> None:
        """Copy what this machine has learnt to a file."""
        with in_one_line("wisdom export"):
            wisdom = file_in(directory).export(file)
        say(f"{_counted(wisdom)} to {file}", err=not file.is_file())  # which may be /dev/stdout

    return export


def _import(typer: Any) -> Callable[..., None]:
    def import_(
        file: Annotated[Path, typer.Argument(help="A wisdom file of any machine.")],
        directory: Annotated[Path | None, directory_option(typer)] = None,
    ) -> None:
        """Take another machine's times to start from; they give way to the first that are measured here."""
        with in_one_line("wisdom import"):
            own = file_in(directory)
            wisdom = own.load(file, trust="prior")
            own.update(wisdom)
        say(f"{_counted(wisdom)} from {file}, as a prior")

    return import_


def _merge(typer: Any) -> Callable[..., None]:
    def merge(
        files: Annotated[list[Path], typer.Argument(help="Wisdom files of machines like this one.")],
        directory: Annotated[Path | None, directory_option(typer)] = None,
    ) -> None:
        """Merge what machines with the same hardware and versions have learnt; each file once: samples are counted."""
        with in_one_line("wisdom merge"):
            own = file_in(directory)
            wisdom = Wisdom()
            for file in files:
                wisdom = wisdom.merged(own.load(file))
            own.update(wisdom)
        say(f"{_counted(wisdom)} from {len(files)} file{'s' * (len(files) > 1)}")

    return merge


def _clear(typer: Any) -> Callable[..., None]:
    def clear(
        everything: Annotated[bool, typer.Option("--all", help="Also of other machines and versions.")] = False,
        directory: Annotated[Path | None, directory_option(typer)] = None,
    ) -> None:
        """Forget what this machine has learnt."""
        with in_one_line("wisdom clear"):
            removed = file_in(directory).clear(others=everything)
        for path in removed:
            say(f"Removed {path}")
        if not removed:
            say("Nothing was known.")

    return clear


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
        yield from _aligned(lines)


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


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


DTYPES = ("float32", "float64")
ONLY_ON_CPU = ("numpy",)


def calibrate(typer: Any, rooms: Mapping[str, str]) -> Callable[..., None]:
    """Return the command; `rooms` names for each framework the module that registers its probe."""

    def calibrate(
        device: Annotated[
            str, typer.Option(help="Where torch and JAX compute, such as cuda:0; NumPy is on the cpu.")
        ] = "cpu",
        rounds: Annotated[int, typer.Option(min=1, help="The fastest of so many counts.")] = 5,
        directory: Annotated[Path | None, directory_option(typer)] = None,
    ) -> None:
        """Measure how fast this machine computes, with the threads set now, and keep it for later processes."""
        with in_one_line("calibrate", RuntimeError, AssertionError):  # AssertionError too is how torch refuses a device
            own = file_in(directory)
            rates = _measured(_places(rooms, device), rounds)
            own.update(Wisdom(rates=rates))
        for line in rates_table(rates):
            say(line)
        say(f"Kept in {own.path}")

    return calibrate


def _places(rooms: Mapping[str, str], device: str) -> list[tuple[str, str, str]]:
    """Framework, device and dtype of all that is installed here."""
    places = []
    for framework, room in rooms.items():
        if device != "cpu" and framework in ONLY_ON_CPU:
            continue
        try:
            importlib.import_module(room)
        except ModuleNotFoundError as error:
            if error.name != framework:
                raise
            continue
        places += [(framework, device, dtype) for dtype in DTYPES]
    if not places:
        raise RuntimeError(f"--device {device}: needs torch or JAX, which are not installed.")
    return places


def _measured(places: Sequence[tuple[str, str, str]], rounds: int) -> dict[Place, Rates]:
    """Measure the places in turn, `rounds` times, with a progress bar; frameworks without the device are left out."""
    found: dict[Place, list[Rates]] = {}
    refusals: dict[str, Exception] = {}
    for place in _with_progress([place for _ in range(rounds) for place in places]):
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


def _with_progress(work: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    console = importlib.import_module("rich.console").Console(stderr=True)
    yield from importlib.import_module("rich.progress").track(work, "Calibrating", console=console)


def _fastest(rates: Sequence[Rates]) -> Rates:
    """The best of each: a busy machine only ever takes longer."""
    return Rates(
        {unit: max(each.flops[unit] for each in rates) for unit in UNITS},
        bandwidth=max(each.bandwidth for each in rates),
        launch=min(each.launch for each in rates),
    )


REPORT = Path("report.html")


def report(typer: Any) -> Callable[..., None]:
    """Return the command."""

    def report(
        file: Annotated[
            Path | None, typer.Argument(help="What History.save wrote; by default what this machine has learnt.")
        ] = None,
        output: Annotated[Path, typer.Option(help="Where to: a name that ends in .html, or in .png.")] = REPORT,
        directory: Annotated[Path | None, directory_option(typer)] = None,
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

    return report
