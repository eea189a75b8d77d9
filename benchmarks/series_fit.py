"""Processor seconds of a fit of ARFIMA(1, d, 1) with a level, by each likelihood.

On one core: `OMP_NUM_THREADS=1 python benchmarks/series_fit.py`.

Limits: 1.5 s at 2000 samples, 15 s at 20 000.
"""

import time

import numpy as np
from scipy import signal

from hpfracc_nn.data import arfima
from hpfracc_nn.series import fit_arfima

LIMITS = {2000: 1.5, 20_000: 15.0}
LIKELIHOODS = ("conditional", "exact", "restricted")


def main() -> None:
    for n, limit in LIMITS.items():
        series = signal.lfilter([1, 0.3], [1, -0.5], arfima(n + 500, 0.3, np.random.default_rng(1)))[500:]
        for likelihood in LIKELIHOODS:
            begun = time.process_time()
            found = fit_arfima(series, ar=1, ma=1, likelihood=likelihood)
            seconds = time.process_time() - begun
            print(f"{n:6} {likelihood:12} {seconds:6.2f} s of {limit:g}   alpha {found.alpha:.3f} ({found.bse[1]:.3f})")


if __name__ == "__main__":
    main()
