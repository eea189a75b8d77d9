"""Series of pandas in the statistical model: their dates, and those of the forecasts."""

import re
import warnings

import numpy as np
import pytest

from hpfracc_nn import data
from hpfracc_nn.series import fit_arfima, gph, local_whittle

pandas = pytest.importorskip("pandas")

N = 60


def forecast(index, **options):
    """The index of a forecast of a series with an index."""
    series = pandas.Series(data.arfima(N, 0.3, np.random.default_rng(0)), index)
    return fit_arfima(series, alpha=0.3).forecast(3, **options).index


def bare(index):
    """The same times without a frequency, as from a file."""
    return pandas.DatetimeIndex(np.asarray(index), name=index.name)


GOING_ON = {
    "days of trade": lambda n: pandas.bdate_range("2024-01-01", periods=n, name="day"),
    "days of a zone": lambda n: pandas.date_range("2024-02-01", periods=n, tz="Europe/Rome"),  # the clocks change
    "hours of a zone": lambda n: pandas.date_range("2024-03-29", periods=n, freq="h", tz="Europe/Rome"),
    "month ends": lambda n: pandas.date_range("2015-01-31", periods=n, freq="ME", unit="s"),
    "months": lambda n: pandas.period_range("2015-01", periods=n, freq="M", name="month"),
    "quarters": lambda n: pandas.period_range("2015Q1", periods=n, freq="Q"),
    "every third month": lambda n: pandas.period_range("2015-01", periods=3 * n, freq="M")[::3],
    "every seventh day": lambda n: pandas.period_range("2015-01-01", periods=7 * n, freq="D")[::7],
    "every tenth year": lambda n: pandas.period_range("1000", periods=10 * n, freq="Y")[::10],
    "months by threes": lambda n: pandas.period_range("2015-01", periods=n, freq="3M"),
    "periods of trade": lambda n: pandas.bdate_range("2024-01-01", periods=n).to_period("D"),
    "spans": lambda n: pandas.timedelta_range(0, periods=n, freq="s", name="clock"),
    "rows": lambda n: pandas.RangeIndex(n, name="row"),
    "years": lambda n: pandas.RangeIndex(1871, 1871 + n, name="year"),
    "every second year": lambda n: pandas.RangeIndex(1800, 1800 + 2 * n, 2),
    "numbers": lambda n: pandas.Index(0.5 * np.arange(n), name="t"),
}


@pytest.mark.parametrize("index", GOING_ON.values(), ids=GOING_ON)
@pytest.mark.filterwarnings("error")
def test_the_index_of_a_forecast_goes_on_by_its_frequency_and_keeps_its_name(index):
    given, expected = index(N), index(N + 3)[N:]
    for each in (given, bare(given) if isinstance(given, pandas.DatetimeIndex) and given.tz is None else given):
        found = forecast(each)
        assert found.equals(expected.astype(found.dtype))
        assert found.dtype == each.dtype
        assert found.name == given.name
    if given.dtype.kind == "i":
        assert forecast(pandas.Index(np.asarray(given))).equals(expected)


def test_dates_levels_and_categories_are_times():
    days = GOING_ON["days of trade"](N + 3)
    for index in (
        pandas.Index([day.date() for day in days[:N]]),
        pandas.CategoricalIndex(days[:N]),
        pandas.MultiIndex.from_product([["A"], days[:N]]),
    ):
        assert (forecast(index) == days[N:]).all()
    with pytest.raises(
        TypeError, match=r"^fit_arfima\(series whose index holds texts such as '2024-01-01'\): needs times"
    ):
        forecast(days[:N].strftime("%Y-%m-%d"))


def test_names_are_counted_on():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(forecast([f"row {i}" for i in range(N)])) == [N, N + 1, N + 2]


HOLED = [
    (pandas.date_range("2024-01-01", periods=N + 1), "series.asfreq('D')"),
    (pandas.date_range("2024-01-01", periods=N + 1, tz="Europe/Rome"), "series.asfreq('D')"),
    (pandas.date_range("2024-01-01", periods=N + 1, freq="h"), "series.asfreq('h')"),
    (pandas.date_range("2015-01-31", periods=N + 1, freq="ME"), "series.asfreq('ME')"),
    (pandas.date_range("1960-01-01", periods=N + 1, freq="YS"), "series.asfreq('YS-JAN')"),
    (
        pandas.period_range("2015-01", periods=N + 1, freq="M"),
        "series.reindex(pandas.period_range(series.index[0], series.index[-1]))",
    ),
    (pandas.Index(range(1900, 1901 + N)), f"series.reindex(range(1900, {1901 + N}, 1))"),
]


@pytest.mark.parametrize(("index", "way_out"), HOLED, ids=[f"{each[0].dtype}: {each[1]}" for each in HOLED])
def test_rows_that_are_missing_are_an_error_whose_way_out_makes_them_gaps(index, way_out):
    series = pandas.Series(data.arfima(N + 1, 0.3, np.random.default_rng(0)), index).drop(index[20])
    message = (
        f"(series): needs all rows of a regular index; before row 20, {index[21]}, some are missing; make them gaps"
    )
    for fit in (fit_arfima, gph, local_whittle):
        with pytest.raises(ValueError, match=f"^{fit.__name__}{re.escape(message)}") as raised:
            fit(series)
    assert f"gaps, {way_out}, or" in str(raised.value)
    filled = fit_arfima(eval(way_out, {"series": series, "pandas": pandas}), alpha=0.3)
    assert filled.interpolate().predicted_mean.index.equals(index[[20]])
    assert filled.forecast(1).index[0] > index[-1]
    numbered = fit_arfima(series.reset_index(drop=True), alpha=0.3)
    assert list(numbered.forecast(2).index) == [N, N + 1]


HALVED = [
    (pandas.period_range("1900-01", periods=2 * N, freq="M"), HOLED[5][1]),
    (pandas.date_range("2020-01-01", periods=2 * N), "series.asfreq('D')"),
    (pandas.Index(range(1800, 1800 + 2 * N)), f"series.reindex(range(1800, {1800 + 2 * N}, 1))"),
]


@pytest.mark.parametrize(("index", "way_out"), HALVED, ids=[str(each[0].dtype) for each in HALVED])
def test_rows_beyond_a_tenth_that_are_missing_are_told_at_the_fit_and_by_the_forecast(index, way_out):
    kept = np.sort(np.concatenate([[0, 1, 2, 3, 2 * N - 1], np.random.default_rng(0).choice(range(5, 2 * N - 1), N)]))
    kept = np.unique(kept)
    series = pandas.Series(data.arfima(2 * N, 0.3, np.random.default_rng(0)), index).iloc[kept]
    lost, ways = 2 * N - len(series), f"make them gaps, {way_out}, or"
    for fit in (fit_arfima, gph, local_whittle):
        with pytest.warns(UserWarning, match=rf"^{fit.__name__}\(series\): takes its rows for the steps") as told:
            found = fit(series)
        assert f"although {lost} of a regular index are missing; {ways}" in str(told[0].message)
        assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=rf"^fit_arfima\(series\): takes .* although {lost} "):
        found = fit_arfima(series, alpha=0.3)
    with pytest.warns(
        UserWarning, match=rf"^forecast: the .* so that forecasts are numbered from {len(series)} on"
    ) as told:
        assert list(found.forecast(2).index) == [len(series), len(series) + 1]
    assert way_out in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled = fit_arfima(eval(way_out, {"series": series, "pandas": pandas}), alpha=0.3)
        assert filled.nobs == len(series)
        assert filled.forecast(1).index[0] > index[-1]
        fit_arfima(series.reset_index(drop=True), alpha=0.3)


def test_times_without_a_regular_index_are_numbered_and_no_row_is_lost():
    late = np.cumsum(np.random.default_rng(0).integers(1, 10**9, N))
    times = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(late, unit="us")
    for index in (times, pandas.TimedeltaIndex(late), pandas.Index(late / 7)):
        with pytest.warns(UserWarning, match=r"^forecast: the .* have no frequency") as told:
            assert forecast(index)[0] == N
        assert [("asfreq" in str(each.message)) for each in told] == [False]
        assert "series.reset_index(drop=True)" in str(told[0].message)


@pytest.fixture
def trading():
    """Days with holidays, which have no frequency."""
    days = pandas.bdate_range("2024-01-01", periods=N + 5).delete([9, 34])
    return pandas.Series(data.arfima(len(days), 0.3, np.random.default_rng(0)), days)


def test_forecasts_of_dates_without_a_frequency_are_numbered_with_a_warning(trading):
    series = trading[:N]
    found = fit_arfima(series, alpha=0.3)
    assert found.resid.index.equals(series.index)
    message = r"^forecast: the dates of the series have no frequency, so that forecasts are numbered from 60 on; give"
    with pytest.warns(UserWarning, match=message) as raised:
        assert list(found.forecast(2).index) == [N, N + 1]
    with pytest.warns(UserWarning, match=message) as direct:
        found.get_forecast(2)
    assert "series.asfreq('B')" in str(raised[0].message)
    assert {each.filename for each in [*raised, *direct]} == {__file__}


@pytest.mark.filterwarnings("error")
def test_dates_without_a_frequency_go_on_as_the_regressors_have_them(trading):
    rain = pandas.DataFrame({"rain": np.random.default_rng(1).standard_normal(len(trading))}, trading.index)
    found = fit_arfima(trading[:N], rain[:N], alpha=0.3)
    assert found.forecast(3, rain[N:]).index.equals(trading.index[N:])
    with pytest.raises(ValueError, match=r"^ArfimaResults.forecast\(exog\): needs times after those of the series, "):
        found.forecast(3, rain[N - 1 : N + 2])


@pytest.mark.filterwarnings("error")
def test_working_days_get_a_frequency_by_gaps_or_by_a_calendar(trading):
    series = trading[:N].asfreq("B")
    assert fit_arfima(series, alpha=0.3).forecast(1).index[0] == trading.index[N]
    closed = pandas.bdate_range("2024-01-01", periods=N + 5)[[9, 34]]
    declared = trading[:N].asfreq(pandas.offsets.CustomBusinessDay(holidays=list(closed)))
    assert not declared.isna().any()
    assert fit_arfima(declared, alpha=0.3).forecast(3).index.equals(trading.index[N:])


def test_regressors_are_matched_in_any_unit_of_time():
    index = pandas.date_range("2024-01-01", periods=N)
    series = pandas.Series(data.arfima(N, 0.3, np.random.default_rng(0)), index.as_unit("ns"))
    rain = pandas.DataFrame({"rain": np.random.default_rng(1).standard_normal(N)}, index.as_unit("s"))
    assert fit_arfima(series, rain, alpha=0.3).param_names[1] == "rain"


def ahead_of(index, steps=3):
    """A fit whose regressor has an index, and what follows that index."""
    rng = np.random.default_rng(0)
    rain, whole = rng.standard_normal(N + steps), index(N + steps)
    series = pandas.Series(data.arfima(N, 0.3, rng) + 2 * rain[:N], whole[:N])
    found = fit_arfima(series, pandas.Series(rain[:N], whole[:N], name="rain"), alpha=0.3)
    return found, pandas.Series(rain[N:], whole[N:], name="rain")


REGRESSED = {
    **GOING_ON,
    "years, no range": lambda n: pandas.Index(np.arange(1700, 1700 + n)),
    "tenths": lambda n: pandas.Index(7 + 0.1 * np.arange(n)),
    "dates": lambda n: pandas.Index([day.date() for day in pandas.date_range("2020-01-01", periods=n)]),
    "levels": lambda n: pandas.MultiIndex.from_product([["A"], pandas.date_range("2020-01-01", periods=n)]),
}


@pytest.mark.parametrize("index", REGRESSED.values(), ids=REGRESSED)
@pytest.mark.filterwarnings("error")
def test_regressors_of_a_forecast_have_the_labels_of_its_steps(index):
    found, rain = ahead_of(index)
    expected = found.forecast(3, rain)
    assert found.forecast(3, rain.reset_index(drop=True)).equals(expected)  # counted rows tell nothing
    assert np.array_equal(found.forecast(3, rain.to_numpy()), expected)
    if rain.index.dtype.kind == "M":
        for each in (rain.index.as_unit("ns"), rain.index.as_unit("ms")):
            assert found.forecast(3, rain.set_axis(each)).equals(expected)
            with pytest.raises(ValueError, match=r"needs the index of each step; row 0 is "):
                found.forecast(3, rain.set_axis(each)[::-1])
    with pytest.raises(
        ValueError, match=r"^ArfimaResults.forecast\(exog\): needs the index of each step; row 0 is .* in place of "
    ):
        found.forecast(3, rain[::-1])
    early = index(N)[:3]
    if list(early) != [0, 1, 2]:
        with pytest.raises(ValueError, match=r"needs the index of each step; row 0 is "):
            found.forecast(3, rain.set_axis(early))


def test_regressors_of_a_forecast_have_labels_of_the_kind_that_the_series_has():
    found, rain = ahead_of(lambda n: pandas.date_range("2020-01-01", periods=n))
    days = rain.index
    others = (days.tz_localize("UTC"), days.to_period("D"), days.strftime("%Y-%m-%d"), [2000, 2001, 2002], list("abc"))
    for other in others:
        with pytest.raises(ValueError, match=r"needs the index of each step; row 0 is .* in place of 2020-03-01"):
            found.forecast(3, rain.set_axis(other))
    for same in (days.date, pandas.CategoricalIndex(days), range(N, N + 3)):
        assert found.forecast(3, rain.set_axis(same)).equals(found.forecast(3, rain))
    found, rain = ahead_of(lambda n: pandas.RangeIndex(1, n + 1))
    with pytest.raises(ValueError, match=rf"row 0 is {N} in place of {N + 1}"):
        found.forecast(3, rain.set_axis(range(N, N + 3)))


def test_columns_of_polars_have_their_names():
    polars = pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    rain, flow = rng.standard_normal((N, 2)), polars.Series("flow", data.arfima(N, 0.3, rng))
    table = polars.DataFrame(rain, schema=["rain", "temp"], orient="row")
    found = fit_arfima(flow, table, alpha=0.3)
    assert found.param_names == ("const", "rain", "temp", "sigma2")
    assert " of flow\n" in found.summary().replace(",", "\n")
    np.testing.assert_array_equal(found.forecast(3, table[:3, ::-1]), found.forecast(3, rain[:3]))
    with pytest.raises(ValueError, match=r"needs those of the fit, \['rain', 'temp'\]"):
        found.forecast(3, table[:3].rename({"temp": "wind"}))
    assert fit_arfima(flow, table["rain"], alpha=0.3).param_names == ("const", "rain", "sigma2")


def test_the_times_of_an_xarray_series_increase():
    xarray = pytest.importorskip("xarray")
    days = pandas.date_range("2024-01-01", periods=N)
    array = xarray.DataArray(data.arfima(N, 0.3, np.random.default_rng(0)), {"time": days}, ("time",))
    assert fit_arfima(array, alpha=0.3).forecast(2).shape == (2,)
    with pytest.raises(ValueError, match=r"^fit_arfima\(series\): needs times that increase; row 1 is 2024-02-28"):
        fit_arfima(array[::-1])
    kept = np.r_[0:4, np.arange(5, N, 2)]
    with pytest.warns(
        UserWarning, match=r"are missing; make them gaps, series.resample\(time='D'\).asfreq\(\), or"
    ) as told:
        gph(array[kept])
    assert f"although {N - len(kept)} of a regular index" in str(told[0].message)
    assert "series.assign_coords(time=range(len(series)))" in str(told[0].message)
