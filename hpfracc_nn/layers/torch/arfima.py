"""ARFIMA(p, alpha, q): a long memory and a few lags, as a layer and as a model that is fitted and forecasts.

z is the backshift, `(z u)[t] = u[t - 1]`, and `ma(z) = 1 + ma[0] z + ... + ma[q - 1] z**q`. In messages `method` is the
public method that was called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.fractional.torch.eager import check_dense, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.parameters import Alpha, ProbabilisticAlpha, check_place, is_spread, with_axes
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.estimates import LeastSquares
from hpfracc_nn.layers.lags import Lags, advanced, without_lags
from hpfracc_nn.layers.order import start_in
from hpfracc_nn.layers.torch.difference import StateTuple
from hpfracc_nn.layers.torch.fractional import FractionalLayer, each_on_its_own, each_to_its_length, has_lengths
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.series.arfima import fitted
from hpfracc_nn.series.labels import Labels, numbers
from hpfracc_nn.series.results import ArfimaResults, continued


@dataclass(frozen=True)
class ArfimaEstimates(LeastSquares):
    """The estimates of `ARFIMA.fit`: alpha, the mean, and coefficients of regressors and lags, as far as they are free.

    Coefficients of lags are ar1, ar2, ..., those of past errors ma1, ma2, ... The standard error of an alpha that has
    gone to a bound is NaN. `ARFIMA.results` has the same and more by the names of statsmodels.
    """

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates, with intervals at `level`."""
        last = f"residual deviation {self.deviation:.4g} over {self.observations} samples"
        return "\n".join([*self.table(level), last])


class ARFIMA(nn.Module):
    """What ARFIMA(p, alpha, q) cannot foresee of a series: its one-step errors e.

        u = (1 - z)**alpha (x - mean),
        e[t] = u[t] - sum_i ar[i] u[t - i] - sum_j ma[j] e[t - j],

    for i = 1, ..., p and j = 1, ..., q, with zeros before the first sample, so that the series is at its mean there.
    `x[t] - e[t]` is the forecast of x[t] from the samples before it. At alpha = 0 it is ARMA(p, q), at alpha = 1 that
    of the differences.

    As a layer it whitens signals; `fit` estimates it from a series, and `forecast` goes on with that.
    `estimates` and `results` belong to the parameters that `fit` found, and raise once others are loaded or trained.
    Long memory is not cyclic: of a series with a period, such as the sunspots, a long autoregression tells more.

    Args:
        ar: p, the number of lags; one by default, where `series.fit_arfima` has none.
        ma: q, the number of past errors.
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
        ma: The coefficients of the past errors, [q]; likewise.
        mean: The level, one number, [1]; it begins at 0.

    Shape:
        Input and output: [..., n, ...], time on `dim`; floating.

    Raises:
        ValueError: alpha or the bounds are out of range, or `ar` or `ma` is negative.
        TypeError: An argument has the wrong type.

    Source: Granger & Joyeux, J. Time Series Analysis 1 (1980) 15; Hosking, Biometrika 68 (1981) 165; the fit Kilinc &
    Massmann, J. Econometrics 255 (2026) 106232, and Sowell, J. Econometrics 53 (1992) 165.

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
    ma: nn.Parameter | None

    def __init__(
        self,
        ar: int = 1,
        ma: int = 0,
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
        self.error_lags = errors.count("ARFIMA", "ma", ma, 0)
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
        for name, count in (("ar", self.lags), ("ma", self.error_lags)):
            weights = torch.zeros(count, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(weights) if count else None)
        self._results: ArfimaResults | None = None
        self._fitted_at = torch.empty(0)

    @property
    def alpha(self) -> float | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.difference.alpha  # type: ignore[return-value]  # one order

    @property
    def results(self) -> ArfimaResults:
        """The results of `fit` by the names of statsmodels: `params`, `bse`, `summary()`, forecasts with their dates.

        Raises:
            ValueError: The model was not fitted, or its parameters have changed since: trained, or loaded.
        """
        if self._results is None:
            raise ValueError("ARFIMA: needs a series that it was fitted to; call fit(series) first.")
        if not torch.allclose(self._present(), self._fitted_at, rtol=self._rounding, atol=0):
            raise ValueError(
                "ARFIMA: needs the parameters that fit found, and they have changed since; call fit(series) again."
            )
        return self._results

    @property
    def estimates(self) -> ArfimaEstimates:
        """The estimates that `fit` found, with standard errors and Student's intervals.

        Raises:
            ValueError: The model was not fitted, or its parameters have changed since: trained, or loaded.
        """
        found = self.results
        names = ["mean" if name == "const" else name.replace(".L", "") for name in found.param_names[:-1]]
        order = sorted(range(len(names)), key=lambda i: names[i] != "alpha")
        return ArfimaEstimates(
            tuple(names[i] for i in order),
            found.values[order],
            found.covariance[np.ix_(order, order)],
            math.sqrt(found.sigma2),
            found.nobs,
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the mean and the coefficients of all lags to 0; the order stays."""
        for parameter in self.parameters(recurse=False):
            parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return the one-step errors of `x`; same shape, dtype and device."""
        if is_spread(x):
            axis = errors.axis("ARFIMA", self.dim, x.ndim)
            return each_on_its_own("ARFIMA", self, ARFIMA.forward, [x], {*range(x.ndim)} - {axis})
        if has_lengths(x):
            return each_to_its_length("ARFIMA", x, partial(ARFIMA.forward, self), self.dim, looks_ahead=False)
        check_dense("ARFIMA", "x", x)
        computed_in("ARFIMA", x)  # raises, where the mean would make floats of integers
        axis = errors.axis("ARFIMA", self.dim, x.ndim)
        u = self.difference(x - self.mean.reshape(()))  # a number leaves the dtype of x as it is
        return without_lags(u, self._coefficients(), axis, TORCH)

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> StateTuple:
        """Return the state before the first sample, for `step`: that of the difference, its last p values and q errors.

        Args:
            shape: Of one time slice, x without its time axis.
            horizon: As in `FractionalLayer.initial_state`.
            device: As in `FractionalLayer.initial_state`.

        Raises:
            ValueError: An argument is out of range, or alpha is learned in bounds with a whole number inside.
            TypeError: An argument has the wrong type.
        """
        state = self.difference.initial_state(shape, horizon=horizon, device=device)
        past = torch.zeros((self.lags + self.error_lags, *shape), dtype=torch.float64, device=state.device)
        return StateTuple((state, past))

    def step(self, x: Tensor, state: tuple[StreamState, Tensor]) -> tuple[Tensor, StateTuple]:
        """Return the error of the next sample, and the state after it; `state` itself stays as it is.

        Args:
            x: One time slice, of the state's shape; any floating dtype.
            state: From `initial_state` or the step before.

        Raises:
            ValueError: As in `FractionalLayer.step`.
            TypeError: As in `FractionalLayer.step`.
        """
        _check_state("ARFIMA.step", state)
        check_dense("ARFIMA.step", "x", x)
        computed_in("ARFIMA.step", x)
        stream, past = state
        u, stream = self.difference.step(x - self.mean.reshape(()), stream)
        found, past = advanced(u[None], past, self._coefficients(), TORCH)
        return found[0].to(u), StateTuple((stream, past))

    def run(self, x: Tensor, state: tuple[StreamState, Tensor] | None = None) -> tuple[Tensor, StateTuple]:
        """Return the errors of the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            x: The next samples, any number along `dim`.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `FractionalLayer.run`.
            TypeError: As in `FractionalLayer.run`.
        """
        owner = "ARFIMA.run"
        check_dense(owner, "x", x)
        computed_in(owner, x)
        axis = errors.axis(owner, self.dim, x.ndim)
        if state is None:
            state = self.initial_state((*x.shape[:axis], *x.shape[axis + 1 :]), device=x.device)
        _check_state(owner, state)
        stream, past = state
        u, stream = self.difference.run(x - self.mean.reshape(()), stream)
        found, past = advanced(u.movedim(axis, 0), past, self._coefficients(), TORCH)
        return found.movedim(0, axis).to(u), StateTuple((stream, past))

    def fit(self, series: Any, exog: Any = None, *, likelihood: str = "conditional") -> ARFIMA:
        """Estimate alpha, where it is learned, the mean and the lags' coefficients, and return the model itself.

        A parameter that does not require a gradient stays as it is. The conditional likelihood takes the series to be
        at its mean before the first sample; the sum of the squared one-step errors is corrected for the level and the
        regressors that it takes from the series. It needs no stationary series: above alpha = 1/2 the mean is about the
        first sample. With a lag, a random walk is both alpha = 1 and ar = 1, and alpha may be either end of (0, 1).
        For the others see `series.fit_arfima`, which does the work, in NumPy and float64 whatever the parameters are.

        Args:
            series: [n]; a tensor, a pandas Series, or what NumPy makes an array of. NaN are gaps, but for the
                conditional likelihood.
            exog: Regressors, [n, k], whose coefficients are in `results` alone: the layer is of what they leave.
            likelihood: "conditional", "exact" or "restricted".

        Raises:
            ValueError: As `series.fit_arfima`; or all parameters are frozen.
            TypeError: The samples are no real numbers.
        """
        order = self.difference.order.raw if self.difference.learn_alpha else None
        given = [order, self.mean, self.ar, self.ma]
        if not any(each is not None and each.requires_grad for each in given):
            raise ValueError("ARFIMA.fit: needs something to estimate; every parameter is frozen, free one.")
        self._check_order("fit")
        if isinstance(series, Tensor):
            series = _real_tensor("fit", series).cpu().numpy()
        if isinstance(exog, Tensor):
            exog = exog.detach().cpu().numpy()
        is_sought = order is not None and order.requires_grad
        self._results = fitted(
            "ARFIMA.fit",
            [series],
            [exog],
            None,
            ar=self._lags_of("ar"),
            ma=self._lags_of("ma"),
            alpha=None if is_sought else float(self.alpha),
            mean=None if self.mean.requires_grad else float(self.mean),
            bounds=self.difference.order.bounds if is_sought else (0.0, 1.0),
            likelihood=likelihood,
        )[0]
        self._take(self._results)
        self._fitted_at = self._present()
        return self

    def errors_of(self, series: Tensor) -> Tensor:
        """Return the one-step errors of one series [n], whatever `dim` is."""
        return self(series.reshape(self._as_series)).flatten()

    def forecast(self, steps: int, series: Any = None, exog: Any = None) -> Tensor:
        """Return the expected next `steps` samples after `series`, or after the series of `fit`: [steps].

        After the series of an exact fit, or of a fit with regressors, the forecast is `results.forecast`, else that of
        the present parameters and a process at its mean before the first sample.

        Args:
            steps: How many samples are forecast.
            series: [n], finite; None is that of `fit`.
            exog: The regressors at their times, [steps, k], if `fit` had any.

        Raises:
            ValueError: There is no series, `steps` is not positive, or `exog` is missing or superfluous.
            TypeError: An argument has the wrong type.
        """
        steps = errors.count("ARFIMA.forecast", "steps", steps)
        if self._goes_on_with_results("forecast", series, exog):
            found = _without_index(self.results).forecast(steps, _array(exog))
            return self.mean.new_tensor(found).to(torch.float64)
        return self._continued(self._known("forecast", series), steps)[0]

    def forecast_interval(
        self, steps: int, level: float = 0.95, series: Any = None, exog: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Return the bounds between which each of the next `steps` samples lies with probability `level`.

        Errors are taken to be normal with the deviation that `fit` found, and the estimates to be exact. The lower and
        the upper bounds are [steps] each.

        Raises:
            ValueError: The model was not fitted, or an argument is out of range.
            TypeError: An argument has the wrong type.
        """
        level = errors.probability("ARFIMA.forecast_interval", "level", level, example=0.95)
        deviation = self.estimates.deviation
        steps = errors.count("ARFIMA.forecast_interval", "steps", steps)
        if self._goes_on_with_results("forecast_interval", series, exog):
            bounds = _without_index(self.results).get_forecast(steps, _array(exog)).conf_int(1 - level)
            low, high = torch.from_numpy(bounds).to(self.mean.device).unbind(1)
            return low, high
        expected, response = self._continued(self._known("forecast_interval", series), steps)
        half = stats.norm.ppf((1 + level) / 2) * deviation * response.square().cumsum(0).sqrt()
        return expected - half, expected + half

    def forecast_mse(self, series: Any, start: int) -> float:
        """Return the mean squared error of the forecasts of `series[start:]`, each from all samples before it.

        The parameters stay as they are: fit on what comes before `start` for a fair comparison.

        Raises:
            ValueError: `start` leaves no sample to forecast.
            TypeError: An argument has the wrong type.
        """
        self._check_regressors("forecast_mse")
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
        lags = f"{self.lags}, {self.error_lags}" if self.error_lags else f"{self.lags}"
        return f"{lags}, {alpha}, dim={self.dim}"

    def _coefficients(self) -> Lags:
        ar, ma = (() if each is None else each.unbind() for each in (self.ar, self.ma))
        return ar, ma

    def _present(self) -> Tensor:
        """Return the present values of all parameters as one vector, float64 on the CPU, detached."""
        return torch.cat([each.detach().reshape(-1).to("cpu", torch.float64) for each in self.parameters()])

    @property
    def _rounding(self) -> float:
        """The relative change of a parameter that casts to float32 and to its own dtype may cause, at most."""
        return 4 * max(torch.finfo(torch.float32).eps, *(torch.finfo(each.dtype).eps for each in self.parameters()))

    @property
    def _as_series(self) -> tuple[int, ...]:
        """The shape, with one -1, that reshapes a vector to a single series with time on the axis `dim`."""
        return (*(1,) * self.dim, -1) if self.dim >= 0 else (-1, *(1,) * (-self.dim - 1))

    @torch.no_grad()
    def _continued(self, known: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return the forecast of a series from the present parameters, and its response to one error.

        Args:
            known: The series, [n].
            steps: How many samples are forecast.

        Returns:
            The expected samples, [steps]; and what an error of 1 adds to its own sample and to later ones, [steps].
        """
        deviation = (known - self.mean.detach().to(known)).cpu().numpy()
        lags = [[float(each) for each in lags] for lags in self._coefficients()]
        expected, response = (torch.from_numpy(each) for each in continued(deviation, steps, float(self.alpha), *lags))
        return expected.to(known.device) + self.mean.detach().to(known), response.to(known.device)

    def _goes_on_with_results(self, method: str, series: Any, exog: Any) -> bool:
        """Return whether a forecast comes from the results of `fit`, and not from the present parameters alone.

        Args:
            method: The public method, for messages.
            series: The method's argument: the series to forecast from; None is that of `fit`.
            exog: The method's argument: regressors at the times of the forecast.

        Raises:
            ValueError: `exog` is given where there is no fit, or beside `series`; or `series` is given and the fit had
                regressors.
        """
        found = self._results
        if series is not None:
            self._check_regressors(method)
        if exog is not None and (found is None or series is not None):
            raise ValueError(f"ARFIMA.{method}(exog=...): needs a fit with regressors; leave exog out.")
        if found is None or series is not None:
            return False
        return exog is not None or bool(found.exog_names) or found.likelihood != "conditional"

    def _check_regressors(self, method: str) -> None:
        """Raise ValueError if the fit had regressors: a forecast from another series would need that series' own."""
        if self._results is not None and self._results.exog_names:
            raise ValueError(
                f"ARFIMA.{method}(series): needs a model without regressors, and this has those of its fit; "
                "subtract them from the series, or fit without."
            )

    def _lags_of(self, name: str) -> Any:
        """Return the argument "ar" or "ma", `name`, of `fit_arfima`: how many coefficients to estimate, or fixed ones.

        Coefficients that require no gradient are fixed, and given as a list.
        """
        weights = getattr(self, name)
        if weights is None:
            return 0
        return len(weights) if weights.requires_grad else weights.tolist()

    @torch.no_grad()
    def _take(self, found: ArfimaResults) -> None:
        """Set the parameters that require a gradient to the estimates in `found`; an alpha on a bound moves inside."""
        if "alpha" in found.param_names:
            order = self.difference.order
            low, high = order.bounds
            inside = min(max(found.alpha, low + 1e-9 * (high - low)), high - 1e-9 * (high - low))
            order.raw.fill_(math.log((inside - low) / (high - inside)))
        if self.mean.requires_grad:
            self.mean.fill_(found.level)
        for weights, values in ((self.ar, found.ar), (self.ma, found.ma)):
            if weights is not None and weights.requires_grad:
                weights.copy_(torch.from_numpy(values))

    def _known(self, method: str, series: Any) -> Tensor:
        if series is not None:
            return self._read(method, series, 1)
        if self._results is None:
            raise ValueError(f"ARFIMA.{method}(series=None): needs a series to go on with; pass one, or fit one first.")
        return torch.from_numpy(self._results.series).to(self.mean.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        with_axes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *given)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.mean.data = self.mean.data.reshape(1)  # older versions pickled a number without an axis

    def _check_order(self, method: str) -> None:
        if self.difference.learn_alpha and isinstance(self.difference.order, ProbabilisticAlpha):
            raise ValueError(
                f"ARFIMA.{method}: needs an order that is a number, and alpha is random; train the layer with a loss "
                "and order.kl(), or pass a number or an Alpha."
            )

    def _read(self, method: str, series: Any, least: int) -> Tensor:
        """Return a series, [n], as float64 on the parameters' device.

        Raises:
            ValueError: The series has not one axis, fewer than `least` samples or one that is not finite; or the
                layer's order is random.
            TypeError: The samples are no real numbers.
        """
        self._check_order(method)
        if isinstance(series, Tensor):
            values = _real_tensor(method, series)
        else:
            values = torch.from_numpy(numbers(f"ARFIMA.{method}", "series", series))
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


def _check_state(owner: str, state: Any) -> None:
    if not (isinstance(state, tuple) and len(state) == 2):
        raise TypeError(
            f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
        )


def _real_tensor(method: str, series: Tensor) -> Tensor:
    """Return a tensor of samples as float64, detached; raise TypeError if they are complex."""
    if series.is_complex():
        raise TypeError(f"ARFIMA.{method}(series of dtype {series.dtype}): needs real samples; pass series.real.")
    return series.detach().to(torch.float64)


def _without_index(results: ArfimaResults) -> ArfimaResults:
    """Return `results` without the index of the fitted series, so that forecasts are arrays, not pandas objects."""
    return replace(results, labels=Labels(results.name))


def _array(exog: Any) -> Any:
    return exog.detach().cpu().numpy() if isinstance(exog, Tensor) else exog
