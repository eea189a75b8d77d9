"""Draw the memory weights of every definition: python docs/pictures/memories.py writes memories.png beside itself.

A weight is what x' at an earlier time counts for, tempered x' + rate x (where the operator subtracts nothing: what x
counts for), in steps, for three orders. Needs Matplotlib.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hpfracc_nn.fractional import DEFINITIONS, MULTIPLIERS, Caputo, Definition, FourierMultiplier
from hpfracc_nn.fractional.namespace import NUMPY

ALPHAS = (0.2, 0.5, 0.8)
LAGS = np.unique(np.geomspace(1, 3000, 120).round().astype(int))
CIRCLE = 257
# Definitions whose weights are those of another in other variables are drawn once.
DRAWN_AS = {
    "marchaud": "caputo",
    "hadamard": "riemann_liouville",
    "caputo_hadamard": "caputo",
    "hadamard_integral": "riemann_liouville_integral",
    "periodic_riesz": "fractional_laplacian",
}
OPTIONS = {"tempered": {"rate": 0.01}, "caputo_fabrizio": {"unit": 300.0}, "atangana_baleanu": {"unit": 30.0}}


def chosen(name: str, kind: type[Definition], alpha: float) -> Definition:
    """Return the definition that is drawn: with options that show its time scale."""
    options = next((found for start, found in OPTIONS.items() if name.startswith(start)), {})
    return kind(alpha, kind.schemes[0], **options)  # type: ignore[arg-type]


def weights(found: Definition) -> np.ndarray:
    """Return the weights of x' where a Taylor polynomial is subtracted, else of x."""
    m = 1 if found.subtracts else 0
    if found.fading:  # of one difference the weights would end at those of rate x
        plain = Caputo(found.alpha, found.scheme).stencil(1, 1.0, NUMPY, differences=1).column(LAGS)
        return plain * np.exp(-found.fading * LAGS)
    return np.abs(found.stencil(1, 1.0, NUMPY, differences=m).column(LAGS))


def kernel(found: FourierMultiplier) -> np.ndarray:
    """Return what a unit sample becomes, around the circle."""
    pulse = np.zeros(CIRCLE)
    pulse[0] = 1
    return np.abs(found(pulse))[1 : CIRCLE // 2]


def main() -> None:
    """Draw a panel for each."""
    causal = {name: kind for name, kind in DEFINITIONS.items() if name not in DRAWN_AS}
    circular = {name: kind for name, kind in MULTIPLIERS.items() if name not in DRAWN_AS}
    panels = len(causal) + len(circular)
    figure = Figure(figsize=(11, 2.6 * -(-panels // 4)), layout="constrained")
    axes = figure.subplots(-(-panels // 4), 4).ravel()
    for axis in axes[panels:]:
        axis.set_axis_off()
    for axis, (name, kind) in zip(axes, causal.items(), strict=False):
        for alpha in ALPHAS:
            axis.loglog(LAGS, weights(chosen(name, kind, alpha)), label=f"{alpha:g}")
        axis.set(title=name.replace("_", " "), ylim=(1e-8, 10))
    for axis, (name, kind) in zip(axes[len(causal) :], circular.items(), strict=False):
        for alpha in ALPHAS:
            axis.loglog(np.arange(1, CIRCLE // 2), kernel(kind(alpha)), label=f"{alpha:g}")
        axis.set(title=name.replace("_", " "), ylim=(1e-6, 1))
    for axis in axes[:panels]:
        axis.title.set_fontsize(9)
        axis.tick_params(labelsize=7)
        axis.grid(True, linewidth=0.3)
    axes[0].legend(title="alpha", fontsize=7, title_fontsize=7)
    figure.supxlabel("lag, in steps", fontsize=9)
    figure.supylabel("|weight|", fontsize=9)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=90)


if __name__ == "__main__":
    main()
