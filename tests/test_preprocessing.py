"""Fractional differences as scikit-learn transformers."""

import re
import sys
from typing import Any

import numpy as np
import pytest

from hpfracc_nn import fdiff, preprocessing

pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from statsmodels.tsa.stattools import adfuller

from hpfracc_nn.preprocessing import FractionalDifferencer, StationaryDifferencer


class Untagged:
    """The tag keeps more of scikit-learn's checks from running than it must: here it is off."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # of the estimator it is mixed into
        tags.non_deterministic = False
        return tags


class UntaggedFractional(Untagged, FractionalDifferencer):
    pass


class UntaggedStationary(Untagged, StationaryDifferencer):
    pass


options = pytest.mark.parametrize(
    "given",
    [
        {},
        pytest.param({"window": 5}, marks=pytest.mark.slow),
        pytest.param({"window_policy": "expanding"}, marks=pytest.mark.slow),
    ],
    ids=["defaults", "window", "expanding"],
)


@pytest.fixture(scope="module")
def walks():
    return np.cumsum(np.random.default_rng(0).standard_normal((600, 2)), axis=0)


@options
@pytest.mark.parametrize("kind", [FractionalDifferencer, StationaryDifferencer])
@pytest.mark.filterwarnings("ignore:Skipping check", "ignore:.*keeps its unit root")
def test_it_passes_the_checks_of_scikit_learn(kind, given):
    check_estimator(kind(**given))


@options
@pytest.mark.parametrize("kind", [UntaggedFractional, pytest.param(UntaggedStationary, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:Skipping check", "ignore:.*keeps its unit root")
def test_of_all_checks_only_those_fail_that_take_rows_for_independent(kind, given):
    results = check_estimator(kind(**given), on_fail=None)
    assert {result["check_name"] for result in results if result["status"] == "failed"} <= {
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
    }
    assert len([result for result in results if result["status"] == "passed"]) > 40


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0, -0.3, [0.2, 0.8]])
@pytest.mark.parametrize(("policy", "lags"), [("fixed", 50), ("expanding", None)])
def test_columns_are_differenced_with_the_window(walks, alpha, policy, lags):
    orders = np.broadcast_to(alpha, 2)
    expected = np.stack([fdiff(walks[:, j], float(orders[j]), window=lags) for j in range(2)], axis=1)
    same = FractionalDifferencer(alpha, window=50, window_policy=policy).fit(walks)
    valid = FractionalDifferencer(alpha, window=50, window_policy=policy, mode="valid").fit(walks)
    near = {"rtol": 0, "atol": 1e-12 * np.abs(expected).max()}  # columns together or one by one: FFT's rounding
    assert np.allclose(same.transform(walks), expected, **near)
    assert np.allclose(valid.transform(walks), expected[49:], **near)
    assert same.alpha_.tolist() == orders.tolist()


@pytest.mark.parametrize(
    ("alpha", "policy"),
    [([0.4, 1.2], "expanding"), ([0.4, 1.0], "fixed"), ([-0.7, 0.99], "fixed"), ([2.0, 0.0], "fixed")],
)
def test_what_was_differenced_comes_back(walks, alpha, policy):
    taken = FractionalDifferencer(alpha, window_policy=policy).fit(walks)
    assert np.allclose(taken.inverse_transform(taken.transform(walks)), walks, rtol=0, atol=1e-10)
    single = walks.astype(np.float32)
    assert taken.inverse_transform(taken.transform(single)).dtype == np.float32


@pytest.mark.parametrize("mode", ["same", "valid"])
def test_frames_keep_their_names_and_the_index_of_their_rows(walks, mode):
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2020-01-01", periods=600)
    frame = pandas.DataFrame(walks, columns=["first", "second"], index=days)
    taken = FractionalDifferencer(0.4, window=10, mode=mode).set_output(transform="pandas")
    found = taken.fit_transform(frame)
    assert list(found.columns) == ["first", "second"] == taken.get_feature_names_out().tolist()
    assert (found.index == days[0 if mode == "same" else 9 :]).all()
    assert taken.feature_names_in_.tolist() == ["first", "second"]
    assert FractionalDifferencer(0.4, window=10, mode=mode).fit_transform(frame).equals(found)


@pytest.mark.parametrize("policy", ["fixed", "expanding"])
def test_rows_that_follow_come_back_as_the_table_they_were(walks, policy):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(walks, index=pandas.date_range("2020-01-01", periods=600))
    taken = FractionalDifferencer([0.4, 0.8], window=50, window_policy=policy).fit(frame[:400])
    for rows in (frame, frame[:400], frame[400:], frame[400:401]):
        pandas.testing.assert_frame_equal(taken.inverse_transform(taken.transform(rows)), rows, check_freq=False)


@pytest.mark.parametrize("policy", ["fixed", "expanding"])
def test_forecasts_without_labels_go_on_after_the_training_rows(walks, policy):
    taken = FractionalDifferencer(0.4, window=50, window_policy=policy).fit(walks[:200])
    for rows in (walks[200:], walks[200:203]):  # more than the training rows, and fewer
        assert np.allclose(taken.inverse_transform(taken.transform(rows)), rows, rtol=0, atol=1e-10)
    model = TransformedTargetRegressor(LinearRegression(), transformer=FractionalDifferencer(0.4, window=50))
    differences = fdiff(walks[:, 0], 0.4, window=50)
    model.fit(differences[:200, None], walks[:200, 0])  # told the differences, which it then finds exactly
    assert np.allclose(model.predict(differences[200:, None]), walks[200:, 0], rtol=0, atol=1e-8)


def test_gaps_leave_nan_where_they_have_a_weight(walks):
    holed = walks.copy()
    holed[[100, 398], 0] = np.nan
    taken = FractionalDifferencer(0.4, window=10).fit(holed[:400])
    expected = fdiff(holed, 0.4, axis=0, window=10)
    assert np.allclose(taken.transform(holed[:400]), expected[:400], rtol=0, atol=1e-12, equal_nan=True)
    assert np.allclose(taken.transform(holed[400:]), expected[400:], rtol=0, atol=1e-12, equal_nan=True)
    assert np.isnan(taken.transform(holed[400:])[:, 0]).sum() == 8
    with pytest.raises(ValueError, match="contains NaN"):
        StationaryDifferencer().fit(holed)


def test_it_stands_in_a_pipeline(walks):
    model = make_pipeline(FractionalDifferencer(0.4), LinearRegression()).fit(walks, walks[:, 0])
    model.set_params(fractionaldifferencer__alpha=0.6)
    assert model.fit(walks, walks[:, 0]).predict(walks).shape == (600,)


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        ("valid", "fixed"),
        pytest.param("same", "fixed", marks=pytest.mark.slow),
        pytest.param("same", "expanding", marks=pytest.mark.slow),
        pytest.param("valid", "expanding", marks=pytest.mark.slow),
    ],
)
def test_the_order_found_passes_the_test_and_one_just_below_does_not(walks, mode, policy):
    window = 30
    taken = StationaryDifferencer(window=window, mode=mode, window_policy=policy, precision=0.02).fit(walks)
    assert (taken.pvalues_ <= 0.05).all()
    assert ((taken.alpha_ > 0) & (taken.alpha_ < 1)).all()

    def p_value(column, alpha):
        centred = walks[:, column] - walks[0, column]
        y = fdiff(centred, alpha, window=window if policy == "fixed" else None)
        return adfuller(y[window - 1 if mode == "valid" else 0 :], result_object=True).pvalue

    for column, (alpha, found) in enumerate(zip(taken.alpha_, taken.pvalues_, strict=True)):
        assert p_value(column, alpha) == pytest.approx(found, rel=1e-6)
        assert max(p_value(column, alpha - 0.02 * part) for part in (0.5, 0.75, 1.0)) > 0.05


def test_where_the_whole_window_is_there_the_test_is_of_the_result_itself(walks):
    taken = StationaryDifferencer(window=30, mode="valid")
    found = taken.fit_transform(100 + walks)
    for column in range(2):
        p_value = adfuller(found[:, column], result_object=True).pvalue
        assert p_value == pytest.approx(taken.pvalues_[column], rel=1e-6)  # a constant is not seen


def test_threads_find_the_same_orders(walks):
    found = [StationaryDifferencer(window=30, precision=0.05, n_jobs=jobs).fit(walks) for jobs in (None, 2)]
    assert np.array_equal(found[0].alpha_, found[1].alpha_)
    assert np.allclose(found[0].pvalues_, found[1].pvalues_, rtol=1e-8)  # of another kernel's rounding


def test_a_stationary_column_stays_as_it_is():
    noise = np.random.default_rng(1).standard_normal((300, 1))
    columns = np.concatenate([noise, np.full((300, 1), 5.0)], axis=1)
    taken = StationaryDifferencer().fit(columns)
    assert taken.alpha_.tolist() == [0.0, 0.0]
    assert taken.pvalues_[1] == 0.0
    assert np.array_equal(taken.transform(columns), columns)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.filterwarnings("error")
def test_of_a_straight_line_only_the_whole_difference_is_constant_in_any_units(unit, offset, dtype):
    line = (unit * (0.1 * np.arange(200.0) + offset)).astype(dtype)
    taken = StationaryDifferencer(precision=0.2, window=50, mode="valid").fit(line[:, None])
    assert taken.alpha_[0] == pytest.approx(1.0, abs=1e-6)
    assert taken.pvalues_[0] == 0.0


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
@pytest.mark.filterwarnings("error")
def test_a_straight_line_is_not_stationary_in_mode_same(unit):
    taken = StationaryDifferencer(precision=0.2, window=50).fit(unit * np.arange(200.0)[:, None])
    assert taken.alpha_[0] > 0


@pytest.mark.parametrize("level", [0.0, 1.0, 1e6])
@pytest.mark.filterwarnings("error")
def test_a_column_that_is_constant_up_to_rounding_passes(level):
    column = level * (1 + 1e-16 * np.random.default_rng(0).integers(0, 3, (100, 1)))
    assert StationaryDifferencer().fit(column).alpha_[0] == 0.0


@pytest.mark.parametrize("columns", [100, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*keeps its unit root")
def test_few_rows_of_a_walk_seldom_pass(columns):
    """With all of Schwert's lags 22 of 100 pass at 5 %; at a true size of 10 % more than 16 of 100 have 2 %."""
    walks = np.cumsum(np.random.default_rng(0).standard_normal((columns, 20)), axis=1).T
    taken = StationaryDifferencer(upper=1e-9, precision=1.0, window_policy="expanding").fit(walks)
    assert (taken.pvalues_ <= 0.05).mean() <= 0.16


def test_a_precision_below_rounding_ends(walks):
    taken = StationaryDifferencer(window=30, precision=1e-300, upper=1.0).fit(walks[:100, :1])
    assert 0 < taken.alpha_[0] <= 1


@pytest.mark.parametrize("rows", [10, 50, 89, 105, 150, 177, 187, 300])
def test_a_line_of_many_rows_passes_at_order_1_alone_and_one_of_few_just_above_0(rows):
    """The limits that `docs/differencing.md` gives."""
    alpha = StationaryDifferencer().fit(np.arange(float(rows))[:, None]).alpha_[0]
    assert alpha == (1 if rows >= 187 else 0.00625)  # 0.1 / 2**4: the last halving above 0


def test_a_column_that_never_passes_is_told(walks):
    with pytest.warns(UserWarning, match=r"column 0 keeps its unit root at level 0\.05 up to order 0\.05 \(p-value"):
        taken = StationaryDifferencer(upper=0.05).fit(walks[:, :1])
    assert taken.alpha_ == [0.05]
    assert taken.pvalues_[0] > 0.05


WRONG: list[Any] = [None, 1]  # of another type than the annotation's
TEXT: list[Any] = ["5%"]
X = np.arange(40.0).reshape(20, 2)
FAULTS = [
    (FractionalDifferencer("a"), X, ValueError, "FractionalDifferencer(alpha='a'): needs a finite order, or one for"),
    (FractionalDifferencer(np.nan), X, ValueError, "FractionalDifferencer(alpha=nan): needs a finite order"),
    (FractionalDifferencer([0.1] * 3), X, ValueError, "FractionalDifferencer(alpha of shape (3,)): needs one order,"),
    (FractionalDifferencer(window=0), X, ValueError, "FractionalDifferencer(window=0): needs window >= 1; pass a"),
    (
        FractionalDifferencer(window=WRONG[0]),
        X,
        TypeError,
        "FractionalDifferencer(window=None): needs an integer; pass",
    ),
    (FractionalDifferencer(mode="full"), X, ValueError, "FractionalDifferencer(mode='full'): needs one of 'same',"),
    (
        FractionalDifferencer(window_policy=WRONG[1]),
        X,
        ValueError,
        "FractionalDifferencer(window_policy=1): needs one of",
    ),
    (FractionalDifferencer(mode="valid"), X, ValueError, "FractionalDifferencer(window=100, mode='valid'): needs at"),
    (StationaryDifferencer(1.0), X, ValueError, "StationaryDifferencer(level=1.0): needs 0 < level < 1; pass a part"),
    (
        StationaryDifferencer(5),
        X,
        ValueError,
        "StationaryDifferencer(level=5): needs 0 < level < 1; pass a part of 1, such as level=0.05.",
    ),
    (StationaryDifferencer(TEXT[0]), X, TypeError, "StationaryDifferencer(level='5%'): needs a real number; pass for"),
    (
        StationaryDifferencer(),
        X[:9],
        ValueError,
        "StationaryDifferencer(window=100, mode='same'): needs at least 10 rows",
    ),
    (FractionalDifferencer(), [[1.0], [1.0, 2.0]], ValueError, "FractionalDifferencer(X of type list): needs rows of"),
    (StationaryDifferencer(upper=0), X, ValueError, "StationaryDifferencer(upper=0): needs a finite upper > 0; pass"),
    (StationaryDifferencer(precision=-1), X, ValueError, "StationaryDifferencer(precision=-1): needs a finite"),
    (
        StationaryDifferencer(window=12, mode="valid"),
        X,
        ValueError,
        "StationaryDifferencer(window=12, mode='valid'): needs at least 21 rows to test; X has 20, pass more,",
    ),
]


@pytest.mark.parametrize(("estimator", "given", "kind", "message"), FAULTS, ids=[fault[3][:50] for fault in FAULTS])
def test_what_cannot_be_transformed_is_an_error(estimator, given, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        estimator.fit_transform(given)


def test_what_cannot_be_undone_is_an_error(walks):
    unchanged = FractionalDifferencer(0.0, mode="valid").fit(walks)
    with pytest.raises(ValueError, match=r"mode='valid'\): needs mode='same' to be undone"):
        unchanged.inverse_transform(walks)
    with pytest.raises(ValueError, match=r"alpha=1.5, window=100\): needs an order between -1 and 1 to be undone"):
        FractionalDifferencer(1.5).fit(walks).inverse_transform(walks)
    for alpha, window in ((-1.0, 20), (3.0, 3)):
        cut = FractionalDifferencer(alpha, window=window).fit(walks)
        with pytest.raises(
            ValueError, match=rf"^FractionalDifferencer\(alpha={alpha:g}, window={window}\): needs an order"
        ):
            cut.inverse_transform(cut.transform(walks))
    whole = FractionalDifferencer(2.0, window=3).fit(walks)
    assert whole.inverse_transform(whole.transform(walks)) == pytest.approx(walks, abs=1e-8)  # rounding, summed twice
    with pytest.raises(ValueError, match=r"inverse_transform\(X of 1 columns\): needs 2 columns, as in fit"):
        FractionalDifferencer(window_policy="expanding").fit(walks).inverse_transform(walks[:, :1])
    with pytest.raises(NotFittedError):
        FractionalDifferencer(window_policy="expanding").inverse_transform(walks)


class Absent:
    """A finder by which a package is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name == "sklearn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("name", vars(preprocessing)["__all__"])
def test_a_missing_package_is_named(monkeypatch, name):
    for module in list(sys.modules):
        if module.startswith(("hpfracc_nn.preprocessing.", "sklearn")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(preprocessing, name, raising=False)  # where it was loaded before
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=r"needs the package .*pip install 'hpfracc-nn\[sklearn\]'\."):
        getattr(preprocessing, name)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_column_of_texts_is_named(kind):
    frame = pytest.importorskip(kind).DataFrame({"price": [1.0, 2.0, 3.0], "ticker": ["a", "b", "c"]})
    with pytest.raises(
        ValueError, match=r"^FractionalDifferencer\(X: column 'ticker'\): needs numbers; row 0 is 'a'; "
    ):
        FractionalDifferencer().fit(frame)
