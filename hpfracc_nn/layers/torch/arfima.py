"""ARFIMA(p, alpha, 0): a long memory and a few lags, as a layer and as a model that is fitted and forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.differencing import fdiff
from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.fractional.torch.eager import check_dense, computed_in
from hpfracc_nn.fractional.torch.place import check_place
from hpfracc_nn.fractional.torch.probabilistic_alpha import ProbabilisticAlpha
from hpfracc_nn.fractional.torch.stated import with_axes
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.arfima_start import start_in
from hpfracc_nn.layers.torch import arfima_fit
from hpfracc_nn.layers.torch.arfima_fit import ArfimaEstimates
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.state_tuple import StateTuple
from hpfracc_nn.selection import BackendManager


class ARFIMA(nn.Module):
    """What ARFIMA(p, alpha, 0) cannot foresee of a series: its one-step errors e.

        u = (1 - z)**alpha (x - mean),
        e[t] = u[t] - sum over i = 1, ..., p of ar[i] u[t - i],

    with zeros before the first sample, so that the series is at its mean there. `x[t] - e[t]` is the forecast of x[t]
    from the samples before it. At alpha = 0 it is an autoregression of order p, at alpha = 1 one of the differences.

    As a layer it whitens signals; `fit` estimates it from a series by least squares, and `forecast` goes on with that.
    `estimates` belong to the parameters that `fit` found, and are told no more once others are loaded or trained. Long
    memory is not cyclic: of a series with a period, such as the sunspots, a long autoregression tells more.

    Args:
        ar: p, the number of lags.
        alpha: The order of the difference, usually called d; where learning starts. Or an `Alpha` or
            `ProbabilisticAlpha` of shape [], which then is the order, with its own bounds; a random one is not fitted.
            None is 0.3, or the middle of bounds that leave it out.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value. A series is stationary
            below 1/2 and invertible above -1/2; with lags, an order below 0 can stand for one above:
            `(1 - 0.95 z) (1 - z)**-0.5` is nearly `(1 - z)**0.5`.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; None is float64, in which `fit` estimates whatever it is.

    Attributes:
        ar: The coefficients of the lags, [p]; None where there are none. They begin at 0.
        mean: The level, one number, [1]; it begins at 0.

    Shape:
        Input and output: [..., n, ...], time on `dim`; floating.

    Raises:
        ValueError: alpha or the bounds are out of range, or `ar` is negative.
        TypeError: An argument has the wrong type.

    Source: Granger & Joyeux, J. Time Series Analysis 1 (1980) 15; Hosking, Biometrika 68 (1981) 165; the fit Kilinc &
    Massmann, J. Econometrics 255 (2026) 106232.

    Examples:
        >>> from hpfracc_nn import data
        >>> series = data.arfima(1000, 0.3, np.random.default_rng(0))
        >>> model = ARFIMA(ar=1).fit(series)
        >>> low, high = model.estimates.intervals_at(0.95)["alpha"]
        >>> low < 0.3 < high, model.forecast(10).shape
        (True, torch.Size([10]))
        >>> ARFIMA(ar=0, alpha=0.5)(torch.eye(1, 4)).detach()  # Grünwald's weights
        tensor([[ 1.0000, -0.5000, -0.1250, -0.0625]])
    """

    ar: nn.Parameter | None

    def __init__(
        self,
        ar: int = 1,
        *,
        alpha: float | Alpha | None = None,
        learn_alpha: bool = True,
        bounds: tuple[float, float] | None = None,
        dim: int = -1,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.lags = errors.count("ARFIMA", "ar", ar, 0)
        self.dim = errors.index("ARFIMA", "dim", dim)
        check_place("ARFIMA", device, dtype)
        dtype = dtype or torch.float64
        self.difference = FractionalLayer(
            start_in(bounds) if alpha is None else alpha,
            "grunwald_letnikov",
            learn_alpha=learn_alpha,
            bounds=bounds,
            dim=dim,
            manager=manager,
            device=device,
            dtype=dtype,
        )
        if self.difference.channels is not None:
            raise ValueError(f"ARFIMA(alpha={alpha}): needs one order; make a model for each series.")
        self.mean = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
        weights = torch.zeros(self.lags, device=device, dtype=dtype)
        self.register_parameter("ar", nn.Parameter(weights) if self.lags else None)
        self._estimates: ArfimaEstimates | None = None
        self._series: Tensor | None = None
        self._fitted_at = torch.empty(0)

    @property
    def alpha(self) -> float | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.difference.alpha  # type: ignore[return-value]  # one order

    @property
    def estimates(self) -> ArfimaEstimates:
        """What `fit` found, with standard errors.

        Raises:
            ValueError: The model was not fitted, or its parameters have changed since: trained, or loaded.
        """
        if self._estimates is None:
            raise ValueError("ARFIMA: needs a series that it was fitted to; call fit(series) first.")
        if not torch.allclose(self._present(), self._fitted_at, rtol=self._rounding, atol=0):
            raise ValueError(
                "ARFIMA: needs the parameters that fit found, and they have changed since; call fit(series) again."
            )
        return self._estimates

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin anew with zeros; the order stays."""
        for parameter in self.parameters(recurse=False):
            parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return the one-step errors of `x`; same shape, dtype and device."""
        check_dense("ARFIMA", "x", x)
        computed_in("ARFIMA", x)  # raises, where the mean would make floats of integers
        axis = errors.axis("ARFIMA", self.dim, x.ndim)
        u = self.difference(x - self.mean.reshape(()))  # a number leaves the dtype of x as it is
        if self.ar is None:
            return u
        past = torch.cat([u.new_zeros((*u.shape[:axis], self.lags, *u.shape[axis + 1 :])), u], axis)
        found = u
        for lag in range(1, self.lags + 1):
            found = found - self.ar[lag - 1] * past.narrow(axis, self.lags - lag, u.shape[axis])
        return found

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> StateTuple:
        """Return the state before the first sample, for `step`: that of the difference, and its last p values.

        Args:
            shape: Of one time slice, x without its time axis.
            horizon: As in `FractionalLayer.initial_state`.
            device: As there.

        Raises:
            ValueError: An argument is out of range, or alpha is learned in bounds with a whole number inside.
            TypeError: An argument has the wrong type.
        """
        state = self.difference.initial_state(shape, horizon=horizon, device=device)
        return StateTuple((state, torch.zeros((self.lags, *shape), dtype=torch.float64, device=state.device)))

    def step(self, x: Tensor, state: tuple[StreamState, Tensor]) -> tuple[Tensor, StateTuple]:
        """Return the error of the next sample, and the state after it; `state` itself stays as it is.

        Args:
            x: One time slice, of the state's shape; any floating dtype.
            state: From `initial_state` or the step before.

        Raises:
            ValueError: As in `FractionalLayer.step`.
            TypeError: As in `FractionalLayer.step`.
        """
        if not (isinstance(state, tuple) and len(state) == 2):
            raise TypeError(
                f"ARFIMA.step(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
            )
        check_dense("ARFIMA.step", "x", x)
        computed_in("ARFIMA.step", x)
        stream, past = state
        u, stream = self.difference.step(x - self.mean.reshape(()), stream)
        if self.ar is None:
            return u, StateTuple((stream, past))
        found = u - torch.tensordot(self.ar.to(past), past, dims=1).to(u)
        return found, StateTuple((stream, torch.cat([u.to(past)[None], past[:-1]])))

    def fit(self, series: Any) -> ARFIMA:
        """Estimate alpha, where it is learned, the mean and the lags' coefficients, and return the model itself.

        A parameter that does not require a gradient stays as it is. The sum of the squared one-step errors, corrected
        for the level that it takes from the series, is minimised from several first orders, in float64; standard
        errors are from its second derivatives at the minimum. Series need not be stationary: above alpha = 1/2 the
        mean is about the first sample. With a lag, a random walk is both alpha = 1 and ar = 1, and alpha may be either
        end of (0, 1).

        Args:
            series: [n], finite; a tensor or what NumPy makes an array of.

        Raises:
            ValueError: There are too few samples, or they are not finite or all the same; or all parameters are frozen.
            TypeError: The samples are no real numbers.
        """
        if not arfima_fit.free(self):
            raise ValueError("ARFIMA.fit: needs something to estimate; every parameter is frozen, free one.")
        with torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode is
            samples = self._read("fit", series, 2 + 2 * (self.lags + 2)).clone()
            self._estimates = arfima_fit.fit(self, samples)
        self._series = samples
        self._fitted_at = self._present()
        return self

    def errors_of(self, series: Tensor) -> Tensor:
        """Return the one-step errors of one series [n], whatever `dim` is."""
        return self(series.reshape(self._as_series)).flatten()

    def forecast(self, steps: int, series: Any = None) -> Tensor:
        """Return what is expected of the next `steps` samples after `series`, or after that of `fit`: [steps].

        Raises:
            ValueError: There is no series, or `steps` is not positive.
            TypeError: An argument has the wrong type.
        """
        steps, known = errors.count("ARFIMA.forecast", "steps", steps), self._known("forecast", series)
        with torch.no_grad():
            differenced = self.difference((known - self.mean.to(known)).reshape(self._as_series)).flatten()
            expected = fdiff(self._continued(differenced, steps), -float(self.alpha), manager=self._manager)
            return expected[known.shape[0] :] + self.mean.to(known)

    def forecast_interval(self, steps: int, level: float = 0.95, series: Any = None) -> tuple[Tensor, Tensor]:
        """Return between what bounds each of the next `steps` samples lies with probability `level`: two of [steps].

        For normal errors of the deviation that `fit` found; the estimates are taken for exact.

        Raises:
            ValueError: The model was not fitted, or an argument is out of range.
            TypeError: An argument has the wrong type.
        """
        level = errors.probability("ARFIMA.forecast_interval", "level", level)
        deviation, expected = self.estimates.deviation, self.forecast(steps, series)
        with torch.no_grad():
            impulse = self._continued(torch.ones(1).to(expected), steps - 1)
            response = fdiff(impulse, -float(self.alpha), manager=self._manager)
        half = stats.norm.ppf((1 + level) / 2) * deviation * response.square().cumsum(0).sqrt()
        return expected - half, expected + half

    def forecast_mse(self, series: Any, start: int) -> float:
        """Return the mean squared error of the forecasts of `series[start:]`, each from all samples before it.

        The parameters stay as they are: fit on what comes before `start` for a fair comparison.

        Raises:
            ValueError: `start` leaves no sample to forecast.
            TypeError: An argument has the wrong type.
        """
        samples = self._read("forecast_mse", series, 2)
        begin = errors.count("ARFIMA.forecast_mse", "start", start)
        if begin >= len(samples):
            raise ValueError(
                f"ARFIMA.forecast_mse(start={begin}): needs start < {len(samples)}, the length of the series; hold out "
                "some samples."
            )
        with torch.no_grad():
            return float(self.errors_of(samples)[begin:].square().mean())

    def extra_repr(self) -> str:
        alpha = "learn_alpha=True" if self.difference.learn_alpha else f"alpha={self.alpha:g}"
        return f"{self.lags}, {alpha}, dim={self.dim}"

    def _present(self) -> Tensor:
        """All parameters, float64 on the CPU."""
        return torch.cat([each.detach().reshape(-1).to("cpu", torch.float64) for each in self.parameters()])

    @property
    def _rounding(self) -> float:
        """How far a cast of the parameters moves them: to float32 and back is no change."""
        return 4 * max(torch.finfo(torch.float32).eps, *(torch.finfo(each.dtype).eps for each in self.parameters()))

    @property
    def _manager(self) -> BackendManager:
        return self.difference.site.manager

    @property
    def _as_series(self) -> tuple[int, ...]:
        """The shape in which one series has its time on `dim`."""
        return (*(1,) * self.dim, -1) if self.dim >= 0 else (-1, *(1,) * (-self.dim - 1))

    def _continued(self, differenced: Tensor, steps: int) -> Tensor:
        """The differences and what the lags make of them in `steps` more, where no error is foreseen."""
        values = differenced.tolist()
        weights = [] if self.ar is None else self.ar.tolist()
        for _ in range(steps):
            values.append(sum(weight * values[-lag] for lag, weight in enumerate(weights, 1) if lag <= len(values)))
        return differenced.new_tensor(values)

    def _known(self, method: str, series: Any) -> Tensor:
        if series is not None:
            return self._read(method, series, 1)
        if self._series is None:
            raise ValueError(f"ARFIMA.{method}(series=None): needs a series to go on with; pass one, or fit one first.")
        return self._series.to(self.mean.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        with_axes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *given)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.mean.data = self.mean.data.reshape(1)  # older versions pickled a number without an axis

    def _read(self, method: str, series: Any, least: int) -> Tensor:
        """Return the series as a float64 tensor where the parameters are, or raise."""
        if self.difference.learn_alpha and isinstance(self.difference.order, ProbabilisticAlpha):
            raise ValueError(
                f"ARFIMA.{method}: needs an order that is a number, and alpha is random; train the layer with a loss "
                "and order.kl(), or pass a number or an Alpha."
            )
        values = series.detach() if isinstance(series, Tensor) else torch.from_numpy(_real(method, series))
        if values.is_complex():
            raise TypeError(f"ARFIMA.{method}(series of dtype {values.dtype}): needs real samples; pass series.real.")
        if values.ndim != 1 or len(values) < least:
            raise ValueError(
                f"ARFIMA.{method}(series of shape {tuple(values.shape)}): needs one axis of at least {least} samples; "
                "pass one series, and a longer one."
            )
        values = values.to(self.mean.device, torch.float64)
        if not bool(values.isfinite().all()):
            index = int((~values.isfinite()).nonzero()[0, 0])
            raise ValueError(
                f"ARFIMA.{method}(series): needs finite samples; series[{index}]={float(values[index])}; fill the gaps."
            )
        return values


def _real(method: str, series: Any) -> np.ndarray:
    """Return what NumPy makes of a series, or raise."""
    found = np.asarray(series)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"ARFIMA.{method}(series of dtype {found.dtype}): needs real samples; pass floats.")
    return np.array(found, np.float64)
