"""Fractional features in pipelines: rows that follow the training rows are those of the whole series."""

import pickle
import re

import numpy as np
import pytest

from hpfracc_nn import fdiff

pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline

from hpfracc_nn.preprocessing import FractionalDifferencer, StationaryDifferencer

ROWS, WINDOW, ALPHA = 400, 100, 0.4


@pytest.fixture(scope="module")
def series():
    return np.cumsum(np.random.default_rng(3).standard_normal((ROWS, 2)), axis=0)


def feature(series, policy="fixed"):
    return fdiff(series, ALPHA, axis=0, window=WINDOW if policy == "fixed" else None)


def near(found, expected):
    return np.allclose(np.asarray(found), expected, rtol=0, atol=1e-12)


def at(table):
    """The table, to be taken by rows: pandas takes floats for labels."""
    return getattr(table, "iloc", table)


def array(series):
    return series


def counted(series):
    return pytest.importorskip("pandas").DataFrame(series, columns=["a", "b"])


def dated(series):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(series, columns=["a", "b"], index=pandas.bdate_range("2020-01-01", periods=len(series)))


def zoned(series):
    frame = dated(series)
    return frame.set_index(frame.index.tz_localize("Europe/Rome"))


def monthly(series):
    frame = dated(series)
    pandas = pytest.importorskip("pandas")
    return frame.set_index(pandas.period_range("1990-01", periods=len(frame), freq="M"))


def timed(series):
    return dated(series).set_index(0.1 * np.arange(len(series)) + 1e3)


def named(series):
    return dated(series).set_index(np.array([f"row {i}" for i in range(len(series))]))


def polars_frame(series):
    return pytest.importorskip("polars").DataFrame(series, schema=["a", "b"], orient="row")


def data_array(series):
    xarray = pytest.importorskip("xarray")
    days = np.datetime64("2020-01-01", "ns") + np.arange(len(series)) * np.timedelta64(1, "D")
    return xarray.DataArray(series, dims=("time", "series"), coords={"time": days})


LABELLED = (dated, zoned, monthly, timed, data_array)
TABLES = (array, counted, *LABELLED, named, polars_frame)
tables = pytest.mark.parametrize("table", TABLES)
labelled = pytest.mark.parametrize("table", LABELLED)


def taken(**options):
    return FractionalDifferencer(ALPHA, window=WINDOW, **options)


@tables
@pytest.mark.parametrize("policy", ["fixed", "expanding"])
def test_each_row_of_a_test_fold_is_that_of_the_whole_series(series, table, policy):
    whole, expected = table(series), feature(series, policy)
    for train, test in TimeSeriesSplit(5).split(series):
        fitted = taken(window_policy=policy).fit(at(whole)[: len(train)])
        assert near(fitted.transform(at(whole)[len(train) : test[-1] + 1]), expected[test])
        assert near(fitted.transform(at(whole)[: len(train)]), expected[train])
        assert near(fitted.transform(whole), expected)


@pytest.mark.parametrize("table", [array, counted, dated])
def test_a_pipeline_learns_and_predicts_from_features_of_the_whole_series(series, table):
    X, y, expected = table(series), series[:, 0], feature(series)
    model = make_pipeline(taken(), Ridge())
    split = TimeSeriesSplit(5)
    found = cross_val_score(model, X, y, cv=split)
    by_hand = cross_val_score(Ridge(), expected, y, cv=split)
    assert np.allclose(found, by_hand, rtol=1e-9)
    search = GridSearchCV(model, {"fractionaldifferencer__alpha": [0.2, ALPHA]}, cv=split, return_train_score=True)
    search.fit(X, y)
    which = search.cv_results_["param_fractionaldifferencer__alpha"].tolist().index(ALPHA)
    assert np.allclose([search.cv_results_[f"split{k}_test_score"][which] for k in range(5)], by_hand, rtol=1e-9)
    assert np.allclose(search.predict(X), search.best_estimator_.predict(X))


def test_columns_that_stay_as_they_are_stand_beside_the_features(series):
    frame = dated(series)
    chosen = ColumnTransformer([("memory", taken(), ["a"])], remainder="passthrough")
    for output in ("default", "pandas"):
        chosen.set_output(transform=output).fit(frame[:300])
        found = np.asarray(chosen.transform(frame[300:]))
        assert near(found, np.stack([feature(series)[300:, 0], series[300:, 1]], axis=1))


@tables
def test_tables_come_back_as_they_were_given(series, table):
    whole = table(series)
    found = taken().fit(at(whole)[:300]).transform(at(whole)[300:])
    assert type(found) is type(whole)
    if hasattr(whole, "columns"):
        assert list(found.columns) == list(whole.columns)
    if hasattr(whole, "iloc"):
        assert found.index.equals(whole.index[300:])
    if hasattr(whole, "coords"):
        assert found.coords.equals(at(whole)[300:].coords)


@pytest.mark.parametrize("output", ["pandas", "polars"])
@pytest.mark.parametrize("mode", ["same", "valid"])
@tables
def test_scikit_learn_gives_them_another_type(series, table, output, mode):
    package = pytest.importorskip(output)
    whole = table(series)
    fitted = taken(mode=mode).set_output(transform=output).fit(at(whole)[:300])
    for rows in (whole, at(whole)[300:]):
        found = fitted.transform(rows)
        assert type(found) is package.DataFrame
        assert near(found.to_numpy(), feature(series)[-len(found) :])
        assert len(found) == (100 if len(rows) == 100 else ROWS if mode == "same" else ROWS - WINDOW + 1)


def test_in_mode_valid_rows_that_follow_are_all_there(series):
    fitted = taken(mode="valid").fit(series[:300])
    assert near(fitted.transform(series[300:]), feature(series)[300:])
    assert near(fitted.transform(series[:300]), feature(series)[WINDOW - 1 : 300])
    few = taken(mode="valid").fit(series[: WINDOW - 20])
    assert near(few.transform(series[WINDOW - 20 :]), feature(series)[WINDOW - 1 :])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_the_other_precision_are_the_same_rows(series, dtype):
    fitted = taken().fit(series[:300].astype(np.float32))
    assert np.allclose(fitted.transform(series[:300].astype(dtype)), feature(series)[:300], rtol=0, atol=1e-4)
    later = fitted.transform(series[300:].astype(dtype))
    assert later.dtype == dtype
    assert np.allclose(later, feature(series)[300:], rtol=0, atol=1e-4)  # digits of float32 at 30


def test_clones_forget_and_copies_remember(series):
    fitted = taken().fit(dated(series)[:300])
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.transform(dated(series)[300:]), fitted.transform(dated(series)[300:]))
    assert not hasattr(clone(fitted), "rows_")
    assert fitted.rows_.shape == (WINDOW - 1, 2)


def test_the_rows_kept_are_no_view_of_the_training_rows(series):
    rows = series[:300].copy()
    fitted = taken().fit(rows)
    rows[:] = 0
    assert near(fitted.transform(series[300:]), feature(series)[300:])


def test_the_smallest_stationary_order_goes_on_too(series):
    fitted = StationaryDifferencer(window=30, precision=0.2).fit(series[:300])
    expected = np.stack([fdiff(series[:, j], fitted.alpha_[j], window=30) for j in range(2)], axis=1)
    assert near(fitted.transform(series[300:]), expected[300:])


@labelled
def test_rows_that_do_not_follow_are_refused(series, table):
    whole = table(series)
    fitted = taken().fit(at(whole)[100:300])
    for rows, fault in (
        (at(whole)[:100], "lies before the training rows"),
        (at(whole)[:200], "lies before the training rows"),
        (at(whole)[150:160], "lies among the training rows"),
        (at(whole)[299:], "lies among the training rows"),
        (at(whole)[310:], "the last training row is"),
    ):
        with pytest.raises(ValueError, match=rf"^FractionalDifferencer.transform\(X\): needs .*row 0, .*{fault}"):
            fitted.transform(rows)
    assert near(fitted.transform(at(whole)[100:]), feature(series[100:]))
    with pytest.raises(ValueError, match=r"row 1, .* is not the training row .*, though row 0 is the first of them"):
        fitted.transform(at(whole)[100:300:2])


def test_folds_with_a_gap_or_in_the_middle_are_refused(series):
    X, y = counted(series), series[:, 0]
    model = make_pipeline(taken(), LinearRegression())
    for split in (TimeSeriesSplit(5, gap=3), KFold(5)):
        with pytest.raises(ValueError, match=r"needs the rows that follow the training rows"):
            cross_val_score(model, X, y, cv=split, error_score="raise")


def test_labels_of_another_kind_are_refused(series):
    fitted = taken().fit(dated(series)[:300])
    for rows in (zoned(series)[300:], at(timed(series))[300:]):
        with pytest.raises(
            ValueError, match=r"^FractionalDifferencer.transform\(X with an index of .*\): needs labels"
        ):
            fitted.transform(rows)


def test_rows_that_pandas_counts_anew_follow(series):
    """As of two files, one after the other."""
    later = counted(series[300:])
    for train in (counted(series[:300]), dated(series[:300])):
        assert near(taken().fit(train).transform(later), feature(series)[300:])


@pytest.mark.parametrize("table", [dated, zoned, monthly, timed, data_array])
def test_times_that_do_not_increase_are_an_error_that_names_the_row(series, table):
    whole = table(series)
    for order in ([0, 1, 3, 2, 4], [0, 1, 2, 2, 3]):
        message = r"^FractionalDifferencer\(X\): needs times that increase; row 3 is "
        with pytest.raises(ValueError, match=message):
            taken().fit(at(whole)[np.array(order)])


def test_rows_of_several_series_are_an_error(series):
    pandas = pytest.importorskip("pandas")
    index = pandas.MultiIndex.from_product([["x", "y"], range(ROWS // 2)], names=["ticker", "day"])
    stacked = counted(series).set_index(index)
    message = "FractionalDifferencer(X with an index of 2 levels): needs the rows of one series, and ['ticker', 'day']"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        taken().fit(stacked)
    one = stacked.loc[["x"]]
    assert near(taken().fit(one[:150]).transform(one[150:]), feature(series[:200])[150:])


def test_differences_are_undone_column_by_column() -> None:
    rng = np.random.default_rng(0)
    table = pytest.importorskip("pandas").DataFrame(rng.standard_normal((60, 2)).cumsum(0), columns=["A", "B"])
    taken = FractionalDifferencer([0.1, 0.9], window=20).fit(table)
    with pytest.raises(ValueError, match="feature names"):
        taken.inverse_transform(taken.transform(table)[["B", "A"]])
