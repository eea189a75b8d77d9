"""Times of tables: which labels are times, and where rows are missing between those that were seen and those given."""

import datetime
import re
import warnings

import numpy as np
import pytest

from hpfracc_nn import fdiff

pytest.importorskip("sklearn")

from sklearn.linear_model import Ridge
from sklearn.model_selection import TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline

from hpfracc_nn.preprocessing import FractionalDifferencer, StationaryDifferencer

pandas = pytest.importorskip("pandas")

ROWS, WINDOW, ALPHA = 420, 100, 0.4


def taken():
    return FractionalDifferencer(ALPHA, window=WINDOW)


def holidays():
    """Trading days: some fall out, none of which lies beside another."""
    days = pandas.bdate_range("2020-01-01", periods=ROWS + 20)
    return days.delete(np.arange(5, 405, 20))


def bars():
    """Seven hours of each trading day."""
    days = pandas.bdate_range("2020-01-01", periods=ROWS // 7)
    return pandas.DatetimeIndex([day + pandas.Timedelta(hours=hour) for day in days for hour in range(9, 16)])


def jittered():
    late = np.random.default_rng(0).integers(0, 200, ROWS)
    return pandas.Timestamp("2020-01-01") + pandas.to_timedelta(1000 * np.arange(ROWS) + late, unit="ms")


def without_frequency(index):
    return pandas.DatetimeIndex(np.asarray(index))


def month_starts():
    return pandas.date_range("1980-01-01", periods=ROWS, freq="MS")


EXACT = {  # where a row that is missing is told by itself
    "days of trade, declared": lambda: pandas.bdate_range("2020-01-01", periods=ROWS),
    "days of trade": lambda: without_frequency(pandas.bdate_range("2020-01-01", periods=ROWS)),
    "days": lambda: without_frequency(pandas.date_range("2020-01-01", periods=ROWS)),
    "days of a zone": lambda: pandas.date_range("2020-01-01", periods=ROWS, tz="Europe/Rome"),
    "days of trade of a zone": lambda: pandas.bdate_range("2020-01-01", periods=ROWS, tz="America/New_York"),
    "hours of a zone": lambda: pandas.date_range("2020-03-20", periods=ROWS, freq="h", tz="Europe/Rome"),
    "weeks": lambda: pandas.date_range("2000-01-05", periods=ROWS, freq="W-WED"),
    "month starts": lambda: without_frequency(month_starts()),
    "month ends": lambda: pandas.date_range("1980-01-31", periods=ROWS, freq="ME"),
    "ends of months of trade": lambda: without_frequency(pandas.date_range("1980-01-31", periods=ROWS, freq="BME")),
    "quarters": lambda: pandas.period_range("1900Q1", periods=ROWS, freq="Q"),
    "months": lambda: pandas.period_range("1980-01", periods=ROWS, freq="M"),
    "periods of trade": lambda: pandas.bdate_range("2020-01-01", periods=ROWS).to_period("D"),
    "counts": lambda: pandas.RangeIndex(7, 7 + ROWS),
    "years": lambda: pandas.Index(np.arange(1600, 1600 + ROWS)),
    "floats": lambda: pandas.Index(1e3 + 0.1 * np.arange(ROWS)),
    "spans": lambda: pandas.timedelta_range(0, periods=ROWS, freq="15min"),
    "jittered": jittered,
    "dates": lambda: pandas.Index([day.date() for day in pandas.date_range("2020-01-01", periods=ROWS)]),
    "categories": lambda: pandas.CategoricalIndex(pandas.date_range("2020-01-01", periods=ROWS)),
    "levels": lambda: pandas.MultiIndex.from_product([["A"], pandas.date_range("2020-01-01", periods=ROWS)]),
    "intervals": lambda: pandas.interval_range(0, ROWS),
}
LOOSE = {"holidays": holidays, "bars": bars}
exactly = pytest.mark.parametrize("index", EXACT.values(), ids=EXACT)
at_all = pytest.mark.parametrize("index", [*EXACT.values(), *LOOSE.values()], ids=[*EXACT, *LOOSE])


@pytest.fixture(scope="module")
def series():
    return np.cumsum(np.random.default_rng(3).standard_normal((ROWS, 2)), axis=0)


@pytest.fixture(scope="module")
def whole(series):
    return fdiff(series, ALPHA, axis=0, window=WINDOW)


def near(found, expected):
    return np.allclose(np.asarray(found), expected, rtol=0, atol=1e-12)


@at_all
@pytest.mark.filterwarnings("error")
def test_rows_of_folds_are_those_of_the_whole_series_whatever_the_times_are(series, whole, index):
    frame = pandas.DataFrame(series, index=index(), columns=["a", "b"])
    for train, test in TimeSeriesSplit(4).split(frame):
        fitted = taken().fit(frame.iloc[train])
        assert near(fitted.transform(frame.iloc[test]), whole[test])
        assert near(fitted.transform(frame.iloc[test[:1]]), whole[test[:1]])
        assert near(fitted.transform(frame), whole)


@exactly
@pytest.mark.filterwarnings("error")
def test_one_row_between_training_and_test_is_a_gap(series, index):
    frame = pandas.DataFrame(series, index=index())
    for train, test in TimeSeriesSplit(4, gap=1).split(frame):
        with pytest.raises(
            ValueError, match=r"^FractionalDifferencer.transform\(X\): needs the rows that follow.*row 0, "
        ):
            taken().fit(frame.iloc[train]).transform(frame.iloc[test])


@pytest.mark.parametrize(("index", "most"), [(holidays, 1), (bars, 7)], ids=LOOSE)
def test_of_times_without_a_frequency_the_longest_step_is_allowed(series, index, most):
    frame = pandas.DataFrame(series, index=index())
    fitted = taken().fit(frame[:210])
    assert fitted.transform(frame[210 + most :]).shape == (ROWS - 210 - most, 2)
    with pytest.raises(ValueError, match=r"row 0, .* comes .* after the row before, where steps are"):
        fitted.transform(frame[210 + 4 * most :])


KNOWN = ("days of trade, declared", "days", "hours of a zone", "months", "quarters", "years", "floats", "spans")


@pytest.mark.parametrize("index", [EXACT[name] for name in KNOWN], ids=KNOWN)
def test_rows_are_missing_among_those_given_where_the_training_rows_have_a_frequency(series, index):
    frame = pandas.DataFrame(series, index=index())
    fitted = taken().fit(frame.iloc[:300])
    for given in (frame.iloc[300:], frame):
        holed = given.drop(given.index[-60])
        with pytest.raises(ValueError, match=r"needs the rows that follow|needs all rows of a regular index"):
            fitted.transform(holed)
        with pytest.raises(ValueError, match=r"needs the rows that follow|needs all rows of a regular index"):
            fitted.inverse_transform(holed)


MISSING = [
    (EXACT["days"], "X.asfreq('D')"),
    (EXACT["days of a zone"], "X.asfreq('D')"),
    (EXACT["hours of a zone"], "X.asfreq('h')"),
    (EXACT["weeks"], "X.asfreq('W-WED')"),
    (EXACT["month starts"], "X.asfreq('MS')"),
    (EXACT["month ends"], "X.asfreq('ME')"),
    (EXACT["months"], "X.reindex(pandas.period_range(X.index[0], X.index[-1]))"),
    (EXACT["years"], f"X.reindex(range(1600, {1600 + ROWS}, 1))"),
    (EXACT["floats"], "X.reindex(...)"),
    (EXACT["dates"], "X.set_axis(pandas.to_datetime(X.index)).asfreq('D')"),
]


@pytest.mark.parametrize(("index", "way_out"), MISSING, ids=[each[1] for each in MISSING])
def test_training_rows_that_are_missing_from_a_regular_index_are_named(series, index, way_out):
    frame = pandas.DataFrame(series, index=index()).drop(index()[[150, 151, 300]])
    message = f"FractionalDifferencer(X): needs all rows of a regular index; before row 150, {index()[152]}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as raised:
        taken().fit(frame)
    assert f"make them gaps, {way_out}, or, where" in str(raised.value)
    assert "X.reset_index(drop=True)" in str(raised.value)
    if "..." not in way_out:
        filled = taken().fit_transform(eval(way_out, {"X": frame, "pandas": pandas}))
        assert np.isnan(np.asarray(filled)[150:152]).all()
    assert near(taken().fit_transform(frame.reset_index(drop=True)), fdiff(frame.to_numpy(), ALPHA, 0, WINDOW))


def test_rows_that_are_numbered_before_they_are_split_tell_any_gap(series, whole):
    frame = pandas.DataFrame(series, index=holidays()).reset_index(drop=True)
    model = make_pipeline(taken(), Ridge())
    assert np.isfinite(cross_val_score(model, frame, series[:, 0], cv=TimeSeriesSplit(5))).all()
    with pytest.raises(ValueError, match="row 0, 70, is not the row that comes next, 69"):
        cross_val_score(model, frame, series[:, 0], cv=TimeSeriesSplit(5, gap=1), error_score="raise")
    fitted = taken().fit(frame[:300])
    with pytest.raises(ValueError, match="before row 50, 351, some are missing"):
        fitted.transform(frame[300:].drop(350).iloc[:90])


def test_the_first_days_of_a_week_are_no_days_of_all_weeks(series, whole):
    frame = pandas.DataFrame(series, index=without_frequency(pandas.bdate_range("2024-01-01", periods=ROWS)))
    fitted = FractionalDifferencer(ALPHA, window=WINDOW).fit(frame[:5])
    for rows in (frame[5:], frame[5:6]):
        assert near(fitted.transform(rows), whole[5 : 5 + len(rows)])


@pytest.mark.parametrize("kind", [FractionalDifferencer, StationaryDifferencer])
@pytest.mark.parametrize("given", ["us", "s"])
def test_units_of_time_count_for_nothing(series, kind, given):
    frame = pandas.DataFrame(series, index=pandas.bdate_range("2020-01-01", periods=ROWS).as_unit("ns"))
    other = frame.set_axis(frame.index.as_unit(given))
    fitted = kind(window=WINDOW).fit(frame[:300])
    for rows in (slice(300, None), slice(None), slice(0, 300)):
        assert near(fitted.transform(other[rows]), fitted.transform(frame[rows]))


TEXTS = [
    "2020-01-{:02}",
    "2020-1-{}",
    "2020/01/{:02}",
    "{:02}.01.2020",
    "1/{}/2020",
    "2020-01-{:02}T00:00:00Z",
    "202001{:02}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_dates_that_are_texts_are_an_error_that_says_how_to_convert_them(series, text):
    frame = pandas.DataFrame(series[:20], index=[text.format(day) for day in range(1, 21)])
    shown = text.format(1)
    message = f"(X whose index holds texts such as '{shown}'): needs times as such; convert them, X.set_axis(pandas.to_"
    with pytest.raises(TypeError, match=re.escape(message)):
        taken().fit(frame)
    with pytest.raises(TypeError, match=r"^fdiff\(a whose index holds texts such as"):
        fdiff(frame[::-1].set_axis(pandas.CategoricalIndex(frame.index)), ALPHA)


@pytest.mark.parametrize("labels", ["row {}", "{}", "2020-{:02}-A", "1.2.{}", "202013{:02}"])
def test_names_are_no_times(series, labels):
    frame = pandas.DataFrame(series[:20], index=[labels.format(i) for i in range(20)])
    assert near(fdiff(frame[::-1], ALPHA), fdiff(series[:20][::-1], ALPHA, 0))


@pytest.mark.parametrize("name", ["dates", "categories", "levels", "intervals", "months", "floats", "spans"])
def test_times_in_any_form_have_to_increase(series, name):
    frame = pandas.DataFrame(series, index=EXACT[name]())
    with pytest.raises(ValueError, match=r"^fdiff\(a\): needs times that increase; row 1 is "):
        fdiff(frame[::-1], ALPHA)
    with pytest.raises(ValueError, match=r"^FractionalDifferencer\(X\): needs times that increase; row 3 is "):
        taken().fit(frame.iloc[[0, 1, 3, 2]])
    found = fdiff(frame, ALPHA)
    assert found.index.equals(frame.index)


@pytest.mark.parametrize("at", [0, -1])
def test_times_are_finite(series, at):
    times = np.arange(float(ROWS))
    times[at] = np.inf if at else -np.inf
    with pytest.raises(ValueError, match=r"^fdiff\(a\): needs finite times; they go from .*inf"):
        fdiff(pandas.DataFrame(series, index=times), ALPHA)


def test_dates_and_times_of_one_moment_are_the_same(series, whole):
    frame = pandas.DataFrame(series, index=EXACT["dates"]())
    fitted = taken().fit(frame[:300])
    assert isinstance(frame.index[0], datetime.date)
    assert near(fitted.transform(frame[300:].set_axis(pandas.to_datetime(frame.index[300:]))), whole[300:])


def test_times_of_a_clock_that_changes_are_read_one_by_one(series, whole):
    """As a file has them that was written in local time."""
    local = pandas.date_range("2020-01-01", periods=ROWS, tz="Europe/Rome")
    frame = pandas.DataFrame(series, index=pandas.Index([datetime.datetime.fromisoformat(str(t)) for t in local]))
    assert frame.index.dtype == object
    assert near(taken().fit(frame[:300]).transform(frame[300:]), whole[300:])
    with pytest.raises(ValueError, match="needs times that increase; row 1 is "):
        fdiff(frame[::-1], ALPHA)
    with pytest.raises(ValueError, match=r"row 0, .* comes 2 days after the row before"):
        taken().fit(frame[:300]).transform(frame[301:])


def test_what_belongs_to_a_table_stays(series):
    frame = pandas.DataFrame(series, index=EXACT["days"]())
    frame.attrs["unit"] = "USD"
    fitted = taken().fit(frame)
    assert fitted.transform(frame).attrs == {"unit": "USD"}
    with pytest.raises(
        TypeError, match=r"^FractionalDifferencer.inverse_transform\(X: column 'index' of dtype datetime"
    ):
        fitted.inverse_transform(fitted.transform(frame).reset_index())


def test_columns_of_times_are_no_features(series):
    days = pandas.date_range("2020-01-01", periods=ROWS)
    frame = pandas.DataFrame(series, columns=["a", "b"]).assign(day=days)
    for table in (frame, frame.assign(day=days.strftime("%Y-%m-%d"))):
        with pytest.raises(TypeError, match=r"^FractionalDifferencer\(X: column 'day' .*X\..*set_index\('day'\)"):
            taken().fit(table)
    polars = pytest.importorskip("polars")
    dated = polars.DataFrame({"day": days.to_numpy(), "a": series[:, 0]})
    for table in (dated, dated.with_columns(polars.col("day").cast(polars.Date).cast(polars.String))):
        with pytest.raises(TypeError, match=r"^FractionalDifferencer\(X: column 'day' of dtype .*X\.drop\('day'\)"):
            taken().fit(table)
    with pytest.raises(
        TypeError, match=r"^FractionalDifferencer\(X of type LazyFrame\): needs its rows; pass X.collect"
    ):
        taken().fit(dated.lazy())


def test_time_lies_along_the_rows_of_an_xarray_object(series):
    xarray = pytest.importorskip("xarray")
    days = pandas.date_range("2020-01-01", periods=ROWS)
    array = xarray.DataArray(series.T, {"day": days, "k": ["a", "b"]}, ("k", "day"))
    with pytest.raises(ValueError, match=r"^FractionalDifferencer\(X of dimensions \('k', 'day'\)\): needs time along"):
        taken().fit(array)
    assert near(taken().fit_transform(array.transpose("day", ...)), fdiff(array, ALPHA, dim="day", window=WINDOW).T)


def test_an_xarray_object_with_irregular_times_goes_on(series, whole):
    xarray = pytest.importorskip("xarray")
    clock = np.cumsum(np.random.default_rng(0).uniform(1, 2, ROWS))
    for times in (clock, np.datetime64("2020-01-01", "ns") + (1e9 * clock).astype("timedelta64[ns]")):
        array = xarray.DataArray(series, dims=("t", "k"), coords={"t": times})
        fitted = taken().fit(array[:300])
        assert near(fitted.transform(array[300:]), whole[300:])
        with pytest.raises(ValueError, match=r"row 0, .* after the row before.*X\.assign_coords\(t=range\(len"):
            fitted.transform(array[302:])
    daily = array.assign_coords(t=pandas.date_range("2020-01-01", periods=ROWS))
    with pytest.raises(ValueError, match=r"before row 7, .*X\.resample\(t='D'\)\.asfreq\(\)"):
        taken().fit(daily[np.arange(ROWS) != 7])
    with pytest.raises(TypeError, match=r"^fdiff\(a whose dimension 't' holds texts such as '2020-01-01'"):
        fdiff(daily.assign_coords(t=daily.indexes["t"].strftime("%Y-%m-%d")), ALPHA, dim="t")
    with pytest.raises(ValueError, match=r"sort them \(a\.sortby\('t'\)\)"):
        fdiff(daily[::-1], ALPHA, dim="t")


def test_no_warning_of_pandas_reaches_the_caller(series):
    frame = pandas.DataFrame(series, index=EXACT["days"]())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taken().fit(frame[:300]).transform(frame[300:])
