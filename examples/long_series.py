"""The heat that flows into a wall, from its surface temperature: 100 million samples from a file, in blocks.

A wall that is thick beside the depth that heat reaches takes in e d**(1/2) T / dt**(1/2) watts per square metre, where
T is how much warmer its surface is than at the start and e its effusivity. The half-derivative remembers the whole
past. A day and four hours at 1000 samples a second are more than one call should hold, so the file is mapped into
memory and `run` goes through it block by block; the state between the blocks takes some thousand bytes.

Run:  python examples/long_series.py [--quick]
"""

import argparse
import math
import pathlib
import tempfile
import time

import numpy as np
import torch

from hpfracc_nn import FractionalLayer

DT = 1e-3  # seconds
EFFUSIVITY = 1500.0  # of concrete, W s**(1/2) / (m**2 K)
PERIODS = {86400.0: 8.0, 600.0: 0.5}  # of the temperature, in seconds: amplitude in kelvin
BLOCK = 2**20


def temperature(t):
    """Kelvin above the start, where there is none of it."""
    return sum(size * np.sin(2 * math.pi * t / period) for period, size in PERIODS.items())


def flux(t):
    """The heat flux where the temperature has always swung so: each sine an eighth of its period earlier."""
    omegas = {2 * math.pi / period: size for period, size in PERIODS.items()}
    return EFFUSIVITY * sum(size * w**0.5 * np.sin(w * t + math.pi / 4) for w, size in omegas.items())


def anonymous():
    """Megabytes of this process that lie in no file, or nan where Linux does not say."""
    status = pathlib.Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon")), math.nan)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 million samples, compared with 1 million in one call")
    arguments = parser.parse_args()
    n, compared = (2 * 10**6, 10**6) if arguments.quick else (10**8, 10**7)
    layer = FractionalLayer(0.5, "riemann_liouville", dt=DT)
    with tempfile.TemporaryDirectory() as folder:
        samples, found = (
            np.memmap(pathlib.Path(folder, name), np.float32, "w+", shape=n) for name in ("temperature", "flux")
        )
        for begin in range(0, n, BLOCK):
            samples[begin : begin + BLOCK] = temperature(DT * np.arange(begin, min(begin + BLOCK, n)))
        before, most, start = anonymous(), 0.0, time.perf_counter()
        state = layer.initial_state((), horizon=n)
        for block, out in zip(
            torch.from_numpy(samples).split(BLOCK), torch.from_numpy(found).split(BLOCK), strict=True
        ):
            y, state = layer.run(block, state)
            torch.mul(y, EFFUSIVITY, out=out)
            most = max(most, anonymous())
        took, size = time.perf_counter() - start, np.abs(found).max()
        print(f"{n:,} samples in blocks of {BLOCK:,}: {took:.1f} s, at most {most - before:.0f} MB")
        print(f"the state between two blocks: {state.nbytes} bytes")
        whole = EFFUSIVITY * layer(torch.from_numpy(samples[:compared])).numpy()
        off = np.abs(found[:compared] - whole).max() / size
        print(f"the first {compared:,} samples beside one call: {off:.1e} of the largest flux")
        if not arguments.quick:
            last = slice(n - BLOCK, n)
            apart = np.abs(found[last] - flux(DT * np.arange(n)[last])).max() / size
            print(f"the end, and a wall whose surface has always swung so: {apart:.1%} apart; the start is remembered")
        assert off < 2e-6
        assert math.isnan(most) or most - before < 300
        del samples, found


if __name__ == "__main__":
    main()
