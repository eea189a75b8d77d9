"""The largest batch that fits into memory: tried on a GPU, extrapolated from small batches on a CPU.

The levels of a batch are the bytes in use after each request to the allocator, for memory or to release it. A point is
a number of rows (a batch size) and the levels that were measured for it.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import hpfracc_nn.fractional.torch.device  # noqa: F401  registered on import: it knows what a GPU has left
from hpfracc_nn import errors
from hpfracc_nn.selection import default_manager
from hpfracc_nn.selection.memory import free, limit, limited
from hpfracc_nn.selection.settings import Limit, amount

Levels = NDArray[np.float64]  # bytes in use, one number after each request to the allocator
Point = tuple[int, Levels]  # number of rows, and the levels measured for it

FIRST = 2  # rows of the first batch: in training, batch normalisation refuses a single row
_STEP = 4  # factor from one measured batch to the next, where this fits into memory
_LEAST_STEP = 1.25
_CONVINCING = 128  # rows: measuring ends with a batch at least as large whose peak was predicted well
_TOLERANCE = 0.01  # error of a good prediction, relative to the growth since the batch before


def profiled(run: Callable[[int], None], rows: int) -> Levels:
    """Return the levels of run(rows): the bytes that torch's CPU allocator held after each allocation and release."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run(rows)
    results = record.profiler.kineto_results  # type: ignore[union-attr]
    events = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    return np.cumsum([0, *(event.nbytes() for event in events)], dtype=np.float64)


def foreseen(levels: Callable[[int], Levels], room: int, most: int) -> int:
    """Return the most rows, up to `most`, that fit into `room` bytes; 0 if not even one row fits.

    The memory of a batch is extrapolated from that of small batches. `levels` measures the levels of a number of rows.
    """
    rows = min(FIRST, most)
    points = [(rows, levels(rows))]
    if rows == FIRST < most and 1.5 * points[0][1].max() <= room:  # three rows take at most half as much again
        points.append((rows + 1, levels(rows + 1)))
        _measure_on(points, levels, room, most)

    def fits(rows: int) -> bool:
        found = levels(rows) if rows < points[0][0] else _continued(points, rows)
        return found.max() <= room

    return largest(fits, most, points[0][1].max() <= room)


def _measure_on(points: list[Point], levels: Callable[[int], Levels], room: int, most: int) -> None:
    """Measure larger and larger batches, until the memory of a large one was predicted well or the next might not fit.

    Args:
        points: The points measured so far; new points are appended.
        levels: Called with a number of rows; runs such a batch and returns its levels.
        room: Bytes that a batch may take.
        most: The most rows of a batch.
    """
    while points[-1][0] < most:
        rows, last = points[-1]
        following = _next(points, room, most)
        if following < min(_LEAST_STEP * rows, most):
            return
        expected, measured = _continued(points, following).max(), levels(following)
        points.append((following, measured))
        was_foreseen = abs(measured.max() - expected) <= _TOLERANCE * abs(measured.max() - last.max())
        if following >= _CONVINCING and was_foreseen and _are_alike(points[-3:]):
            return


def _next(points: list[Point], room: int, most: int) -> int:
    """Return how many rows to measure next: four times the last number, or as many as surely fit into `room` bytes.

    "Surely" assumes that memory grows at most four times as steeply beyond the last point as between the last two
    points, which holds for a parabola over four times as many rows. `most` is the most rows of a batch.
    """
    rows = points[-1][0]
    now = _continued(points[-2:], rows)

    def keeps(following: int) -> bool:
        steep = now + _STEP * (_continued(points[-2:], following) - now)
        return max(steep.max(), _continued(points, following).max()) <= room

    low, high = rows, min(_STEP * rows, most) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _are_alike(points: list[Point]) -> bool:
    """Return whether memory was requested and released in the same order at all points, so that only sizes differ."""
    requests = [np.sign(np.diff(levels)) for _, levels in points]
    return all(np.array_equal(request, requests[-1]) for request in requests)


def _continued(points: list[Point], rows: int) -> Levels:
    """Return the levels extrapolated to a number of rows, each by the parabola through its last three measured values.

    No level falls or bends downwards. Each level is extrapolated by itself, because the request with the highest level
    of a small batch, where gradients of weights count most, need not be that of a large batch. If the points' requests
    differ, only the highest level of each point is extrapolated. Newton's interpolation; through two points a line,
    through one point the line from 0.
    """
    points = points[-3:]
    if not _are_alike(points):
        points = [(count, levels.max(keepdims=True)) for count, levels in points]
    if len(points) == 1:
        return points[0][1] * (rows / points[0][0])
    (before, lower), (last, upper) = points[-2:]
    slope = np.maximum((upper - lower) / (last - before), 0)
    bend = np.zeros_like(slope)
    if len(points) > 2:
        first, lowest = points[0]
        bend = np.maximum((slope - (lower - lowest) / (before - first)) / (last - first), 0)
    return upper + slope * (rows - last) + bend * ((rows - last) * (rows - before))


def largest(fits: Callable[[int], bool], most: int, first_fits: bool) -> int:
    """Return the largest number of rows up to `most` that fits, 0 if not even 1 fits, by doubling and bisection.

    Args:
        fits: Called with a number; returns whether this number fits. Numbers below one that fits are taken to fit too.
        most: The largest number that is considered.
        first_fits: Whether the number min(`FIRST`, `most`) fits, which is known already.
    """
    first = min(FIRST, most)
    low, high = (first, first) if first_fits else (0, first)
    while low == high < most:
        high = min(2 * low, most)
        low = high if fits(high) else low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


Sample = Tensor | Sequence[Tensor] | Mapping[str, Tensor]

_OWNER = "suggest_batch_size"


def suggest_batch_size(
    module: nn.Module,
    sample: Sample,
    *,
    device: torch.device | str | None = None,
    memory_limit: Limit | None = None,
    backward: bool = True,
    most: int = 65536,
) -> int:
    """Return the largest batch whose forward, and backward, pass fits into the available memory.

    On a GPU batches are tried, doubling and then bisecting; a batch that runs out of memory is too large, and what
    counts is the peak of what torch's allocator hands out. On a CPU memory is never exhausted: small batches are run
    under `torch.profiler`, which counts every byte that torch's allocator hands out and takes back. The bytes in use
    after each request are extrapolated by a parabola through the last three batches; the highest of these numbers is
    the peak. A batch of at least 128 rows must confirm the extrapolation, or larger batches are measured until one does
    or the limit is near.

    What counts is the batch, tensors saved for the backward pass, temporaries, results and gradients; not parameters
    and cached weights, which exist before, not an optimizer's state, and on a CPU not what other libraries allocate
    for themselves.

    The module runs as it stands, in its mode of training or evaluation. Its buffers, modes and gradients and torch's
    random state are as before afterwards; what the module's `forward` and its hooks change elsewhere is not. On a GPU
    the allocator's peak statistics are reset. A call takes a second or more: call the function once, not in a loop.

    Args:
        module: The module to run. Its result is a tensor, or tuples, lists and dicts of tensors.
        sample: The module's arguments: a tensor, a tuple or list of positional ones, or a dict of named ones, each of
            shape [batch, ...] with the same batch, one or more; the rows are repeated to make larger batches.
        device: Where to run, "cpu" or a CUDA device; None is where the module's parameters are, or else the sample.
        memory_limit: Bytes, a fraction in (0, 1] of what is free, or text such as "4GiB"; None is what the
            process-wide manager's settings say for the device: 0.8 of what is free, unless configured.
        backward: Whether a backward pass follows, from gradients of one in every result that requires a gradient.
        most: The largest batch that is considered.

    Returns:
        A number of rows between 1 and `most`.

    Raises:
        MemoryError: Not even one row fits.
        ValueError: The sample has no rows, or not the same number everywhere; a parameter is uninitialised or on
            another device; nothing has a gradient; or it is not known how much memory is free.
        TypeError: An argument has the wrong type.
        RuntimeError: A profiler runs already (CPU).

    Examples:
        >>> rows = suggest_batch_size(
        ...     nn.Linear(1024, 1024), torch.randn(1, 1024), memory_limit="64MiB"
        ... )
        >>> # a row and its result, in single precision
        >>> 1000 < rows < 64 * 1024**2 / (2 * 1024 * 4)
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{_OWNER}(module of type {type(module).__name__}): needs a torch.nn.Module.")
    leaves = _leaves(sample)
    most = errors.count(_OWNER, "most", most)
    said = None if memory_limit is None else amount("memory_limit", memory_limit)
    place = _place(module, leaves, device)
    if place.type == "cpu" and torch.autograd._profiler_enabled():
        raise RuntimeError(f"{_OWNER}: measures by a profiler, and one is running; call it outside of that.")

    def run(rows: int) -> None:
        with _Trying(rows):
            _run(module, sample, rows, place, backward)

    with _untouched(module, place):
        first = min(FIRST, most)
        if place.type == "cuda":
            tried = _tried(run, place)
            peak = tried(first)  # also fills the caches, before it is measured what is free
            room = _available(said, place)
            found = largest(lambda rows: _keeps(tried(rows), room), most, _keeps(peak, room))
        else:
            run(first)
            room = _available(said, place)
            found = foreseen(lambda rows: profiled(run, rows), room, most)
    if found == 0:
        raise MemoryError(
            f"{_OWNER}: needs room for one row, and it takes more than the {room} bytes there are; "
            "raise memory_limit, free memory, or make the module or its input smaller."
        )
    return found


class _Trying:
    """A context that adds the size of the batch, `rows`, as a note to any exception raised inside."""

    def __init__(self, rows: int):
        self.rows = rows

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            errors.note(error, f"while {_OWNER} tried a batch of {self.rows}")


def _leaves(sample: Any) -> list[Tensor]:
    if isinstance(sample, Tensor):
        leaves: list[Any] = [sample]
    elif isinstance(sample, Mapping):
        leaves = list(sample.values())
    elif isinstance(sample, list | tuple):
        leaves = list(sample)
    else:
        leaves = []
    if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise TypeError(
            f"{_OWNER}(sample): needs a tensor, or a tuple, list or dict of tensors: the module's arguments."
        )
    shapes = [tuple(leaf.shape) for leaf in leaves]
    if not all(shape and shape[0] == shapes[0][0] > 0 for shape in shapes):
        raise ValueError(
            f"{_OWNER}(sample of shapes {', '.join(map(str, shapes))}): needs the batch as axis 0, of one row or more "
            "and the same everywhere; pass what the module takes, with its batch first."
        )
    return leaves


def _place(module: nn.Module, leaves: list[Tensor], device: torch.device | str | None) -> torch.device:
    parameters = list(module.parameters())
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in parameters):
        raise ValueError(f"{_OWNER}(module): has parameters that wait for a first batch; run it on the sample once.")
    homes = {parameter.device for parameter in parameters}
    wanted = torch.device(device) if device is not None else next(iter(homes), leaves[0].device)
    if wanted.type == "cuda" and wanted.index is None:
        wanted = torch.device("cuda", torch.cuda.current_device())
    if homes - {wanted}:
        raise ValueError(
            f"{_OWNER}(device={str(wanted)!r}): needs all parameters there, and they are on "
            f"{', '.join(sorted(map(str, homes)))}; move the module with module.to({str(wanted)!r})."
        )
    if wanted.type not in ("cpu", "cuda"):
        raise ValueError(f"{_OWNER}(device={str(wanted)!r}): needs a device of type cpu or cuda.")
    return wanted


def _available(said: int | float | None, place: torch.device) -> int:
    name = str(place)
    settings = default_manager().settings
    room = limit("torch", name, settings) if said is None else limited(said, free("torch", name))
    if room is None:
        raise ValueError(f"{_OWNER}(memory_limit=None): this system does not say what is free; pass a limit in bytes.")
    return room


@contextmanager
def _untouched(module: nn.Module, place: torch.device) -> Iterator[None]:
    """A context in which a module works on copies of its buffers, so that its state is as before afterwards.

    The context also restores the modes (training or evaluation) of the module's parts, and torch's random state on the
    CPU and the device `place`.
    """
    owners = list(module.modules())
    kept = [(owner, owner.training, dict(owner._buffers)) for owner in owners]
    buffers = {buffer for owner in owners for buffer in owner._buffers.values() if buffer is not None}
    copies: dict[Tensor | None, Tensor | None] = {buffer: buffer.clone() for buffer in buffers}  # keys: by identity
    try:
        for owner, _, held in kept:
            owner._buffers.update({name: copies.get(buffer) for name, buffer in held.items()})
        with torch.random.fork_rng([place.index] if place.type == "cuda" else []):
            yield
    finally:
        for owner, training, held in kept:
            owner.training = training
            owner._buffers.clear()
            owner._buffers.update(held)


def _run(module: nn.Module, sample: Sample, rows: int, place: torch.device, backward: bool) -> None:
    """Run the module on a batch of `rows` rows, made by repeating the sample; all tensors are freed afterwards.

    Args:
        module: The module.
        sample: The module's arguments, as in `suggest_batch_size`.
        rows: The number of rows of the batch.
        place: The device.
        backward: Whether a backward pass follows.
    """

    def repeated(leaf: Tensor) -> Tensor:
        index = torch.arange(rows, device=leaf.device).remainder_(len(leaf))
        return leaf.detach()[index].to(place).requires_grad_(leaf.requires_grad)

    arguments: list[Tensor] = []
    named: dict[str, Tensor] = {}
    if isinstance(sample, Mapping):
        named = {name: repeated(leaf) for name, leaf in sample.items()}
    else:
        arguments = [repeated(leaf) for leaf in ([sample] if isinstance(sample, Tensor) else sample)]
    with torch.set_grad_enabled(backward):
        result = module(*arguments, **named)
        if backward:
            _differentiate(result, [*module.parameters(), *arguments, *named.values()])


def _differentiate(result: Any, sources: list[Tensor]) -> None:
    """Run the backward pass from a result to those of the `sources` that require a gradient, and drop the gradients.

    No `.grad` is written, so that no hook steps an optimizer.
    """
    ends = [tensor for tensor in _tensors(result) if tensor.requires_grad]
    wanted = [source for source in sources if source.requires_grad]
    if not ends or not wanted:
        raise ValueError(
            f"{_OWNER}(backward=True): needs a result with a gradient in a parameter or in the sample; there is none, "
            "pass backward=False."
        )
    torch.autograd.grad(ends, wanted, [torch.ones_like(end) for end in ends], allow_unused=True)


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        yield from _tensors(list(result.values()))
    elif isinstance(result, list | tuple):
        for part in result:
            yield from _tensors(part)


def _tried(run: Callable[[int], None], place: torch.device) -> Callable[[int], int | None]:
    """Return a function from a number of rows to the peak bytes of such a batch on a GPU, or None if memory ran out.

    `run` runs a batch with a number of rows on the device `place`.
    """

    def tried(rows: int) -> int | None:
        before = torch.cuda.memory_allocated(place)
        torch.cuda.reset_peak_memory_stats(place)
        try:
            run(rows)
        except torch.cuda.OutOfMemoryError:
            ran_out = True
        else:
            ran_out = False
        if ran_out:  # not inside `except`: the exception holds the frames, and the frames hold the tensors
            gc.collect()
            torch.cuda.empty_cache()
            return None
        return torch.cuda.max_memory_allocated(place) - before

    return tried


def _keeps(peak: int | None, room: int) -> bool:
    return peak is not None and peak <= room
