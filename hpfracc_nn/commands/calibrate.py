"""The command `hpfracc-nn calibrate`: measure how fast this machine computes, once for all later processes."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from hpfracc_nn.commands.terminal import in_one_line, say
from hpfracc_nn.commands.wisdom import directory_option, file_in, rates_table
from hpfracc_nn.selection import Machine, Place, Rates, Wisdom
from hpfracc_nn.selection.workload import UNITS

DTYPES = ("float32", "float64")
ONLY_ON_CPU = ("numpy",)


def command(typer: Any, rooms: Mapping[str, str]) -> Callable[..., None]:
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
