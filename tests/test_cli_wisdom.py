"""The commands `hpfracc-nn calibrate` and `hpfracc-nn wisdom`: what they print, write, and refuse."""

import hashlib
import importlib.util
import json
import logging

import pytest

pytest.importorskip("rich")
pytest.importorskip("typer")

from typer import testing

from hpfracc_nn import cli, commands
from hpfracc_nn.selection import Place, Timing, Wisdom, WisdomFile
from hpfracc_nn.selection.learning.learner import understood
from hpfracc_nn.selection.learning.wisdom import encode
from tests.selection_kernels import RATES

TIMING = Timing("toeplitz rows=32 n=1024", "torch/fft", 1.25e-3, None, 7, 1e9)
LEARNT = Wisdom.of([TIMING], {Place("torch", "cpu", "float32", 2): RATES})
THERE = {"cpu": "slide rule", "cores": 2, "packages": {"torch": "9.9"}}


def run(*arguments):
    return testing.CliRunner().invoke(cli.app(), [str(argument) for argument in arguments])


@pytest.fixture
def file(tmp_path):
    return WisdomFile(tmp_path / "wisdom")


@pytest.fixture
def wisdom(file):
    """Return a function that runs a command on `file`, with what else it is given, and returns what it says."""

    def command(name, *arguments, code=0):
        result = run("wisdom", name, *arguments, "--directory", file.path.parent)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    return command


def test_help_names_the_commands():
    assert "calibrate" in run("--help").output
    said = run("wisdom", "--help").output
    assert all(command in said for command in ("show", "export", "import", "merge", "clear"))


def test_without_a_directory_the_file_is_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HPFRACC_NN_WISDOM", str(tmp_path))
    assert str(WisdomFile(tmp_path).path) in run("wisdom", "show").stdout
    monkeypatch.setenv("HPFRACC_NN_WISDOM", "off")
    for command in (("wisdom", "show"), ("wisdom", "export", tmp_path / "copy"), ("wisdom", "clear"), ("calibrate",)):
        result = run(*command)
        assert result.exit_code == 1
        assert "HPFRACC_NN_WISDOM is off; name a place with --directory." in result.stderr
    monkeypatch.setenv("HPFRACC_NN_SELECTION", "sometimes")
    assert "HPFRACC_NN_SELECTION" in run("wisdom", "show").stderr


def test_calibrate_measures_each_framework_and_keeps_the_rates(file, monkeypatch):
    result = run("calibrate", "--rounds", 1, "--directory", file.path.parent)
    assert result.exit_code == 0, result.output
    rates = file.read().rates
    frameworks = {name for name in ("numpy", "torch", "jax") if importlib.util.find_spec(name)}
    assert {(place.framework, place.dtype) for place in rates} == {
        (framework, dtype) for framework in frameworks for dtype in commands.DTYPES
    }
    assert result.stdout.splitlines()[-1] == f"Kept in {file.path}"
    assert "numpy/cpu/float32" in result.stdout
    assert "Calibrating" in result.stderr


def test_the_fastest_of_the_rounds_counts():
    slow = type(RATES)({**RATES.flops, "fft": 2e9}, bandwidth=2e9, launch=3e-6)
    fastest = commands._fastest([RATES, slow])
    assert fastest == type(RATES)({**RATES.flops, "fft": 2e9}, bandwidth=2e9, launch=RATES.launch)


def test_calibrate_refuses_a_device_that_is_not_there(file):
    result = run("calibrate", "--device", "nowhere", "--directory", file.path.parent)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("hpfracc-nn calibrate: ")
    assert not file.path.exists()


def test_a_framework_that_is_not_installed_is_left_out_and_a_broken_room_is_not(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[-1])

    monkeypatch.setattr(commands.importlib, "import_module", missing)
    with pytest.raises(RuntimeError, match=r"^--device cuda: needs torch or JAX, which are not installed\.$"):
        commands._places({"numpy": "rooms.numpy", "torch": "rooms.torch"}, "cuda")
    with pytest.raises(ModuleNotFoundError, match="operator"):
        commands._places({"torch": "rooms.operator"}, "cpu")


def test_show_says_what_is_known(file, wisdom):
    assert wisdom("show").startswith(f"Nothing is known yet in {file.path}\n")
    file.update(LEARNT)
    said = wisdom("show").splitlines()
    assert said[0] == f"File      {file.path}"
    assert said[2].startswith("Packages  hpfracc-nn ")
    assert said[5].split() == ["torch/cpu/float32", "2", *["1"] * 5, "1"]  # G/s, GB/s, us of RATES
    assert said[7].split()[:4] == ["workload", "kernel", "forward", "ms"]
    assert said[8].split()[:6] == ["toeplitz", "rows=32", "n=1024", "torch/fft", "1.25", "-"]
    assert said[8].endswith("own")


def test_show_reads_the_file_of_another_machine(tmp_path, wisdom):
    (tmp_path / "other.json").write_bytes(encode(LEARNT, THERE))
    assert "Machine   slide rule, 2 cores" in wisdom("show", tmp_path / "other.json")


def test_export_and_merge_pass_on_what_was_learnt(file, tmp_path, wisdom):
    file.update(LEARNT)
    assert wisdom("export", tmp_path / "out.json") == (f"1 timing and 1 calibration to {tmp_path / 'out.json'}\n")
    wisdom("clear")
    assert wisdom("merge", tmp_path / "out.json", tmp_path / "out.json").endswith("from 2 files\n")
    assert [each.samples for each in file.read().timings.values()] == [14]
    assert file.read().rates == LEARNT.rates


def test_import_takes_another_machines_times_as_a_prior(file, tmp_path, wisdom):
    (tmp_path / "other.json").write_bytes(encode(LEARNT, THERE))
    said = wisdom("merge", tmp_path / "other.json", code=1)
    assert said.startswith(f"hpfracc-nn wisdom merge: {tmp_path / 'other.json'}: needs wisdom of a machine like this")
    assert said.count("\n") == 1
    assert wisdom("import", tmp_path / "other.json").endswith("as a prior\n")
    assert file.read() == LEARNT.as_prior()


def test_clear_forgets(file, wisdom):
    assert wisdom("clear") == "Nothing was known.\n"
    file.update(LEARNT)
    other = WisdomFile(file.path.parent, THERE)
    other.update(LEARNT)
    assert wisdom("clear") == f"Removed {file.path}\n"
    assert wisdom("clear", "--all") == f"Removed {other.path}\n"


@pytest.mark.parametrize("command", ["show", "import", "merge"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "No such file or directory"),
        (b"torn", "needs a whole wisdom file; "),
        (b'{"schema":7}', "its schema is 7"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(tmp_path, wisdom, command, data, message):
    if data is not None:
        (tmp_path / "bad.json").write_bytes(data)
    said = wisdom(command, tmp_path / "bad.json", code=1)
    assert said.startswith(f"hpfracc-nn wisdom {command}: ")
    assert message in said
    assert str(tmp_path / "bad.json") in said
    assert said.count("\n") == 1


def test_there_is_nothing_to_export_before_something_was_learnt(tmp_path, wisdom):
    assert "No such file or directory" in wisdom("export", tmp_path / "out.json", code=1)


def test_a_directory_that_cannot_be_written_is_named_in_one_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    caplog.set_level(logging.DEBUG, "hpfracc_nn.selection")
    result = run("calibrate", "--rounds", 1, "--directory", tmp_path / "file" / "below")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("hpfracc-nn calibrate: ")
    assert caplog.records == []


# Files that others made

HOSTILE = "\x1b]0;gotcha\x07\x1b[2J\r\n\x9b31m\u202e\ud800"  # a title, a cleared screen, a colour, text to the left


def test_nothing_in_a_file_acts_upon_the_terminal(tmp_path, wisdom):
    place = Place(f"torch{HOSTILE}", f"cuda{HOSTILE}", "float32", 2)
    learnt = Wisdom.of([Timing(f"key {HOSTILE}", f"torch/{HOSTILE}", 1.0, None, 1, 1e9)], {place: RATES})
    there = {"cpu": HOSTILE, "gpus": [HOSTILE], "packages": {HOSTILE: HOSTILE}, "caches": {HOSTILE: 1}, HOSTILE: 1}
    foreign = tmp_path / f"\x1b[31m\n{len(HOSTILE)}.json"
    foreign.write_bytes(encode(learnt, there))
    said = [wisdom("show", foreign), wisdom("merge", foreign, code=1), wisdom("import", foreign), wisdom("show")]
    said += [wisdom("show", tmp_path / "\x1b[31m", code=1), wisdom("export", tmp_path / "\x1bcopy")]
    assert "gotcha" in said[0]
    assert "gotcha" in said[3]
    assert all(line.isprintable() for text in said for line in text.split("\n"))
    assert [text.count("\n") for text in said[1:3]] == [1, 1]


def test_nothing_in_a_file_acts_upon_the_terminal_by_the_log(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "hpfracc_nn.selection")
    directory = tmp_path / "\x1b[31m\nINFO all is well"
    file = WisdomFile(directory)
    directory.mkdir()
    file.path.write_text("no wisdom")
    file.path.chmod(0o600)
    assert not file.read()
    understood(Wisdom.of([Timing(HOSTILE, HOSTILE, 1.0, None, 1, 1e9)]), directory)
    shown = [record.getMessage() for record in caplog.records]
    assert len(shown) == 2
    assert all(text.isprintable() and "all is well" in text for text in shown)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("packages", ["torch"]),
        ("caches", 3),
        ("gpus", 3),
        ("gpus", "none"),
        ("cpu", {"model": []}),
        ("flops", {"matmul": 1e9}),
        ("flops", {}),
        ("threads", -(10**400)),
    ],
)
def test_a_whole_file_of_unlikely_facts_is_shown_or_refused_in_one_line(tmp_path, name, value):
    body = json.loads(encode(LEARNT, {**THERE, "gpus": [], "caches": {}}))
    body.pop("sum")
    where = body["calibration"][0] if name in ("flops", "threads") else body["fingerprint"]
    where[name] = value
    data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    (tmp_path / "file").write_text(json.dumps({**body, "sum": hashlib.sha256(data).hexdigest()}))
    result = run("wisdom", "show", tmp_path / "file")
    assert result.exit_code in (0, 1)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == 0 or result.stderr.count("\n") == 1
