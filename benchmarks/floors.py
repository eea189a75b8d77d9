"""The floors that the product must reach: one thread, medians of at least 15 interleaved rounds, warm and cold.

Beside each cell stands what a torch copy of the same bytes takes (x read, y written; twice that with the gradient):
nothing is much faster than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from baselines import FFTLayer, autograd_fft, cached_ffts, column, conv1d, copied, scipy_convolution
from calls import both_ways, definitions, learned, planner, product_alone, public, signals
from cells import shape_name
from extent import Cells
from results import Group, Table, microseconds
from timing import FLOOR_ROUNDS, Call, interleaved, machine
from torch import Tensor

from hpfracc_nn import FractionalLayer, GrunwaldLetnikov, derivative


@dataclass(frozen=True)
class Floor:
    """One run: calls to time, which of them are ours, and what they must reach.

    Args:
        what: Of the baseline and the direction, for the table.
        shape: Of the data, for the table.
        calls: By name: baselines begin with "base", "copy" is the bandwidth's floor, the others are ours.
        least: For each of ours the ratio base / ours that is asked, (cold, warm).
    """

    what: str
    shape: str
    calls: dict[str, Call]
    least: dict[str, tuple[float, float]]


FORWARD_ROWS, FORWARD_LENGTHS = (256, 1024), (512, 1024, 4096, 16384)
FORWARD_LEAST = {0.5: (2.5, 1.8), 1.5: (2.0, 1.5)}
ONE_ROW_LEAST = {4096: 3.0, 16384: 7.0, 65536: 15.0}
MIDDLE = [(64, 256, 16), (16, 1024, 64), (4, 4096, 128), (1, 65536, 16)]
LEARNED_LEAST = {(1024, 1024): 2.0, (16, 65536): 2.0, (256, 256): 2.0, (64, 4096): 1.5}
LAYER_SHAPE = (64, 16, 1024)
SCIPY_SAMPLES = 100_000

COLUMNS = {
    "what": ("against", ""),
    "shape": ("shape", ""),
    "allocator": ("allocator", ""),
    "ours": ("ours", ""),
    "base_us": ("baseline us", ".0f"),
    "ours_us": ("ours us", ".0f"),
    "copy_us": ("copy us", ".1f"),
    "copies": ("ours / copy", ".2f"),
    "ratio": ("baseline / ours", ".2f"),
    "floor": ("floor", ".1f"),
    "verdict": ("", ""),
}


def empty(cells: Cells) -> Table:
    """Return the table of floors."""
    return Table(
        "floors",
        f"Floors, one thread, {machine()}. Medians of {_rounds(cells)} interleaved rounds. Product: the difference "
        "pass and the planned kernel; call: the whole public call; copy: torch reading and writing as many bytes.",
        COLUMNS,
    )


def fill(table: Table, allocator: str, cells: Cells) -> None:
    """Measure every floor and say how many are reached."""
    before = len(table.records)
    for make in quick_makers() if cells.is_quick else makers():
        measure(table, make(), allocator, _rounds(cells))
    verdicts = [record["verdict"] for record in table.records[before:]]
    table.note(f"{verdicts.count('pass')} of {len(verdicts)} floors reached with the {allocator} allocator.")


def measure(table: Table, floor: Floor, allocator: str, rounds: int) -> None:
    """Time one floor's calls in one run and add a record for each of ours."""
    times = interleaved(floor.calls, rounds)
    base, copy = times.best("base"), times["copy"]
    for name, (cold, warm) in floor.least.items():
        ratio, least = base / times[name], warm if allocator == "warm" else cold
        table.add(
            what=floor.what,
            shape=floor.shape,
            allocator=allocator,
            ours=name,
            base_us=microseconds(base),
            ours_us=microseconds(times[name]),
            copy_us=microseconds(copy),
            copies=times[name] / copy,
            ratio=ratio,
            floor=least,
            verdict="pass" if ratio >= least else "FAIL",
            rounds=times.rounds,
        )


def makers() -> Iterator[Callable[[], Floor]]:
    """Yield a maker for each run, so that one run's data are gone before the next is made."""
    for rows in FORWARD_ROWS:
        for n in FORWARD_LENGTHS:
            yield partial(forward_floor, rows, n)
    for n, least in ONE_ROW_LEAST.items():
        yield partial(one_row_floor, n, least)
    for shape in MIDDLE:
        yield partial(middle_floor, shape)
    for (rows, n), least in LEARNED_LEAST.items():
        yield partial(learned_floor, rows, n, least)
    yield conv1d_floor
    yield scipy_floor
    for learn_alpha in (False, True):
        yield partial(layer_floor, LAYER_SHAPE, learn_alpha)


def quick_makers() -> list[Callable[[], Floor]]:
    """Return the makers of a few small runs."""
    small = [partial(forward_floor, 256, 512), partial(one_row_floor, 4096, 3.0), partial(middle_floor, MIDDLE[0])]
    return [*small, partial(learned_floor, 256, 256, 2.0), conv1d_floor]


def forward_floor(rows: int, n: int) -> Floor:
    """Both definitions and both orders, product and call, against the FFT with a cached spectrum."""
    x = signals(rows, n)
    calls, least = _fft_and_copy(x), {}
    for alpha, asked in FORWARD_LEAST.items():
        for name, definition in definitions(alpha).items():
            manager = planner()
            for kind, make in (("product", product_alone), ("call", public)):
                ours = f"{kind} {name} {alpha:g}"
                calls[ours] = make(x, definition, manager)
                least[ours] = asked
    return Floor("FFT, cached spectrum", shape_name(x), calls, least)


def one_row_floor(n: int, ratio: float) -> Floor:
    """One signal, the whole call."""
    x = signals(1, n)
    calls, ours = _fft_and_copy(x), _public_calls(x)
    return Floor("FFT, cached spectrum", shape_name(x), calls | ours, dict.fromkeys(ours, (ratio, ratio)))


def middle_floor(shape: tuple[int, int, int]) -> Floor:
    """Time on axis 1."""
    x = signals(*shape)
    calls, ours = _fft_and_copy(x, dim=1), _public_calls(x, dim=1)
    return Floor("FFT along axis 1", shape_name(x), calls | ours, dict.fromkeys(ours, (2.0, 2.0)))


def learned_floor(rows: int, n: int, ratio: float) -> Floor:
    """Forward and backward in x and alpha, against the FFT whose weights are in the graph."""
    x = signals(rows, n).requires_grad_()
    g = torch.ones(rows, n)
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    calls: dict[str, Call] = {"base": both_ways(lambda: autograd_fft(alpha, x), [x, alpha], g), "copy": _copies(x, g)}
    ours = {}
    for name, definition in definitions(0.5).items():
        call = public(x, learned(definition, alpha), planner())
        ours[f"call {name}"] = both_ways(call, [x, alpha], g)
    what = "autograd FFT, gradient in x and alpha"
    return Floor(what, shape_name(x), calls | ours, dict.fromkeys(ours, (ratio, ratio)))


def conv1d_floor() -> Floor:
    """Torch's direct convolution."""
    x = signals(16, 1024)
    calls = {"base": conv1d(column(GrunwaldLetnikov(0.5), 1024), x), "copy": copied(x)}
    ours = _public_calls(x)
    return Floor("conv1d", shape_name(x), calls | ours, dict.fromkeys(ours, (100.0, 100.0)))


def scipy_floor() -> Floor:
    """One long float64 signal against SciPy's FFT convolution, as a NumPy array and as a tensor."""
    x = signals(SCIPY_SAMPLES, dtype=torch.float64)
    definition = GrunwaldLetnikov(0.5)
    calls: dict[str, Call] = {
        "base": scipy_convolution(column(definition, x.numel()), x.numpy()),
        "copy": copied(x),
        "call on a NumPy array": partial(derivative, x.numpy(), definition, manager=planner()),
        "call on a tensor": public(x, definition, planner()),
    }
    least = {name: (5.0, 5.0) for name in calls if name.startswith("call")}
    return Floor("scipy.signal.fftconvolve, float64", shape_name(x), calls, least)


def layer_floor(shape: tuple[int, ...], learn_alpha: bool) -> Floor:
    """A layer's forward and backward against the same layer by torch.fft."""
    x, g = signals(*shape).requires_grad_(), torch.ones(shape)
    layers: dict[str, torch.nn.Module] = {"base": FFTLayer(0.5, shape[-1], learn_alpha)}
    for name in ("grunwald_letnikov", "caputo"):
        layers[f"layer {name}"] = FractionalLayer(0.5, name, learn_alpha=learn_alpha, manager=planner())
    calls: dict[str, Call] = {"copy": _copies(x, g)}
    for name, layer in layers.items():
        calls[name] = both_ways(partial(layer, x), [x, *layer.parameters()], g)
    what = f"layer by torch.fft, gradient in x{' and alpha' if learn_alpha else ''}"
    return Floor(what, shape_name(x), calls, {name: (2.0, 2.0) for name in layers if name != "base"})


FLOORS = Group(empty, fill)


def _fft_and_copy(x: Tensor, dim: int = -1) -> dict[str, Call]:
    weights = column(GrunwaldLetnikov(0.5), x.shape[dim])
    ffts = {f"base {name}": call for name, call in cached_ffts(weights, x, dim).items()}
    return {**ffts, "copy": copied(x)}


def _public_calls(x: Tensor, dim: int = -1) -> dict[str, Call]:
    return {f"call {name}": public(x, chosen, planner(), dim) for name, chosen in definitions(0.5).items()}


def _copies(x: Tensor, g: Tensor) -> Call:
    data = x.detach()
    return lambda: (data.clone(), g.clone())


def _rounds(cells: Cells) -> int:
    return 3 if cells.is_quick else FLOOR_ROUNDS
