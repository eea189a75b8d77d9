"""What was learnt: how it merges, and what becomes of its file when writers meet, die, or find no room."""

import dataclasses
import errno
import json
import logging
import os
import random
import re
import stat
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock, SoftFileLock

from hpfracc_nn import BackendManager, GrunwaldLetnikov, derivative
from hpfracc_nn.analytics import History
from hpfracc_nn.selection import Machine, Place, Settings, Timing, Wisdom, WisdomFile
from hpfracc_nn.selection.learning import wisdom, wisdom_file
from hpfracc_nn.selection.learning.wisdom import MOST_SAMPLES, OtherSchemaError, decode, encode
from hpfracc_nn.selection.learning.wisdom_file import ForeignError, default_directory, inspect
from hpfracc_nn.selection.registry import _probes
from hpfracc_nn.selection.workload import LATEST
from tests.selection_kernels import RATES, FakeProbe

ROOT = Path(__file__).parents[1]
HERE = {"cpu": "abacus", "cores": 2}
THERE = {"cpu": "slide rule", "cores": 2}
PLACE = Place("torch", "cuda:0", "float32", 2)

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def timing(key="work", arm="torch/fft", forward=1e-3, backward=None, samples=1, when=0.0, **more):
    return Timing(key, arm, forward, backward, samples, when, **more)


def learnt(count=20):
    """Return wisdom with rates, both trusts, and keys that JSON must escape."""
    generator = random.Random(0)
    timings = [
        timing(f'k "{number}"\n\u00fc', "torch/fft", generator.random(), generator.random(), number + 1, 1e9 + number)
        for number in range(count)
    ]
    return Wisdom.of([*timings, timing("k", "numba/x", None, 2.0, trust="prior")], {PLACE: RATES})


def writers(name, directory):
    command = [sys.executable, "-m", "tests.wisdom_writers", name, str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# How two of them merge.


@pytest.mark.parametrize("cut", [1, 30, 63])
def test_merged_times_are_the_mean_of_all_samples(cut):
    generator = random.Random(0)
    seconds = [generator.random() for _ in range(MOST_SAMPLES)]
    one, other = (
        timing(forward=statistics.mean(part), backward=2 * statistics.mean(part), samples=len(part), when=len(part))
        for part in (seconds[:cut], seconds[cut:])
    )
    for merged in (one.merged(other), other.merged(one)):
        assert merged.forward == pytest.approx(statistics.mean(seconds), rel=1e-14)  # a few eps
        assert merged.backward == pytest.approx(2 * merged.forward, rel=1e-14)
        assert (merged.samples, merged.time) == (MOST_SAMPLES, max(cut, MOST_SAMPLES - cut))


def test_what_was_learnt_long_ago_fades():
    kept = timing(forward=1.0, samples=1000)
    for _ in range(200):
        kept = kept.merged(timing(forward=2.0))
    # Each new sample has the weight 1/65: after 200 of them (64/65)^200 = 0.045 of the old is left.
    assert kept.forward == pytest.approx(2 - (64 / 65) ** 200, rel=1e-12)
    assert kept.samples == MOST_SAMPLES


def test_a_direction_that_one_never_timed_is_taken_from_the_other():
    merged = timing(forward=1.0, samples=3).merged(timing(forward=2.0, backward=5.0))
    assert (merged.forward, merged.backward) == (1.25, 5.0)


def test_what_was_measured_here_displaces_what_was_not():
    own, prior = timing(forward=1.0), timing(forward=9.0, samples=60, when=9.0, trust="prior")
    assert own.merged(prior) == prior.merged(own) == own
    assert prior.merged(prior).forward == 9.0


def test_of_estimates_on_two_bases_the_later_ones_remain():
    old = timing(forward=1.0, samples=3, when=1.0, forward_estimate=7.0, backward_estimate=8.0, basis="a")
    new = timing(forward=2.0, samples=1, when=2.0, forward_estimate=5.0, basis="b")
    for merged in (old.merged(new), new.merged(old)):
        assert (merged.forward, merged.forward_estimate, merged.backward_estimate) == (1.25, 5.0, None)
        assert (merged.basis, merged.samples, merged.time) == ("b", 4, 2.0)


def test_a_basis_is_another_where_other_rates_are_behind_the_estimates():
    machine, other = Machine(), dataclasses.replace(RATES, launch=1.0)
    shipped = machine.basis(PLACE._replace(device="cpu"), "shipped")
    assert machine.basis(PLACE._replace(device="cpu"), "measured") == shipped != ""
    assert machine.basis(PLACE, "measured") == machine.basis(PLACE, "shipped") != shipped  # of another device
    machine.restore({PLACE: RATES})
    first = machine.basis(PLACE, "measured")
    assert first not in ("", shipped)
    assert machine.basis(PLACE._replace(threads=9), "measured") == first
    machine.restore({PLACE: other, PLACE._replace(threads=1): other})
    assert machine.basis(PLACE, "measured") == first  # estimates were made with it
    assert machine.basis(PLACE._replace(threads=1), "measured") != first
    assert decode(encode(Wisdom(rates={PLACE: RATES}), HERE))[0].rates[PLACE].digest == RATES.digest


def test_rates_that_came_later_remain():
    newer = dataclasses.replace(RATES, launch=1.0)
    other = PLACE._replace(threads=1)
    merged = Wisdom(rates={PLACE: RATES, other: RATES}).merged(Wisdom(rates={PLACE: newer}))
    assert merged.rates == {PLACE: newer, other: RATES}


def test_of_too_many_timings_the_oldest_and_those_of_other_machines_go(monkeypatch):
    monkeypatch.setattr(wisdom, "MOST_TIMINGS", 3)
    timings = [timing(str(number), when=number) for number in (5, 1, 4)]
    kept = Wisdom.of([*timings, timing("far", when=9.0, trust="prior"), timing("3", when=3.0)])
    assert sorted(key for key, _ in kept.timings) == ["3", "4", "5"]


def test_another_machine_takes_times_and_no_rates():
    prior = learnt().as_prior()
    assert not prior.rates
    assert prior.timings.keys() == learnt().timings.keys()
    assert {each.trust for each in prior.timings.values()} == {"prior"}
    assert prior
    assert not Wisdom()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": ""}, "Timing(key=''): needs a text that is not empty."),
        ({"arm": 3}, "Timing(arm=3): needs a text that is not empty."),
        ({"forward": -1.0}, "Timing(forward=-1.0): needs None or seconds, 0 <= forward < 1e+09."),
        ({"backward": float("nan")}, "Timing(backward=nan): needs None or seconds, 0 <= backward < 1e+09."),
        ({"forward": 10**400}, "needs None or seconds, 0 <= forward < 1e+09."),
        ({"forward": None}, "Timing(forward=None, backward=None): needs at least one of them."),
        ({"samples": 0}, "Timing(samples=0): needs a whole number, samples >= 1."),
        ({"samples": True}, "Timing(samples=True): needs a whole number, samples >= 1."),
        ({"when": float("inf")}, "Timing(time=inf): needs seconds since 1970, 0 <= time < 9.2e+09."),
        ({"trust": "blind"}, "Timing(trust='blind'): needs one of own, prior."),
    ],
)
def test_a_bad_timing_is_refused_at_the_door(change, message):
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        timing(**change)


# Its bytes.


def test_what_is_encoded_is_decoded():
    assert decode(encode(learnt(), HERE)) == (learnt(), HERE)
    assert decode(encode(Wisdom(), HERE)) == (Wisdom(), HERE)


def test_the_format_is_what_the_documentation_says():
    body = json.loads(encode(learnt(), HERE))
    assert sorted(body) == ["calibration", "fingerprint", "plans", "schema", "sum"]
    assert body["schema"] == 1
    assert body["fingerprint"] == HERE
    assert body["plans"]["k"] == {
        "numba/x": {
            "forward": None,
            "backward": 2.0,
            "forward_estimate": None,
            "backward_estimate": None,
            "n": 1,
            "t": 0.0,
            "trust": "prior",
            "basis": "",
        }
    }
    place = {"framework": "torch", "device": "cuda:0", "dtype": "float32", "threads": 2}
    assert body["calibration"] == [{**place, **dataclasses.asdict(RATES)}]


def test_white_space_does_not_count():
    assert decode(json.dumps(json.loads(encode(learnt(), HERE)), indent=4).encode())[0] == learnt()


def summed(**changes):
    """Return bytes that are changed and whose checksum fits nevertheless."""
    body = {**json.loads(encode(learnt(), HERE)), **changes}
    body.pop("sum")
    return json.dumps({**body, "sum": wisdom._sum(body)}).encode()


ENTRY = {"forward": 1.0, "backward": None, "n": 1, "t": 0.0, "trust": "own"}
RATE = {"framework": "torch", "device": "cpu", "dtype": "float32", "threads": 1, **dataclasses.asdict(RATES)}
DAMAGED = [
    (b"", "Expecting value"),
    (b"\xff\xfe\x00", "can't decode"),
    (b"null", "it has no schema"),
    (b'{"schema":"1"}', "it has no schema"),
    (b"[" * 100_000, "it is nested too deeply"),
    (b'{"schema":1}', "its checksum does not fit"),
    (b'{"schema":1,"plans":' + b"[" * 700 + b"]" * 700 + b"}", "its checksum does not fit|it is nested too deeply"),
    (encode(learnt(), HERE)[:-1], "delimiter"),
    (encode(learnt(), HERE).replace(b"numba/x", b"numba/y"), "its checksum does not fit"),
    (summed(plans=[]), r"'\[\]' stands where dict should"),
    (summed(plans={"k": 3}), "'3' stands where dict should"),
    (summed(plans={"k": {"arm": None}}), "'None' stands where dict should"),
    (summed(plans={"k": {"arm": {**ENTRY, "n": "many"}}}), "needs a whole number"),
    (summed(plans={"k": {"arm": {**ENTRY, "t": None}}}), "needs seconds since 1970"),
    (summed(plans={"k": {"arm": {**ENTRY, "forward": float("nan")}}}), "needs None or seconds"),
    (summed(fingerprint=None), "'None' stands where dict should"),
    (summed(calibration={}), "stands where list should"),
    (summed(calibration=[{**RATE, "launch": 10**400}]), "stands where a number should"),
    (summed(calibration=[{**RATE, "flops": {"fft": 1.0}}]), "needs a rate for matmul"),
    (summed(calibration=[{**RATE, "threads": "two"}]), "'two' stands where int should"),
]


@pytest.mark.parametrize(("data", "said"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_bytes_are_a_value_error(data, said):
    with pytest.raises(ValueError, match=said) as raised:
        decode(data)
    assert not isinstance(raised.value, OtherSchemaError)


def test_a_damaged_bit_is_noticed_or_changes_nothing():
    whole = encode(learnt(3), HERE)
    generator = random.Random(0)
    unnoticed = 0
    for _ in range(300):
        data = bytearray(whole)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        try:
            assert decode(bytes(data)) == (learnt(3), HERE)  # 1e-3 and 1E-3 are the same number
            unnoticed += 1
        except ValueError:
            continue
    assert unnoticed < 10


# Its file.


def lines(caplog):
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "hpfracc_nn.selection"]


@pytest.fixture
def file(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "hpfracc_nn.selection")
    return WisdomFile(tmp_path / "new" / "folder", HERE)


def test_what_is_merged_is_read_by_a_second_process(file, caplog):
    assert file.read() == Wisdom()
    assert file.merge(learnt())
    assert WisdomFile(file.path.parent, HERE).read() == learnt()
    assert file.merge(Wisdom.of([timing("new")]))
    assert len(file.read().timings) == len(learnt().timings) + 1
    assert lines(caplog) == []


def test_nothing_learnt_is_nothing_written(file):
    assert file.merge(Wisdom())
    assert not file.path.parent.exists()


def test_rates_may_be_numbers_of_numpy(file):
    rates = dataclasses.replace(RATES, bandwidth=np.float32(2.0), launch=np.float64(0.5))  # type: ignore[arg-type]
    assert file.merge(Wisdom(rates={PLACE: rates}))
    assert file.read().rates == {PLACE: rates}


def test_the_file_is_its_owners_alone(file):
    file.update(learnt())
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert sorted(path.suffix for path in file.path.parent.iterdir()) == [".json", ".lock"]


def test_each_machine_has_a_file_of_its_own(file):
    other = WisdomFile(file.path.parent, THERE)
    assert file.merge(learnt())
    assert other.read() == Wisdom()
    assert other.path.parent == file.path.parent
    assert WisdomFile().path.parent == default_directory()
    assert default_directory().parts[-2:] == ("hpfracc_nn", "wisdom")


def test_a_setting_names_the_file_or_none(tmp_path):
    assert WisdomFile.at("off") is None
    for setting, directory in (("default", None), (str(tmp_path), tmp_path)):
        file = WisdomFile.at(setting)
        assert file is not None
        assert file.path == WisdomFile(directory).path


def test_reading_loads_no_lock(tmp_path):
    source = (
        "import sys; from hpfracc_nn.selection import WisdomFile; "
        "WisdomFile(sys.argv[1]).read(); print('filelock' in sys.modules)"
    )
    command = [sys.executable, "-c", source, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout == "False\n"


def test_a_second_process_need_not_calibrate(file, monkeypatch):
    probe = FakeProbe()
    monkeypatch.setitem(_probes, "torch", probe)
    first, second = Machine(), Machine()
    rates = first.rates("torch", "cpu", "float32")
    file.update(Wisdom(rates=first.calibrated()))
    second.restore(file.read().rates)
    assert second.rates("torch", "cpu", "bfloat16") == rates
    assert probe.asked == [("cpu", "float32")]
    assert second.calibrated() == {}  # nothing that it would have to write


def test_what_this_process_has_measured_is_not_restored(monkeypatch):
    monkeypatch.setitem(_probes, "torch", FakeProbe())
    machine = Machine()
    machine.rates("torch", "cpu", "float32")
    machine.restore({Place("torch", "cpu", "float32", 1): dataclasses.replace(RATES, launch=1.0), PLACE: RATES})
    assert machine.rates("torch", "cpu", "float32") == RATES
    assert machine.calibrated() == {Place("torch", "cpu", "float32", 1): RATES}


@pytest.mark.parametrize("data", [DAMAGED[number][0] for number in (0, 4, 7, 8)], ids=["empty", "deep", "torn", "sum"])
def test_a_damaged_file_is_renamed_with_one_line(file, caplog, data):
    file.update(learnt())
    file.path.write_bytes(data)
    assert file.read() == file.read() == Wisdom()
    assert not file.path.exists()
    assert file.path.with_suffix(".corrupt").read_bytes() == data
    [(level, message)] = lines(caplog)
    assert level == logging.WARNING
    assert "ignored, and renamed to .corrupt" in message
    assert file.merge(learnt())
    assert file.read() == learnt()


def test_a_writer_renames_a_damaged_file_as_well(file, caplog):
    file.update(learnt())
    file.path.write_bytes(b"torn")
    assert file.merge(learnt())
    assert file.read() == learnt()
    assert file.path.with_suffix(".corrupt").read_bytes() == b"torn"
    assert len(lines(caplog)) == 1


def test_a_reader_never_renames_what_a_writer_has_just_put_there(file, monkeypatch):
    file.update(learnt())
    file.path.write_bytes(b"torn")
    locked = WisdomFile._locked

    def later(self, seconds):
        file.path.write_bytes(encode(learnt(), HERE))  # between the reader's first look and its second
        return locked(self, seconds)

    monkeypatch.setattr(WisdomFile, "_locked", later)
    assert WisdomFile(file.path.parent, HERE).read() == Wisdom()
    assert file.read() == learnt()


def test_a_reader_does_not_wait_to_rename(file, caplog):
    file.update(learnt())
    file.path.write_bytes(b"torn")
    with FileLock(file.path.with_suffix(".lock")):
        assert file.read() == Wisdom()
    assert file.path.read_bytes() == b"torn"
    assert [level for level, _ in lines(caplog)] == [logging.WARNING, logging.DEBUG]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (encode(learnt(), THERE), "needs wisdom of a machine like this one, cpu differ"),
        (summed(schema=2), "its schema is 2, this version reads 1."),
        (b'{"schema":99,"sum":"by another rule"}', "its schema is 99, this version reads 1."),
    ],
    ids=["foreign", "future", "far future"],
)
def test_a_foreign_or_future_file_is_left_alone_with_one_line(file, caplog, data, said):
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(data)
    assert file.read() == file.read() == Wisdom()
    assert file.path.read_bytes() == data
    [(level, message)] = lines(caplog)
    assert level == logging.INFO
    assert said in message
    file.path.with_suffix(".corrupt").write_text("torn")
    assert file.merge(learnt())  # but a writer needs its place
    assert file.path.with_suffix(".foreign").read_bytes() == data
    assert file.path.with_suffix(".corrupt").read_text() == "torn"
    assert [level for level, _ in lines(caplog)] == [logging.INFO, logging.INFO]
    assert lines(caplog)[1][1].startswith(f"wisdom in {file.path.parent} ignored, and renamed to .foreign: ")


@pytest.mark.slow
def test_a_lock_held_by_another_is_waited_for_and_then_left(file, caplog, monkeypatch):
    monkeypatch.setattr(wisdom_file, "LOCK_SECONDS", 0.05)
    file.update(learnt())
    with FileLock(file.path.with_suffix(".lock")):
        assert not file.merge(Wisdom.of([timing("new")]))
        assert not file.merge(Wisdom.of([timing("new")]))
        assert file.read() == learnt()
        with pytest.raises(TimeoutError):
            file.update(learnt())
    assert len(lines(caplog)) == 1
    assert file.merge(Wisdom.of([timing("new")]))


def test_a_disk_that_cannot_be_read_is_not_overwritten(file, caplog, monkeypatch):
    file.update(learnt())
    before = file.path.read_bytes()

    def broken(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(wisdom_file, "_read", broken)
        assert file.read() == Wisdom()
        assert not file.merge(Wisdom.of([timing("new")]))
    assert file.path.read_bytes() == before
    assert [level for level, _ in lines(caplog)] == [logging.WARNING] * 2


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    file = WisdomFile(tmp_path / "file" / "below", HERE)
    assert not file.merge(learnt())
    assert not file.merge(learnt())
    assert len(lines(caplog)) == 1


def test_a_missing_lock_of_the_file_system_is_an_os_error(file, caplog, monkeypatch):
    def none(self, **_):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", none)
    assert not file.merge(learnt())
    assert len(lines(caplog)) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs /dev/stdout")
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output_takes_an_export_whatever_it_is(file, tmp_path, kind):
    file.update(learnt())
    source = f"from hpfracc_nn.selection import WisdomFile; WisdomFile({str(file.path.parent)!r}, {HERE!r}).export"
    command, target = [sys.executable, "-c", f"{source}('/dev/stdout')"], tmp_path / "copy"
    if kind == "pipe":
        target.write_bytes(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120).stdout)
    else:
        with open(target, "wb") as out:
            subprocess.run(command, cwd=ROOT, check=True, stdout=out, timeout=120)
    assert file.load(target) == learnt()


@pytest.mark.skipif(os.name != "posix", reason="needs flock")
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_where_the_kernel_has_no_flock_a_file_is_the_lock(file, monkeypatch, action):
    def none(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", none)
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        for each in (learnt(), Wisdom.of([timing("new")])):
            assert file.merge(each)
        assert file.read() == learnt().merged(Wisdom.of([timing("new")]))
        with SoftFileLock(file.path.with_suffix(".lock")):
            assert not file.merge(learnt(), seconds=0.05)
        assert file.merge(Wisdom.of([timing("last")]))
    assert file.read().timings.keys() >= {(timing("last").key, timing("last").arm)}


@pytest.mark.parametrize("seconds", [-1.0, -62e9, 1e10, 1e12, 1e300])
def test_a_clock_that_is_set_wrong_keeps_nobody_from_computing_and_saving(tmp_path, monkeypatch, seconds):
    manager = BackendManager(Settings(mode="learn", calibration="shipped", wisdom=str(tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: seconds)
        for _ in range(3):
            derivative(np.arange(64.0), GrunwaldLetnikov(1.0), manager=manager)
        assert manager.save()
        history = History.of(manager)
    times = [*(each.time for each in history.events), *(each.time for each in history.looks)]
    assert times
    assert all(0 <= each < LATEST for each in times)
    (path,) = tmp_path.glob("*.json")
    assert WisdomFile(tmp_path).load(path).timings


def test_a_home_that_nobody_knows_makes_no_directory_called_tilde(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not WisdomFile("~/.cache/hpfracc_nn/wisdom", HERE).merge(learnt())
    assert list(tmp_path.iterdir()) == []
    assert "name a directory in HPFRACC_NN_WISDOM" in caplog.text


@pytest.mark.parametrize("missing", ["home", "name"])
def test_without_a_home_calls_compute_and_it_is_said_once(caplog, monkeypatch, missing):
    caplog.set_level(logging.INFO, "hpfracc_nn.selection")
    wisdom_file._say_that_there_is_no_home.cache_clear()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if missing == "home":
        monkeypatch.setattr(os.path, "expanduser", str)  # as for a user whom nobody knows
    else:
        monkeypatch.setenv("HOME", "")
    for _ in range(2):
        manager = BackendManager(Settings(mode="learn", calibration="shipped"))
        y = derivative(np.arange(4.0), GrunwaldLetnikov(1.0), manager=manager)
        assert y.tolist() == [0, 1, 1, 1]
    assert [level for level, text in lines(caplog) if "home directory" in text] == [logging.INFO]
    with pytest.raises(FileNotFoundError, match="name a directory in HPFRACC_NN_WISDOM"):
        WisdomFile()


def test_without_platformdirs_the_place_is_that_of_xdg(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    for said, directory in (("", ".cache"), ("relative", ".cache"), (str(tmp_path / "else"), "else")):
        monkeypatch.setenv("XDG_CACHE_HOME", said)
        assert default_directory() == tmp_path / directory / "hpfracc_nn" / "wisdom"


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices that are files")
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "long"])
def test_what_is_no_small_regular_file_is_not_read(file, caplog, kind):
    file.path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(file.path, 0o600)
    elif kind == "device":
        file.path.symlink_to("/dev/zero")
    elif kind == "directory":
        file.path.mkdir(mode=0o700)
    else:
        file.path.touch(0o600)
        os.truncate(file.path, 2**40)  # it takes no room
    assert file.read() == Wisdom()
    assert len(lines(caplog)) == 1
    assert file.merge(learnt())
    assert file.read() == learnt()


@pytest.mark.skipif(os.name != "posix", reason="needs modes of POSIX")
def test_what_others_may_write_is_not_trusted_and_said_once(file, caplog):
    file.update(learnt())
    file.path.chmod(0o620)
    assert file.read() == file.read() == Wisdom()
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert "others may write it; chmod go-w it." in text
    assert file.merge(Wisdom.of([timing("new")]))
    assert {key for key, _ in file.read().timings} == {"new"}
    assert file.path.with_suffix(".foreign").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs pipes that are files")
def test_an_export_follows_links_and_writes_into_what_is_no_regular_file(file, tmp_path):
    file.update(learnt())
    target, link, pipe = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(target)
    file.export(link)
    assert link.is_symlink()
    assert inspect(target)[0] == learnt()
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    file.export(pipe)
    assert reader.communicate(timeout=30)[0] == target.read_bytes()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("step", ["fsync", "replace", "unlink"])
def test_an_interrupt_passes_and_leaves_file_and_lock_whole(file, monkeypatch, step):
    file.update(Wisdom.of([timing("old")]))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            file.merge(Wisdom.of([timing("new")]))
    assert {key for key, _ in file.read().timings} == ({"old", "new"} if step == "unlink" else {"old"})
    assert sorted(path.suffix for path in file.path.parent.iterdir()) == [".json", ".lock"]
    with FileLock(file.path.with_suffix(".lock")).acquire(timeout=0):
        pass


# Sharing it.


def test_an_export_is_loaded_elsewhere_as_a_prior(file, tmp_path):
    file.update(learnt())
    assert file.export(tmp_path / "export.json") == learnt()
    assert inspect(tmp_path / "export.json") == (learnt(), HERE)
    other = WisdomFile(tmp_path / "other", THERE)
    message = "needs wisdom of a machine like this one, cpu differ; import it as a prior."
    with pytest.raises(ForeignError, match=f"{re.escape(message)}$"):
        other.load(tmp_path / "export.json")
    assert other.load(tmp_path / "export.json", trust="prior") == learnt().as_prior()
    assert file.load(tmp_path / "export.json") == learnt()
    with pytest.raises(ValueError, match=r"^load\(trust='blind'\): needs one of own, prior\.$"):
        file.load(tmp_path / "export.json", trust="blind")


def test_clear_removes_this_machines_files_or_all(file):
    other = WisdomFile(file.path.parent, THERE)
    assert file.clear() == []
    file.update(learnt())
    other.update(learnt())
    keep = file.path.parent / "settings.json"
    keep.write_text("{}")
    aside = [file.path.with_suffix(f".{end}") for end in ("corrupt", "foreign")]
    for each in aside:
        each.write_text("torn")
    assert file.clear() == [*aside, file.path]
    assert other.path.exists()
    assert file.clear(others=True) == [other.path]
    assert keep.exists()


# Writers that meet, die, or find no room.


@forks
@pytest.mark.slow
def test_eight_processes_with_fifty_writes_each_lose_nothing(tmp_path):
    assert writers("storm", tmp_path) == 8 * 50


@forks
@pytest.mark.slow
def test_without_the_lock_the_same_writers_lose_some(tmp_path):
    assert writers("storm_without_lock", tmp_path) < 8 * 20


@forks
def test_threads_and_forks_of_one_process_lose_nothing(tmp_path):
    assert writers("threads", tmp_path) == 4 * 20 + 4 * 5


@forks
@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    assert writers("killed_at_random", tmp_path) > 0
    old, new = "old", "new old"
    assert writers("killed_at_each_step", tmp_path) == [old, old, old, new]


@forks
def test_a_writer_interrupted_at_any_moment_leaves_file_and_lock_whole(tmp_path):
    assert writers("interrupted_at_random", tmp_path) > 0


@forks
@pytest.mark.parametrize(("name", "said"), [("no_room", [False, False, True]), ("read_only", [False, False])])
def test_a_full_or_read_only_disk_raises_nothing(tmp_path, name, said):
    assert writers(name, tmp_path) == said


@forks
def test_what_is_merged_at_exit_is_kept(tmp_path):
    writers("at_exit", tmp_path)
    assert [key for path in tmp_path.glob("*.json") for key, _ in inspect(path)[0].timings] == ["last"]
