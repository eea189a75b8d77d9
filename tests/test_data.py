"""The loaders and generators."""

import math
import re
import sys

import numpy as np
import pytest

from hpfracc_nn import data
from hpfracc_nn.training import whittle


class Fixed(np.random.Generator):
    """A generator whose normal numbers are given."""

    def __init__(self, numbers):
        super().__init__(np.random.PCG64(0))
        self.numbers = numbers

    def standard_normal(self, size):  # type: ignore[override]
        assert size == len(self.numbers)
        return self.numbers


def test_parkinson_gives_the_variance_whose_expected_range_was_seen():
    # E (log high/low)^2 = 4 log 2 s^2 for a Brownian path of variance s^2 (Parkinson 1980, equation 4).
    variance = np.array([1e-4, 0.3])
    high = np.exp(np.sqrt(4 * math.log(2) * variance))
    assert data.log_parkinson(high, np.ones(2)) == pytest.approx(np.log(variance), rel=1e-12)


@pytest.mark.parametrize(("high", "low"), [(1.0, 1.0), (1.0, 2.0), (1.0, 0.0), (math.nan, 1.0)])
def test_parkinson_names_the_day_that_has_no_range(high, low):
    message = (
        rf"log_parkinson\(high, low\): needs high > low > 0 on every day; day 1 has high={high}, low={low}; "
        "leave such days out."
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        data.log_parkinson([2.0, high], [1.0, low])


def test_the_last_days_of_the_index_are_loaded():
    pytest.importorskip("arch")
    dates, values = data.sp500_volatility(250)
    assert values.shape == dates.shape == (250,)
    assert dates[-1] == np.datetime64("2018-12-31")
    assert (np.diff(dates) > np.timedelta64(0)).all()
    assert np.isfinite(values).all()
    # Daily standard deviation in per cent, a year that went from calm to rough.
    assert 0.3 < 100 * math.exp(values.mean() / 2) < 1.5


@pytest.mark.parametrize("days", [0, 5032])
def test_more_days_than_there_are_is_an_error(days):
    pytest.importorskip("arch")
    message = rf"sp500_volatility\(days={days}\): needs 0 < days <= 5031; pass fewer days."
    with pytest.raises(ValueError, match=f"^{message}$"):
        data.sp500_volatility(days)


def test_a_missing_package_is_named_with_the_way_out(monkeypatch):
    monkeypatch.delitem(sys.modules, "arch.data.sp500", raising=False)
    monkeypatch.delitem(sys.modules, "arch.data", raising=False)
    monkeypatch.setitem(sys.modules, "arch", None)
    message = (
        r"sp500_volatility\(\): needs the package 'arch' for the prices; pip install 'hpfracc-nn\[data\]', "
        "or use a series of your own."
    )
    with pytest.raises(ModuleNotFoundError, match=f"^{message}$"):
        data.sp500_volatility()


def test_a_column_is_read_in_order(tmp_path):
    file = tmp_path / "series.csv"
    file.write_text('\ufeffday, "x, y"\n1, 2.5\n2, -1e3\n', encoding="utf-8")
    assert data.read_column(file, "x, y").tolist() == [2.5, -1000.0]


COLUMN_FAULTS = [
    ("a,b\n1,2\n", "c", r"no column 'c'; pass one of the columns there are: 'a', 'b'\."),
    ("", "c", r"no column 'c'; pass one of the columns there are: none\."),
    (
        "a,b\n1,2\n3,\n",
        "b",
        r"line 3, column 'b': needs a finite number, holds ''; fill the gap or leave the line out\.",
    ),
    (
        "a,b\n1\n",
        "b",
        r"line 2, column 'b': needs a finite number, holds None; fill the gap or leave the line out\.",
    ),
    (
        "a\nnan\n",
        "a",
        r"line 2, column 'a': needs a finite number, holds 'nan'; fill the gap or leave the line out\.",
    ),
    (
        "a\n3 %\n",
        "a",
        r"line 2, column 'a': needs a finite number, holds '3 %'; fill the gap or leave the line out\.",
    ),
]


LONG = 131_073  # characters: one more than a field of the csv module may have
COLUMN_FAULTS += [
    ("a,b,a\n1,2,3\n", "a", r"needs one column 'a', and columns 1, 3 have that name; rename all but one\."),
    (f"a,b\n1,{'2' * LONG}\n", "a", r"line 2: needs .*; field larger than field limit \(131072\).*"),
    (f"{'a' * LONG},b\n1,2\n", "b", r"line 1: needs .*; field larger than field limit \(131072\).*"),
    ('a,b\n1,"2\n3,4\n', "a", r"line 3: needs .*; unexpected end of data.*"),
    ('a,b\n1,"2" 3\n', "a", r"line 2: needs .*; ',' expected after '\"'.*"),
    ("a,b\n1,234,5\n", "b", r"line 2: needs 2 fields as the header has, holds 3; quote .*"),
    ("a\n1\0\n", "a", r"line 2, column 'a': needs a finite number, holds '1\\x00'; .*"),
    (f"a\n{'x' * 1000}\n", "a", r"holds 'x{40}'\.\.\.; .*"),
    (",".join(map(str, range(10**4))), "a", r"columns there are: '0', '1', .{,400}, \.\.\.\."),
    ("day;a\n1;2\n", "a", r"no column 'a'; pass one of the columns there are: 'day;a'\."),
]


@pytest.mark.parametrize(("text", "column", "message"), COLUMN_FAULTS)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, column, message):
    file = tmp_path / "series.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message + "$"):
        data.read_column(file, column)


@pytest.mark.parametrize("codec", ["utf-16", "utf-32", "latin-1"])
def test_a_file_of_another_encoding_is_named(tmp_path, codec):
    file = tmp_path / "series.csv"
    file.write_text("täglich,a\n1,2\n", encoding=codec)
    with pytest.raises(ValueError, match=r"series\.csv: needs text in UTF-8; .*; save it as UTF-8\.$"):
        data.read_column(file, "a")


def test_lines_that_hold_nothing_and_commas_at_their_ends_are_left_out(tmp_path):
    file = tmp_path / "series.csv"
    file.write_text('a,"5"" pipe",a2\n1,5" x,,\n\n2,"y ""z""",0,,\n', encoding="utf-8")
    assert data.read_column(file, "a").tolist() == [1.0, 2.0]


def test_a_header_alone_has_no_samples(tmp_path):
    file = tmp_path / "series.csv"
    file.write_text("a,b", encoding="utf-8")
    assert data.read_column(file, "a").shape == (0,)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"^no file 'none\.csv'; pass the path of a comma separated file"):
        data.read_column("none.csv", "a")


@pytest.mark.parametrize("alpha", [-0.45, -0.2, 0.0, 0.1, 0.4, 0.49])
def test_the_covariance_is_hoskings(alpha):
    # Hosking (1981), theorem 1, in Gamma functions; the code uses the recurrence.
    def gamma(k):
        signed = math.gamma(1 - alpha) * math.gamma(alpha) if alpha else math.inf
        return math.gamma(1 - 2 * alpha) * math.exp(math.lgamma(k + alpha) - math.lgamma(k + 1 - alpha)) / signed

    found = data.arfima_covariance(50, alpha)
    assert found[0] == pytest.approx(math.gamma(1 - 2 * alpha) / math.gamma(1 - alpha) ** 2, rel=1e-13)
    assert found[1:] == pytest.approx([gamma(k) for k in range(1, 50)], rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("alpha", [-0.45, 0.0, 0.2, 0.49])
@pytest.mark.parametrize("n", [1, 2, 17, 64])
def test_the_samples_have_that_covariance_exactly(n, alpha):
    # They are linear in the noise: the map times its transpose is their covariance.
    matrix = np.stack([data.arfima(n, alpha, Fixed(column)) for column in np.eye(2 * n)], axis=1)
    lag = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    covariance = data.arfima_covariance(n, alpha)[lag]
    assert matrix @ matrix.T == pytest.approx(covariance, abs=1e-12 * covariance[0, 0])


def test_the_same_generator_gives_the_same_samples():
    first, second = (data.arfima(100, 0.3, np.random.default_rng(4)) for _ in range(2))
    assert (first == second).all()


ARFIMA_FAULTS = [
    (0, 0.1, r"arfima\(n=0\): needs n >= 1; pass the number of samples\."),
    (
        5,
        0.5,
        r"arfima\(alpha=0\.5\): needs -1/2 < alpha < 1/2 to be stationary; "
        r"generate alpha - 1 and take numpy\.cumsum of it\.",
    ),
]


@pytest.mark.parametrize(("n", "alpha", "message"), ARFIMA_FAULTS)
def test_what_cannot_be_generated_is_an_error(n, alpha, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        data.arfima(n, alpha, np.random.default_rng(0))


def test_fractional_noise_has_its_autocovariance():
    x = data.fgn(200_000, 0.7, np.random.default_rng(0))
    for lag in (0, 1, 5):
        exact = (abs(lag + 1) ** 1.4 - 2 * lag**1.4 + abs(lag - 1) ** 1.4) / 2
        assert np.mean(x[: x.size - lag] * x[lag:]) == pytest.approx(exact, abs=0.03)  # long memory: n**-0.6 and more
    np.testing.assert_array_equal(x[:5], data.fgn(200_000, 0.7, np.random.default_rng(0))[:5])


def test_rough_volatility_is_rough_and_comes_back():
    x = data.rfsv(5000, np.random.default_rng(0), hurst=0.14, vol_of_vol=0.3)
    assert x[0] == -5
    assert whittle(x).hurst == pytest.approx(0.14, abs=0.03)
    assert whittle(x).scale == pytest.approx(0.3, rel=0.05)
    # The same noise without reversion is the motion itself; with it, a recursion of the increments.
    free = data.rfsv(50, np.random.default_rng(1), reversion=0.0)
    motion = 0.3 * np.cumsum(data.fgn(50, 0.14, np.random.default_rng(1)))
    np.testing.assert_allclose(free[1:], motion[:-1] - 5, rtol=1e-12)
    held = data.rfsv(50, np.random.default_rng(1), reversion=0.1) + 5
    np.testing.assert_allclose(np.diff(held), -held[:-1] * (1 - math.exp(-0.1)) + math.exp(-0.05) * np.diff(free))
    noisy = data.rfsv(5000, np.random.default_rng(0), noise=0.2) - x
    assert noisy.std() == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "rfsv(n=0): needs n >= 1"),
        ({"hurst": 1.0}, "FractionalBrownian(hurst=1): needs 0 < hurst < 1"),
        ({"vol_of_vol": 0.0}, "rfsv(vol_of_vol=0.0): needs a finite vol_of_vol > 0"),
        ({"reversion": 0.2}, "rfsv(reversion=0.2): needs 0 <= reversion <= 0.1"),
        ({"noise": -1.0}, "rfsv(noise=-1.0): needs a finite noise >= 0"),
    ],
)
def test_rough_volatility_refuses_what_it_cannot_draw(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        data.rfsv(**{"n": 10, "rng": np.random.default_rng(0), **options})
