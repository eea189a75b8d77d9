"""Other libraries, where they are installed: SciPy, differint, pycaputo; and the plain NumPy loop.

They compute other schemes, and differint's Grunwald-Letnikov values wrap round (it transforms without padding): this is
a comparison of what a user waits for, weights included where the library makes them on every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from baselines import column, dot_loop, scipy_convolution
from calls import planner, public
from extent import Cells
from results import Group, Table
from timing import Call, interleaved, machine

from hpfracc_nn import Caputo, Definition, GrunwaldLetnikov, derivative
from hpfracc_nn.fractional.namespace import NUMPY

LENGTHS = (1_000, 10_000, 100_000)
LOOP_LENGTHS = (1_000, 10_000, 100_000)
SLOW = 0.5  # seconds: what takes longer is timed once
MOST_DIFFERINT_RL = 1_000  # it builds an n x n matrix in a Python loop
MOST_PYCAPUTO = 10_000  # O(n**2)


def empty_peers(cells: Cells) -> Table:
    """Return the table of other libraries."""
    return Table(
        "peers",
        f"One signal, order 0.5: other libraries against the public call, one thread, {machine()}. Milliseconds; "
        f"medians of interleaved rounds, what takes more than {SLOW:g} s is timed once.",
        {
            "peer": ("peer", ""),
            "n": ("n", ""),
            "dtype": ("dtype", ""),
            "peer_ms": ("peer", ".4g"),
            "numpy_ms": ("call on NumPy", ".4g"),
            "torch_ms": ("call on torch", ".4g"),
            "numpy_ratio": ("peer / NumPy", ".3g"),
            "torch_ratio": ("peer / torch", ".3g"),
            "rounds": ("rounds", ""),
        },
    )


def fill_peers(table: Table, allocator: str, cells: Cells) -> None:
    """One signal: other libraries against the public call on a NumPy array and on a tensor."""
    for n in LENGTHS[:2] if cells.is_quick else LENGTHS:
        for dtype in (np.float32, np.float64):
            x = _samples(n, dtype)
            for name, (definition, call) in peer_calls(x).items():
                table.add(**compare(name, call, x, definition, 3 if cells.is_quick else 15))
    for package in ("differint", "pycaputo"):
        if find_spec(package) is None:
            table.note(f"{package} is not installed; pip install {package}")


def empty_loop(cells: Cells) -> Table:
    """Return the table of the NumPy loop."""
    return Table(
        "loop",
        "Caputo l1 of order 0.5, float64, one signal, at the sizes of HPFRACC's published table: the public call "
        f"against the loop y[k] = dot(w[:k + 1], d[k::-1]) in NumPy, O(n^2); one thread, {machine()}. Seconds; a loop "
        f"that takes more than {SLOW:g} s is timed once.",
        {
            "n": ("n", ""),
            "loop_s": ("NumPy loop", ".4g"),
            "numpy_s": ("call on NumPy", ".3g"),
            "torch_s": ("call on torch", ".3g"),
            "numpy_ratio": ("loop / NumPy", ".0f"),
            "torch_ratio": ("loop / torch", ".0f"),
            "rounds": ("rounds", ""),
        },
    )


def fill_loop(table: Table, allocator: str, cells: Cells) -> None:
    """The sizes of HPFRACC's published table (Caputo) against the NumPy loop."""
    for n in LOOP_LENGTHS[:1] if cells.is_quick else LOOP_LENGTHS:
        x = _samples(n, np.float64)
        record = compare("loop", partial(caputo_loop, l1_weights(n), x), x, Caputo(0.5, "l1"), 5)
        seconds = {key.replace("_ms", "_s"): 1e-3 * record[key] for key in ("peer_ms", "numpy_ms", "torch_ms")}
        ratios = {key: record[key] for key in ("numpy_ratio", "torch_ratio", "rounds")}
        table.add(n=n, loop_s=seconds.pop("peer_s"), **seconds, **ratios)


PEERS = Group(empty_peers, fill_peers, allocators=("warm",))
LOOP = Group(empty_loop, fill_loop, allocators=("warm",))


def compare(name: str, call: Call, x: np.ndarray, definition: Definition, rounds: int) -> dict[str, Any]:
    """Return the record of one peer on x [n]."""
    ours: dict[str, Call] = {
        "numpy": partial(derivative, x, definition, manager=planner()),
        "torch": public(torch.from_numpy(x), definition, planner()),
    }
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    if seconds > SLOW:
        times = interleaved(ours, rounds)
        peer, done = seconds, 1
    else:
        times = interleaved({"peer": call, **ours}, rounds)
        peer, done = times["peer"], times.rounds
    return {
        "peer": name,
        "n": x.size,
        "dtype": x.dtype.name,
        "peer_ms": 1e3 * peer,
        "numpy_ms": 1e3 * times["numpy"],
        "torch_ms": 1e3 * times["torch"],
        "numpy_ratio": peer / times["numpy"],
        "torch_ratio": peer / times["torch"],
        "rounds": done,
    }


def peer_calls(x: np.ndarray) -> dict[str, tuple[Definition, Call]]:
    """Return the peers that take x [n], each with the definition of ours that is nearest."""
    grunwald, n = GrunwaldLetnikov(0.5), x.size
    found: dict[str, tuple[Definition, Call]] = {
        "scipy.signal.fftconvolve": (grunwald, scipy_convolution(column(grunwald, n), x))
    }
    if x.dtype != np.float64:
        return found  # the others compute in float64 whatever they are given
    if find_spec("differint") is not None:
        differint = import_module("differint.differint")
        found["differint GL"] = (grunwald, partial(differint.GL, 0.5, x, 0.0, n - 1.0, n))
        if n <= MOST_DIFFERINT_RL:
            found["differint RL"] = (grunwald, partial(differint.RL, 0.5, x, 0.0, n - 1.0, n))
    if find_spec("pycaputo") is not None and n <= MOST_PYCAPUTO:
        found["pycaputo L1"] = (Caputo(0.5, "l1"), _pycaputo(x))
    return found


def l1_weights(n: int) -> np.ndarray:
    """Return the weights of the l1 scheme on first differences, float64 [n]."""
    return np.ravel(Caputo(0.5, "l1").stencil(n, 1.0, NUMPY, differences=1).weights)


def caputo_loop(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return Caputo's derivative of x [n] by the loop, its weights made before."""
    return dot_loop(weights, np.diff(x, prepend=x[0]))


def _pycaputo(x: np.ndarray) -> Callable[[], np.ndarray]:
    differentiation, grid = import_module("pycaputo.differentiation"), import_module("pycaputo.grid")
    method = import_module("pycaputo.differentiation.caputo").L1(0.5)
    points = grid.make_uniform_points(x.size, a=0.0, b=x.size - 1.0)
    return lambda: differentiation.diff(method, x, points)


def _samples(n: int, dtype: type) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n).astype(dtype)
