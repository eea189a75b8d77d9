"""Plots of a history: which kernel runs where, how right the predictions were, which ran when, and what went wrong.

Each function returns a matplotlib figure of its own, without pyplot: no state, no window; `figure.savefig(path)` writes
the figure. A kernel has the same colour in all figures of one history; in those of a history with other kernels it may
have another colour.

A use is a plan with the number of its calls (`history.py`), a look the number of calls of each kernel up to a time, and
an event a choice, a change of speed or a failure (`selection/recorder.py`). A cell is a pair of rows and length n.
"""

import importlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpfracc_nn import lazy
from hpfracc_nn.analytics.history import History, Use
from hpfracc_nn.analytics.tables import first_predictions, last_predictions, measured_seconds
from hpfracc_nn.errors import printable
from hpfracc_nn.selection import Workload
from hpfracc_nn.selection.recorder import Choice, Defeat, Drift, Event, Failure, Look, Quarantined

SIZE = (8.0, 4.8)  # inches
MOST_CELLS = 14  # along an axis of the map; beyond it sizes are rounded down to powers of two
MOST_LANES = 12  # kernels of a timeline
NOTHING = "nothing yet"

Cell = tuple[int, int]  # rows, n


def choice_map(history: History, *, op: str | None = None, size: tuple[float, float] = SIZE) -> Any:
    """Return a map of which kernel runs at which number of rows and length, with its speed-up over the second best.

    The map shows one operation on one device in one dtype, with or without gradient: those that were called most. Where
    several workloads fall on one cell, the cell shows the one that was called most.

    Args:
        history: What a manager remembers.
        op: The operation; None takes the one that was called most.
        size: Width and height in inches.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> choice_map(History.of(manager)).savefig("choice_map.png")
    """
    figure, axes = _figure(size)
    uses = _alike([each for each in history.uses if op is None or each.workload.op == op])
    if not uses:
        return _empty(figure, axes, "Kernel by size")
    cells = _cells(uses)
    rows, lengths = sorted({row for row, _ in cells}), sorted({n for _, n in cells})
    kernels = sorted({use.kernel for use in cells.values()})
    colours = _colours(history)
    numbers = [[kernels.index(cells[r, n].kernel) if (r, n) in cells else -1 for n in lengths] for r in rows]
    shade = importlib.import_module("matplotlib.colors").ListedColormap(["white", *(colours[each] for each in kernels)])
    axes.imshow(numbers, cmap=shade, vmin=-1.5, vmax=len(kernels) - 0.5, origin="lower", aspect="auto")
    for (row, n), use in cells.items():
        said = "only one" if use.second_best is None else _times(use.second_best, use.seconds)
        axes.text(lengths.index(n), rows.index(row), said, ha="center", va="center", fontsize=8, color="white")
    axes.set_xticks(range(len(lengths)), [str(n) for n in lengths], rotation=45 if len(lengths) > 8 else 0)
    axes.set_yticks(range(len(rows)), [str(row) for row in rows])
    axes.set(xlabel="length n (samples)", ylabel="rows (signals a call)")
    axes.set_title(f"Kernel by size: {_title(uses[0].workload)}\nwith its predicted speed-up over the second best")
    _legend(figure, kernels, colours)
    return figure


def predicted_against_measured(history: History, *, size: tuple[float, float] = SIZE) -> Any:
    """Return predicted against measured seconds of each kernel at each workload: at the first choice, and now.

    Times are of a forward pass and the backward pass that belongs to it, 20 % quantiles of the calls that were timed.

    Args:
        history: What a manager remembers.
        size: Width and height in inches.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> predicted_against_measured(History.of(manager)).savefig(
        ...     "predicted_against_measured.png"
        ... )
    """
    figure, axes = _figure(size)
    measured, colours = measured_seconds(history), _colours(history)
    shown = []
    for predicted, marker, label in (
        (first_predictions(history), "o", "at the first choice"),
        (last_predictions(history), "*", "now"),
    ):
        both = [(place, 1e3 * measured[place], 1e3 * predicted[place]) for place in measured if place in predicted]
        points = [each for each in both if all(0 < number < math.inf for number in each[1:])]  # have logarithms
        shown += points
        for (_, kernel), x, y in points:
            face = "none" if marker == "o" else colours[kernel]
            axes.plot(x, y, marker, color=colours[kernel], markerfacecolor=face, markersize=7)
        axes.plot([], [], marker, color="0.3", markerfacecolor="none" if marker == "o" else "0.3", label=label)
    if not shown:
        return _empty(figure, axes, "Predicted against measured time")
    ends = [min(min(x, y) for _, x, y in shown) / 1.5, max(max(x, y) for _, x, y in shown) * 1.5]
    low, high = ([by * end for end in ends] for by in (0.5, 2))
    axes.fill_between(ends, low, high, color="0.92", label="within a factor 2")
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        _label_plainly(axis)
    axes.set(xlabel="measured (ms a call, forward and backward)", ylabel="predicted (ms a call)")
    axes.set_title("Predicted against measured time")
    axes.legend(loc="upper left", fontsize=8)
    _legend(figure, sorted({kernel for (_, kernel), _, _ in shown}), colours)
    return figure


def shares_over_time(
    history: History,
    *,
    steps: Sequence[float] | None = None,
    unit: str = "s since the first call",
    size: tuple[float, float] = SIZE,
) -> Any:
    """Return a plot over time of each kernel's part of all calls.

    Args:
        history: What a manager remembers; its `looks` are shown.
        steps: Position of each look on the time axis; None takes the time of the look.
        unit: Label of the time axis.
        size: Width and height in inches.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: There is not one step for each look.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> shares_over_time(History.of(manager)).savefig("shares_over_time.png")
    """
    looks = history.looks
    if steps is not None and len(steps) != len(looks):
        raise ValueError(
            f"shares_over_time(steps=...): needs one step for each of {len(looks)} looks; there are {len(steps)}."
        )
    figure, axes = _figure(size)
    places = [look.time - looks[0].time for look in looks] if steps is None else list(steps)
    shares = _shares(looks)
    if not shares:
        return _empty(figure, axes, "Part of the calls by kernel")
    kernels, colours = sorted(shares), _colours(history)
    axes.stackplot(
        _stairs(places), [_doubled(shares[each]) for each in kernels], colors=[colours[each] for each in kernels]
    )
    last = places[-1] if places[-1] != places[0] else places[0] + 1e-3  # a clock may stand still
    axes.set(xlim=(places[0], last), ylim=(0, 100), xlabel=unit, ylabel="part of the calls (%)")
    axes.set_title("Part of the calls by kernel")
    _legend(figure, kernels, colours)
    return figure


def timeline(history: History, *, size: tuple[float, float] = SIZE) -> Any:
    """Return a plot of what happened when: choices, trials, changes of speed, failures, and kernels in quarantine.

    There is room for 12 kernels: those that failed come first, then those that took over or were replaced, then those
    with the most events. The label of the axis says how many kernels are left out.

    Args:
        history: What a manager remembers.
        size: Width and height in inches.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> timeline(History.of(manager)).savefig("timeline.png")
    """
    figure, axes = _figure(size)
    if not history.events:
        return _empty(figure, axes, "Choices, changes and failures")
    start, last = history.events[0].time, max(history.events[-1].time, *(look.time for look in history.looks), 0)
    lanes, left_out = _lanes(history.events)
    said: set[str] = set()
    for event in history.events:
        if event.kernel in lanes:
            lane, at = lanes.index(event.kernel), event.time - start
            marker, colour, label = _mark(event)
            name = None if label in said else label
            said.add(label)
            if isinstance(event, Quarantined):
                until = min(at + event.seconds, max(last - start, at + 1e-3))
                axes.plot(
                    [at, until], [lane, lane], color=colour, linewidth=8, label=name, solid_capstyle="butt", zorder=1
                )
            else:
                axes.plot(at, lane, marker, color=colour, markersize=8, alpha=0.8, label=name, zorder=2)
    axes.set_yticks(range(len(lanes)), map(_label, lanes))
    axes.set(ylim=(-0.6, len(lanes) - 0.4), xlabel=f"s since the first choice{_left_out(left_out)}")
    axes.margins(x=0.03)
    axes.set_title("Choices, changes and failures")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    figures = lazy.required("matplotlib.figure", "hpfracc_nn.analytics: plots need")
    made = figures.Figure(figsize=size, layout="constrained")
    return made, made.subplots()


def _label_plainly(axis: Any) -> None:
    """Label a logarithmic axis by 0.1, 0.2, 0.5, 1, ..."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _empty(figure: Any, axes: Any, title: str) -> Any:
    axes.set_axis_off()
    axes.set_title(title)
    axes.text(0.5, 0.5, NOTHING, ha="center", va="center", color="0.5", transform=axes.transAxes)
    return figure


def _colours(history: History) -> dict[str, Any]:
    """Return a colour for each kernel that is named anywhere in the history."""
    known = {name for look in history.looks for _, name in look.uses}
    for named in (history.uses, history.measurements, history.events):
        known |= {each.kernel for each in named}
    shades = importlib.import_module("matplotlib").colormaps["tab10"].colors
    return {name: shades[number % len(shades)] for number, name in enumerate(sorted(known))}


def _legend(figure: Any, kernels: Iterable[str], colours: Mapping[str, Any]) -> None:
    patch = importlib.import_module("matplotlib.patches").Patch
    handles = [patch(color=colours[kernel], label=_label(kernel)) for kernel in kernels]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)


def _alike(uses: Sequence[Use]) -> list[Use]:
    """Return the uses of one operation on one device in one dtype, with or without gradient: those called most."""
    groups: dict[tuple, list[Use]] = {}
    for each in uses:
        work = each.workload
        groups.setdefault((work.op, work.place, work.needs_gradient, work.learns_weights), []).append(each)
    return max(groups.values(), key=lambda group: (sum(each.calls for each in group), len(group)), default=[])


def _cells(uses: Sequence[Use]) -> dict[Cell, Use]:
    """Return by size, (rows, n), the use that was called most.

    Where a map would have too many sizes, they are rounded down to powers of two.
    """
    sizes = [(each.workload.rows, each.workload.n) for each in uses]
    is_coarse = [len({size[axis] for size in sizes}) > MOST_CELLS for axis in (0, 1)]
    found: dict[Cell, Use] = {}
    for (row, n), use in zip(sizes, uses, strict=True):
        cell = _rounded_down(row, is_coarse[0]), _rounded_down(n, is_coarse[1])
        if cell not in found or use.calls > found[cell].calls:
            found[cell] = use
    return found


def _rounded_down(size: int, is_coarse: bool) -> int:
    return 1 << (size.bit_length() - 1) if is_coarse and size else size


def _times(second: float, best: float) -> str:
    return f"{_rounded(second / best)}x" if 0 < best < math.inf else ""


def _rounded(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def _title(workload: Workload) -> str:
    gradient = "with gradient" if workload.needs_gradient or workload.learns_weights else "no gradient"
    return _label(f"{workload}, {gradient}")


def _label(text: str) -> str:
    """Return text escaped for matplotlib: `$` would begin a formula, and a label that begins with `_` is left out."""
    return printable(text).replace("$", r"\$").replace("_", " _", text.startswith("_"))


def _shares(looks: Sequence[Look]) -> dict[str, list[float]]:
    """Return each kernel's percentages of the calls between each look and the next, by the kernel's name.

    Where there were no calls, the percentage is that of the interval before. A kernel without calls is left out.
    """
    kernels = {name for look in looks for _, name in look.uses}
    found: dict[str, list[float]] = {name: [] for name in kernels}
    for before, after in itertools.pairwise(looks):
        new = {name: _count(after, name) - _count(before, name) for name in kernels}
        whole = sum(new.values())
        for name, shares in found.items():
            shares.append(100 * new[name] / whole if whole > 0 else (shares[-1] if shares else 0.0))
    return {name: shares for name, shares in found.items() if any(shares)}


def _count(look: Look, kernel: str) -> int:
    return sum(count for (_, name), count in look.uses.items() if name == kernel)


def _stairs(places: Sequence[float]) -> list[float]:
    """Return both ends of each interval between neighbours, as the x coordinates of a plot in steps."""
    return [end for pair in itertools.pairwise(places) for end in pair]


def _doubled(shares: Sequence[float]) -> list[float]:
    return [share for share in shares for _ in (0, 1)]


def _lanes(events: Sequence[Event]) -> tuple[list[str], int]:
    """Return the kernels that the plot has a line for, in reverse order of names, and how many others there are.

    Kernels that failed are preferred, then those between which the choice changed, then those with most events.
    """
    counts = Counter(each.kernel for each in events)
    failed = {each.kernel for each in events if isinstance(each, Failure | Quarantined | Defeat)}
    switches = [each for each in events if isinstance(each, Choice) and each.previous not in ("", each.kernel)]
    switched = {name for each in switches if each.reason != "explore" for name in (each.kernel, each.previous)}
    ranked = sorted(counts, key=lambda name: (name not in failed, name not in switched, -counts[name], name))
    return sorted(ranked[:MOST_LANES], reverse=True), len(ranked[MOST_LANES:])


def _left_out(count: int) -> str:
    return f"; {count} more kernel{'s' if count > 1 else ''} left out" if count else ""


def _mark(event: Event) -> tuple[str, str, str]:
    """Return matplotlib's marker and colour, and the text of the legend, for an event."""
    match event:
        case Choice(reason="explore"):
            return ".", "0.5", "tried"
        case Choice(previous=""):
            return "o", "tab:blue", "first choice"
        case Choice(previous=previous, kernel=kernel) if previous == kernel:
            return "1", "0.5", "took long to choose"
        case Choice(reason="fallback"):
            return "D", "tab:orange", "stands in"
        case Choice():
            return "s", "tab:green", "takes over"
        case Drift(factor=factor):
            return ("^", "tab:purple", "slower") if factor > 1 else ("v", "tab:cyan", "faster")
        case Failure():
            return "x", "tab:red", "failed"
        case Quarantined():
            return "", "0.8", "left alone"
    return "X", "black", "every kernel failed"
