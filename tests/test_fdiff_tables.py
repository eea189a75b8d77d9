"""Differences of tables: pandas, polars and xarray keep their types, labels and the direction of time."""

import re
from typing import Any

import numpy as np
import pytest

from hpfracc_nn import fdiff

ROWS = 40
ORDERS = (-1, 0.4, 1, 2.3)
orders = pytest.mark.parametrize("n", ORDERS)


@pytest.fixture
def a():
    return np.cumsum(np.random.default_rng(0).standard_normal((ROWS, 3)), axis=0)


def near(found, expected):
    return np.allclose(np.asarray(found), expected, rtol=0, atol=1e-12 * max(1, np.abs(expected).max()), equal_nan=True)


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


@pytest.fixture
def polars():
    return pytest.importorskip("polars")


@pytest.fixture
def xarray():
    return pytest.importorskip("xarray")


@pytest.fixture
def days(pandas):
    return pandas.bdate_range("2024-01-01", periods=ROWS, name="day")


@orders
@pytest.mark.parametrize(("window", "mode"), [(None, "same"), (7, "same"), (7, "valid")])
def test_a_frame_is_differenced_down_its_rows_and_stays_one(pandas, days, a, n, window, mode):
    frame = pandas.DataFrame(a, columns=["x", "y", "y"], index=days)  # names may stand twice
    frame.attrs["unit"] = "USD"
    found = fdiff(frame, n, window=window, mode=mode)
    expected = fdiff(a, n, 0, window, mode)
    assert type(found) is pandas.DataFrame
    assert near(found, expected)
    assert found.index.equals(days[ROWS - len(expected) :])
    assert found.index.name == "day"
    assert list(found.columns) == ["x", "y", "y"]
    assert found.attrs == {"unit": "USD"}
    assert fdiff(frame, n, 0, window, mode).equals(found)
    series = fdiff(frame["x"], n, window=window, mode=mode)
    assert type(series) is pandas.Series
    assert series.name == "x"
    assert near(series, expected[:, 0])
    across = fdiff(frame, 1, axis=1, mode="valid")
    assert list(across.columns) == ["y", "y"]
    assert near(across, np.diff(a, axis=1))


def test_columns_keep_their_types_and_missing_values_are_gaps(pandas, a):
    whole = np.arange(ROWS) ** 2
    holed = pandas.array([None if i == 5 else i for i in range(ROWS)], dtype="Int64")
    frame = pandas.DataFrame({"f": a[:, 0].astype(np.float32), "i": whole, "b": whole % 2 == 0, "n": holed})
    found = fdiff(frame, 0.4, window=7)
    assert [str(dtype) for dtype in found.dtypes] == ["float32", "float64", "float64", "float64"]
    assert near(found["i"], fdiff(whole, 0.4, window=7))
    assert np.flatnonzero(found["n"].isna()).tolist() == list(range(5, 12))
    exact = fdiff(frame[["f", "i"]], 1, mode="valid")
    assert [str(dtype) for dtype in exact.dtypes] == ["float32", "int64"]
    assert np.array_equal(exact["i"], np.diff(whole))
    filled = fdiff(pandas.Series(pandas.array(np.arange(5), dtype="Int32")), 1)
    assert filled.dtype == np.int32


def test_tables_without_rows_or_columns_are_taken(pandas, days):
    assert fdiff(pandas.DataFrame(index=days), 0.4).shape == (ROWS, 0)
    assert fdiff(pandas.DataFrame({"x": []}), 0.4).shape == (0, 1)


@orders
@pytest.mark.parametrize("mode", ["same", "valid"])
def test_a_polars_frame_keeps_its_column_of_times(polars, days, a, n, mode):
    frame = polars.DataFrame({"x": a[:, 0], "day": days.to_numpy(), "y": a[:, 1].astype(np.float32)})
    found = fdiff(frame, n, window=7, mode=mode)
    expected = fdiff(a[:, 0], n, window=7, mode=mode)
    assert type(found) is polars.DataFrame
    assert found.columns == ["x", "day", "y"]
    assert found.dtypes == frame.dtypes
    assert found["day"].equals(frame["day"][ROWS - len(expected) :])
    assert near(found["x"], expected)
    series = fdiff(frame["x"], n, window=7, mode=mode)
    assert type(series) is polars.Series
    assert series.name == "x"
    assert near(series, expected)


def test_a_column_of_times_may_be_named_in_polars(polars, a):
    frame = polars.DataFrame({"t": np.arange(ROWS), "x": a[:, 0]})
    assert fdiff(frame, 0.4, dim="t")["t"].equals(frame["t"])
    assert near(fdiff(frame, 0.4)["t"], fdiff(np.arange(ROWS), 0.4))
    holed = frame.with_columns(polars.when(polars.col("t") != 5).then(polars.col("x")).alias("x"))
    assert np.flatnonzero(np.isnan(fdiff(holed, 0.4, window=7)["x"].to_numpy())).tolist() == list(range(5, 12))


@orders
@pytest.mark.parametrize("mode", ["same", "valid"])
def test_an_xarray_object_is_differenced_along_its_time(xarray, days, a, n, mode):
    array = xarray.DataArray(a.T, dims=("ticker", "time"), coords={"time": days.to_numpy(), "ticker": list("xyz")})
    array.attrs["unit"] = "USD"
    expected = fdiff(a.T, n, window=7, mode=mode)
    found = fdiff(array, n, window=7, mode=mode)
    assert type(found) is xarray.DataArray
    assert found.dims == ("ticker", "time")
    assert found.attrs == {"unit": "USD"}
    assert found.coords["time"].equals(array.coords["time"][ROWS - expected.shape[1] :])
    assert near(found, expected)
    for other in (fdiff(array, n, 1, 7, mode), fdiff(array, n, window=7, mode=mode, dim="time")):
        assert other.identical(found)
    assert near(fdiff(array[0], n, window=7, mode=mode), expected[0])
    renamed = array.rename(time="t")
    assert fdiff(renamed, n, window=7, mode=mode, dim="t").rename(t="time").identical(found)
    both = xarray.Dataset({"price": array, "lot": ("ticker", [1, 2, 3])})
    rows = fdiff(both, n, window=7, mode=mode)
    assert rows["price"].equals(found)
    assert rows["lot"].equals(both["lot"])


def test_the_opposite_order_gives_the_table_back(pandas, days, a):
    frame = pandas.DataFrame(a, index=days)
    pandas.testing.assert_frame_equal(fdiff(fdiff(frame, 0.4), -0.4), frame)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_samples_before_and_after_are_those_of_diff(framework, dtype, a):
    if framework == "jax":
        module = pytest.importorskip("jax.numpy")
        take, diff = module.asarray, module.diff
    elif framework == "torch":
        module = pytest.importorskip("torch")
        take, diff = module.as_tensor, module.diff
    else:
        take, diff = np.asarray, np.diff
    x = take((10 * a).astype(dtype))
    for n in (1, 2):
        found = fdiff(x, n, 0, mode="valid", prepend=x[:2], append=x[:1])
        expected = diff(x, n=n, **{"dim" if framework == "torch" else "axis": 0}, prepend=x[:2], append=x[:1])
        assert found.dtype == expected.dtype
        assert np.array_equal(np.asarray(found), np.asarray(expected))
    if framework != "torch":  # torch.diff takes tensors alone
        for end in (0, 0.5):
            found = fdiff(x, 1, mode="valid", prepend=end)
            expected = diff(x, prepend=end)
            assert found.dtype == expected.dtype
            assert np.array_equal(np.asarray(found), np.asarray(expected))
    extended = np.concatenate([np.zeros((ROWS, 1)), np.asarray(x), np.ones((ROWS, 1))], axis=1)
    found = np.asarray(fdiff(x, 0.4, prepend=0, append=1))
    assert np.allclose(found, fdiff(extended, 0.4), rtol=0, atol=1e-4)  # of JAX's single precision


def test_rows_before_and_after_a_table_are_tables(pandas, polars, xarray, days, a):
    frame = pandas.DataFrame(a, index=days)
    tables = {
        pandas: frame,
        polars: polars.DataFrame({"day": days.to_numpy(), "x": a[:, 0]}),
        xarray: xarray.DataArray(a, dims=("time", "ticker"), coords={"time": days.to_numpy()}),
    }
    for table in tables.values():
        found = fdiff(table[10:30], 0.4, window=5, prepend=table[:10], append=table[30:])
        assert found.equals(fdiff(table, 0.4, window=5))
        later = fdiff(table[10:], 0.4, window=5, mode="valid", prepend=table[6:10])
        assert len(later) == ROWS - 10


def test_rows_before_and_after_that_overlap_are_told_from_unsorted_ones(pandas, polars, xarray, days, a):
    tables = (
        pandas.DataFrame(a, index=days),
        polars.DataFrame({"day": days.to_numpy(), "x": a[:, 0]}),
        xarray.DataArray(a, dims=("time", "ticker"), coords={"time": days.to_numpy()}),
    )
    for table in tables:
        with pytest.raises(
            ValueError, match=r"^fdiff\(a\): needs rows after those of prepend; they overlap: row 0 of a, "
        ):
            fdiff(table[10:], 0.4, prepend=table[5:11])
        with pytest.raises(ValueError, match=r"^fdiff\(append\): needs rows after those of a; they overlap: row 0 of "):
            fdiff(table[:20], 0.4, append=table[10:])


def test_rows_before_are_matched_by_names_and_keep_those_of_the_table(pandas, polars, xarray, days, a):
    frame = pandas.DataFrame(a[:, :2], columns=["x", "y"], index=days)
    frame.attrs["unit"] = "USD"
    expected = fdiff(frame, 0.4)
    before = frame[["y", "x"]][:10].rename_axis("other")
    found = fdiff(frame[10:], 0.4, prepend=before)
    pandas.testing.assert_frame_equal(found, expected)
    assert found.index.name == "day"
    assert found.attrs == {"unit": "USD"}
    assert fdiff(frame["x"][10:], 0.4, prepend=frame["x"][:10].rename("other")).name == "x"
    twice = frame.set_axis(["x", "x"], axis=1)
    assert near(fdiff(twice[10:], 0.4, prepend=twice[:10]), expected.to_numpy())

    table = polars.DataFrame({"day": days.to_numpy(), "x": a[:, 0], "y": a[:, 1]})
    found = fdiff(table[10:], 0.4, prepend=table[:10].select("y", "day", "x"))
    assert found.equals(fdiff(table, 0.4))
    whole = polars.DataFrame({"x": np.arange(5)})
    assert near(fdiff(whole.cast(float)[2:], 0.4, prepend=whole[:2])["x"], fdiff(np.arange(5.0), 0.4))
    assert fdiff(table["x"][10:], 0.4, prepend=table["x"][:10].rename("other")).name == "x"
    assert near(fdiff(whole["x"].cast(float)[2:], 0.4, prepend=whole["x"][:2]), fdiff(np.arange(5.0), 0.4))

    array = xarray.DataArray(a, {"time": days.to_numpy(), "k": list("xyz")}, ("time", "k"), "price", {"unit": "USD"})
    array.encoding, lots = {}, xarray.DataArray([1, 2, 3], dims="k")
    for order in (array[:10, ::-1], array[:10].T, array[:10].rename("other").assign_attrs(unit="EUR")):
        assert fdiff(array[10:], 0.4, prepend=order).identical(fdiff(array, 0.4))
    both = xarray.Dataset({"price": array, "lot": lots})
    before = both.isel(time=slice(10)).assign_coords(place="here").assign(lot=0 * lots)
    both = both.assign_coords(place="there")
    assert fdiff(both.isel(time=slice(10, None)), 0.4, prepend=before).identical(fdiff(both, 0.4))
    assert fdiff(both.isel(time=slice(10, None)), 0.4, prepend=both.isel(time=slice(10))).identical(fdiff(both, 0.4))


def test_rows_that_two_tables_count_from_zero_are_counted_on(pandas, a):
    frame = pandas.DataFrame(a)
    found = fdiff(frame[10:].reset_index(drop=True), 0.4, prepend=frame[:10], append=frame[:5])
    pandas.testing.assert_frame_equal(found, fdiff(pandas.concat([frame, frame[:5]], ignore_index=True), 0.4))


def test_tables_that_are_empty_go_before_and_after(pandas, polars, xarray, days, a):
    frame = pandas.DataFrame(a, index=days)
    dated = polars.DataFrame({"day": days.to_numpy(), "x": a[:, 0]})
    array = xarray.DataArray(a, dims=("time", "ticker"), coords={"time": days.to_numpy()})
    for table in (frame, dated, array):
        assert fdiff(table, 0.4, prepend=table[:0], append=table[:0]).equals(fdiff(table, 0.4))


def test_a_dataset_without_a_variable_along_time_stays(xarray, days):
    whole = xarray.Dataset({"lot": ("k", [1, 2])}, {"time": days.to_numpy()})
    assert fdiff(whole, 0.4).identical(whole)


def test_decimals_are_numbers(polars):
    column = polars.Series("x", [1.25, 2.5, 4.0]).cast(polars.Decimal(10, 2))
    assert near(fdiff(column, 0.4), fdiff(np.array([1.25, 2.5, 4.0]), 0.4))


def test_a_row_between_two_tables_is_a_gap(pandas, polars, xarray, days, a):
    frame = pandas.DataFrame(a, index=days)
    array = xarray.DataArray(a, dims=("time", "ticker"), coords={"time": days.to_numpy()})
    clocks = {
        "days of trade": days.to_numpy(),
        "days": list(pandas.date_range("2024-01-01", periods=ROWS).date),
        "months": pandas.date_range("2020-01-31", periods=ROWS, freq="ME").date.tolist(),
        "numbers": 0.5 * np.arange(ROWS),
    }
    dated = [polars.DataFrame({"t": clock, "x": a[:, 0]}) for clock in clocks.values()]
    zone = polars.col("t").cast(polars.Datetime).dt.replace_time_zone("Europe/Rome")
    dated.append(dated[1].with_columns(zone))
    for table in (frame, frame.tz_localize("Europe/Rome"), frame.to_period("M").set_axis(range(ROWS)), array, *dated):
        options: dict[str, Any] = {"dim": "t"} if type(table) is polars.DataFrame else {}
        whole = fdiff(table, 0.4, **options)
        assert fdiff(table[20:], 0.4, prepend=table[10:20], append=None, **options).equals(
            fdiff(table[10:], 0.4, **options)
        )
        assert fdiff(table[1:], 0.4, prepend=table[:1], **options).equals(whole)
        for before, after in ((10, 11), (20, 22), (1, 2)):
            with pytest.raises(ValueError, match=r"^fdiff\(a\): needs rows that go on where those before end; row 0, "):
                fdiff(table[after:], 0.4, prepend=table[:before], **options)
            with pytest.raises(ValueError, match=r"^fdiff\(append\): needs rows that go on where those before end; "):
                fdiff(table[:before], 0.4, append=table[after:], **options)


def faults(pandas, polars, xarray, days, a):
    frame = pandas.DataFrame(a, columns=list("xyz"), index=days)
    panel = pandas.DataFrame(a, index=pandas.MultiIndex.from_product([["A", "B"], range(20)], names=["ticker", "t"]))
    array = xarray.DataArray(a, dims=("day", "ticker"), coords={"day": days.to_numpy()})
    text = frame["x"].astype(str).dtype
    named = array.assign_coords(ticker=list("xyz"))
    lazy = polars.DataFrame({"x": a[:, 0]}).lazy()
    dated = polars.DataFrame({"day": days.to_numpy(), "x": a[:, 0]})
    date = dated[:10].with_columns(polars.col("day").cast(polars.Date))
    row = "fdiff(a): needs times that increase; row "
    later = row + "3 is 2024-01-0"
    return [
        (frame.iloc[[0, 1, 3, 2]], {}, ValueError, later + "3 00:00:00 and the row before 2024-01-04 00:00:00; sort"),
        (frame.iloc[[0, 1, 2, 2]], {}, ValueError, later + "3 00:00:00 and the row before 2024-01-03 00:00:00; sort"),
        (frame["x"].iloc[[0, 1, 3, 2]], {}, ValueError, later),
        (frame[::-1], {}, ValueError, row + "1 is 2024-02-22"),
        (frame.set_index(days.where(days != days[2])), {}, ValueError, row + "2 is NaT"),
        (frame.set_index(days.where(days != days[0])), {}, ValueError, row + "1 is 2024-01-02"),
        (dated[[0, 1, 3, 2]], {}, ValueError, later),
        (array[[0, 1, 2, 2]], {"dim": "day"}, ValueError, later),
        (frame.reset_index(), {}, TypeError, "fdiff(a: column 'day' of dtype datetime64["),
        (frame.assign(x="a"), {}, TypeError, f"fdiff(a: column 'x' of dtype {text}): needs numbers; turn digits into"),
        (frame.assign(x="2024-01-01"), {}, TypeError, f"fdiff(a: column 'x' of dtype {text}): needs numbers; make"),
        (frame["x"].astype(str), {}, TypeError, f"fdiff(a of dtype {text}): needs numbers; turn digits into"),
        (frame["x"].astype(object), {}, TypeError, "fdiff(a of dtype object): needs numbers; turn digits into numbers"),
        (frame[10:], {"prepend": frame[["x"]][:10]}, ValueError, "fdiff(prepend with columns ['x']): needs those of"),
        (frame[10:], {"prepend": frame[:10].tz_localize("UTC")}, ValueError, "fdiff(a with an index of datetime64["),
        (frame[10:], {"prepend": frame[:10].reset_index(drop=True)}, ValueError, "fdiff(a with an index of datetime"),
        (dated[10:], {"prepend": date}, ValueError, "fdiff(a with times of Datetime("),
        (dated[10:], {"prepend": dated[:10, :1]}, ValueError, "fdiff(prepend with columns ['day']): needs those of"),
        (named[10:], {"prepend": named[:10, :2], "dim": "day"}, ValueError, "fdiff(prepend with 'ticker' ['x', 'y'])"),
        (dated.with_columns(s=polars.lit("a")), {}, TypeError, "fdiff(a: column 's' of dtype String): needs numbers;"),
        (panel, {}, ValueError, "fdiff(a with an index of 2 levels): needs the rows of one series, and ['ticker',"),
        (lazy, {}, TypeError, "fdiff(a of type LazyFrame): needs its rows; pass a.collect()."),
        (array, {}, ValueError, "fdiff(dim=None): needs the dimension of time, one of ('day', 'ticker');"),
        (array, {"dim": "time"}, ValueError, "fdiff(dim='time'): needs the dimension of time, one of"),
        (array.astype(str), {"axis": 0}, TypeError, "fdiff(a of dtype <U"),
        (frame, {"axis": 2}, ValueError, "fdiff(axis=2): needs -2 <= axis < 2 for 2 axes;"),
        (dated, {"axis": 1}, ValueError, "fdiff(axis=1): needs a series in each column of a polars frame;"),
        (dated, {"dim": "t"}, ValueError, "fdiff(dim='t'): needs one column of times at most, of ['day', 'x'];"),
        (frame, {"dim": "day"}, ValueError, "fdiff(dim='day'): needs an xarray object or a polars frame;"),
        (a, {"dim": "day"}, ValueError, "fdiff(dim='day'): needs an xarray object or a polars frame;"),
        (frame, {"prepend": 0}, TypeError, "fdiff(prepend of type int): needs what a is, a DataFrame, whose"),
        (a, {"axis": 0, "append": a[:2, :2]}, ValueError, "fdiff(append of shape (2, 2)): needs the shape of a"),
    ]  # fmt: skip


def test_what_cannot_be_differenced_is_an_error(pandas, polars, xarray, days, a):
    for given, options, kind, message in faults(pandas, polars, xarray, days, a):
        with pytest.raises(kind, match=f"^{re.escape(message)}"):
            fdiff(given, 0.4, **options)


def test_labels_that_are_no_times_may_stand_in_any_order(pandas, a):
    frame = pandas.DataFrame(a[:4], index=["d", "a", "b", "a"])
    assert near(fdiff(frame, 0.4), fdiff(a[:4], 0.4, 0))


def test_ways_out_that_are_shown_are_code(pandas, days, a):
    """Of a column of times, as such and as texts; and of rows of several series."""
    frame = pandas.DataFrame(a, columns=list("xyz"), index=days)
    for table in (frame.reset_index(), frame.set_axis(days.strftime("%Y-%m-%d").rename("day")).reset_index()):
        with pytest.raises(TypeError, match="make times the index") as raised:
            fdiff(table, 0.4)
        shown = re.search(r"make times the index \((.*)\), or turn", str(raised.value))
        assert shown is not None
        pandas.testing.assert_frame_equal(
            fdiff(eval(shown[1], {"a": table}), 0.4), fdiff(frame, 0.4), check_index_type=False, check_freq=False
        )
    with pytest.raises(ValueError, match=r"row 40 is 2024-01-01 .*of several series make columns \(a\.pivot\("):
        fdiff(pandas.concat([frame, frame]), 0.4)


def test_groups_of_a_long_table_are_series(pandas, a):
    index = pandas.MultiIndex.from_product([["A", "B"], range(20)], names=["ticker", "t"])
    long = pandas.DataFrame({"x": a[:, 0]}, index=index)
    found = long.groupby("ticker")["x"].transform(lambda x: fdiff(x, 0.4))
    assert near(found, np.concatenate([fdiff(a[:20, 0], 0.4), fdiff(a[20:, 0], 0.4)]))
