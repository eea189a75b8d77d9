"""ARFIMA: what a long memory and a few lags cannot foresee."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from hpfracc_nn.layers.torch import ARFIMA, Alpha
from tests.layer_cases import Draw, LayerCase
from tests.layer_cases.fractional import differences

LAGS = 2


class Estimated(ARFIMA):
    """A model with a mean and lags that are not zero."""

    def __init__(self, *args: Any, alpha: float | Alpha = 0.3, **options: Any):
        super().__init__(*args, alpha=alpha, **options)
        for parameter, values in ((self.mean, 0.7), (self.ar, [0.5, -0.3]), (self.ma, [0.6, 0.2])):
            if parameter is not None and not parameter.is_meta:
                with torch.no_grad():
                    parameter.copy_(torch.tensor(values))


def errors_of(layer: Any, x: np.ndarray) -> np.ndarray:
    u = differences(x - layer.mean.item(), float(torch.as_tensor(layer.alpha).detach()), 1.0)
    found = u.copy()
    for lag, weight in enumerate(layer.ar.tolist(), 1):
        found[..., lag:] -= weight * u[..., :-lag]
    for t in range(x.shape[-1]) if layer.ma is not None else ():
        for lag, weight in enumerate(layer.ma.tolist(), 1):
            if lag <= t:
                found[..., t] -= weight * found[..., t - lag]
    return found


def autoregression(layer: Any) -> Any:
    weights = torch.cat([-layer.ar.flip(0), torch.ones(1).to(layer.ar)])[None, None].repeat(3, 1, 1)
    return lambda x: functional.conv1d(functional.pad(x - layer.mean, (LAGS, 0)), weights, groups=3)


def of_rows(draw: Draw, batch: int) -> tuple[Any, ...]:
    return (draw(batch, 3, 40),)


REFUSALS = (
    ("alpha", lambda: ARFIMA(alpha=2.5), ValueError, "alpha=2.5"),
    ("outside", lambda: ARFIMA(alpha=0.3, bounds=(0.4, 1)), ValueError, "alpha within its bounds"),
    ("orders", lambda: ARFIMA(alpha=[0.3, 0.4]), ValueError, r"ARFIMA\(alpha=\[0.3, 0.4\]\): needs one order"),  # type: ignore[arg-type]
    ("lags", lambda: ARFIMA(-1), ValueError, r"ARFIMA\(ar=-1\): needs ar >= 0"),
    ("errors before", lambda: ARFIMA(1, -1), ValueError, r"ARFIMA\(ma=-1\): needs ma >= 0"),
    ("integers", lambda: ARFIMA()(torch.arange(5)), TypeError, "dtype"),
    ("rank", lambda: ARFIMA()(torch.tensor(1.0)), ValueError, r"ARFIMA\(x\): needs at least one axis"),
    ("axis", lambda: ARFIMA(dim=1)(torch.ones(5)), ValueError, r"ARFIMA\(dim=1\): needs -1 <= dim < 1"),
    ("state", lambda: ARFIMA().step(torch.ones(2), None), TypeError, "needs a state; pass what initial_state"),  # type: ignore[arg-type]
)
CASES = [
    LayerCase(
        Estimated, (LAGS,), of_rows, errors_of, limit=(0.0, autoregression), time=-1, refusals=REFUSALS, second=True
    ),
    LayerCase(Estimated, (LAGS, 2), of_rows, errors_of, {}, "errors before", second=True),
    LayerCase(Estimated, (LAGS,), of_rows, errors_of, {"bounds": (-0.5, 1.0)}, "wide", (-0.3, 0.2, 0.9)),
]
