"""What the user may say, by the environment and by configure(), and how it is refused."""

import inspect
import pathlib
import pickle
import re
import sys
import types
from dataclasses import fields, replace

import pytest

from hpfracc_nn.selection import BackendManager, Settings, from_environment
from hpfracc_nn.selection.environment import shown
from hpfracc_nn.selection.probe import _probes
from hpfracc_nn.selection.settings import amount
from tests.selection_kernels import WORK, FakeProbe, fake, fake_manager, registering

BACKENDS = "torch, numba, xla, cuda, numpy"
ALGORITHMS = "dense, chunked_scan, recurrence, fft"
DISABLE = f"needs a backend ({BACKENDS}), alone or followed by a slash and an algorithm ({ALGORITHMS})."


def test_an_empty_environment_leaves_the_defaults():
    assert from_environment({}) == Settings()
    assert from_environment({"HPFRACC_NN_FORCE_BACKEND": "", "HPFRACC_NN_DISABLE_CUDA": ""}) == Settings()


def test_each_variable_sets_its_field():
    settings = from_environment(
        {
            "HPFRACC_NN_FORCE_BACKEND": "torch",
            "HPFRACC_NN_FORCE_ALGORITHM": "fft",
            "HPFRACC_NN_DISABLE": "cuda, torch/dense",
            "HPFRACC_NN_DISABLE_NUMBA": "1",
            "HPFRACC_NN_DISABLE_XLA": "0",
            "HPFRACC_NN_CALIBRATION": "shipped",
            "HPFRACC_NN_SOMETHING_ELSE": "not selection's business",
        }
    )
    assert settings == Settings("torch", "fft", frozenset({"cuda", "torch/dense", "numba"}), "shipped")


@pytest.mark.parametrize(
    ("variable", "value", "rule"),
    [
        ("FORCE_BACKEND", "tensorflow", f"needs one of {BACKENDS}."),
        ("FORCE_ALGORITHM", "FFT", f"needs one of {ALGORITHMS}."),
        ("CALIBRATION", "guessed", "needs one of measured, shipped."),
        ("DISABLE_NUMBA", "maybe", "needs one of 1, true, yes, on, 0, false, no, off."),
        (
            "DISABLE_JAX",
            "1",
            "needs one of the names "
            + ", ".join(f"HPFRACC_NN_DISABLE_{name.upper()}" for name in BACKENDS.split(", "))
            + ".",
        ),
    ],
)
def test_a_bad_value_names_variable_value_and_what_is_allowed(variable, value, rule):
    message = f"HPFRACC_NN_{variable}={value!r}: {rule}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_environment({f"HPFRACC_NN_{variable}": value})


@pytest.mark.parametrize("bad", ["jax", "torch/slow", "dense", "torch/"])
def test_a_bad_name_in_the_list_of_disabled_is_named(bad):
    with pytest.raises(ValueError, match=f"^{re.escape(f'HPFRACC_NN_DISABLE={bad!r}: {DISABLE}')}$"):
        from_environment({"HPFRACC_NN_DISABLE": f"cuda,{bad}"})
    with pytest.raises(ValueError, match=f"^{re.escape(f'disable={bad!r}: {DISABLE}')}$"):
        fake_manager().configure(disable=["cuda", bad])


def test_configure_changes_only_what_is_given_and_none_clears():
    manager = fake_manager(force_backend="torch", disabled=frozenset({"cuda"}))
    manager.configure(force_algorithm="fft", sample=False)
    assert manager.settings == Settings("torch", "fft", frozenset({"cuda"}), sample=False)
    manager.configure(force_backend=None, disable=None, sample=None)
    assert manager.settings == Settings(force_algorithm="fft")
    manager.configure(disable="numba, torch/dense", calibration="shipped")
    assert manager.settings == Settings(None, "fft", frozenset({"numba", "torch/dense"}), "shipped")


def test_a_bad_argument_of_configure_changes_nothing():
    manager = fake_manager()
    before = manager.settings, manager.epoch
    message = f"force_backend='cudda': needs one of {BACKENDS}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        manager.configure(force_algorithm="fft", force_backend="cudda")
    with pytest.raises(ValueError, match=r"^sample='yes': needs one of True, False\.$"):
        manager.configure(sample="yes")  # type: ignore[arg-type]
    assert (manager.settings, manager.epoch) == before


def test_a_backend_that_a_user_registers_can_be_forced():
    with registering() as add:
        add(fake("abacus/beads"), fake("torch/fft", lambda w: 0))
        assert fake_manager(force_backend="abacus", calibration="shipped").plan(WORK).algorithm == "beads"
        assert from_environment({"HPFRACC_NN_FORCE_ALGORITHM": "beads"}).force_algorithm == "beads"


def test_the_environment_is_read_when_a_manager_is_made_and_on_reload(monkeypatch):
    monkeypatch.setenv("HPFRACC_NN_FORCE_BACKEND", "numba")
    manager = BackendManager()
    assert manager.settings.force_backend == "numba"
    monkeypatch.setenv("HPFRACC_NN_FORCE_BACKEND", "torch")
    assert manager.settings.force_backend == "numba"
    epoch = manager.epoch
    manager.reload_env()
    assert manager.settings.force_backend == "torch"
    assert manager.epoch != epoch
    monkeypatch.setenv("HPFRACC_NN_FORCE_BACKEND", "nonsense")
    with pytest.raises(ValueError, match=r"^HPFRACC_NN_FORCE_BACKEND='nonsense': needs one of "):
        manager.reload_env()
    assert manager.settings.force_backend == "torch"


LIMIT = (
    "needs a whole number of bytes, a fraction in (0, 1], or text such as '4GiB', with one of the units "
    "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB."
)
OBJECTIVE = "needs one of latency, memory, energy, or weights of them such as {'latency': 1, 'memory': 0.5}"


def test_each_variable_of_learning_and_memory_sets_its_field(tmp_path):
    settings = from_environment(
        {
            "HPFRACC_NN_SELECTION": "frozen",
            "HPFRACC_NN_EXPLORE_FRACTION": "0.05",
            "HPFRACC_NN_DETERMINISTIC": "yes",
            "HPFRACC_NN_MEMORY_LIMIT": "0.5",
            "HPFRACC_NN_GPU_MEMORY_LIMIT": "4GiB",
            "HPFRACC_NN_WISDOM": str(tmp_path),
        }
    )
    assert settings == Settings(
        mode="frozen",
        explore_fraction=0.05,
        deterministic=True,
        memory_limit="0.5",
        gpu_memory_limit="4GiB",
        wisdom=str(tmp_path),
    )


@pytest.mark.parametrize(
    ("variable", "value", "rule"),
    [
        ("SELECTION", "always", "needs one of off, prior, frozen, learn."),
        ("EXPLORE_FRACTION", "0.6", "needs a number in [0, 0.5]."),
        ("EXPLORE_FRACTION", "much", "needs a number in [0, 0.5]."),
        ("EXPLORE_FRACTION", "nan", "needs a number in [0, 0.5]."),
        ("DETERMINISTIC", "maybe", "needs one of 1, true, yes, on, 0, false, no, off."),
        ("MEMORY_LIMIT", "half", LIMIT),
        ("GPU_MEMORY_LIMIT", "0", LIMIT),
    ],
)
def test_a_bad_value_of_learning_or_memory_names_what_is_allowed(variable, value, rule):
    with pytest.raises(ValueError, match=rf"^HPFRACC_NN_{variable}=.*: {re.escape(rule)}$"):
        from_environment({f"HPFRACC_NN_{variable}": value})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mode": "on"}, "mode='on': needs one of off, prior, frozen, learn."),
        ({"explore_fraction": 0.51}, "explore_fraction=0.51: needs a number in [0, 0.5]."),
        ({"explore_fraction": True}, "explore_fraction=True: needs a number in [0, 0.5]."),
        ({"switch_margin": -0.1}, "switch_margin=-0.1: needs a number in [0, 1]."),
        ({"switch_margin": "10%"}, "switch_margin='10%': needs a number in [0, 1]."),
        ({"deterministic": 1}, "deterministic=1: needs one of True, False, None."),
        ({"objective": "speed"}, "objective='speed': needs one of latency, memory, energy."),
        ({"objective": ["memory"]}, f"objective=['memory']: {OBJECTIVE}."),
        (
            {"objective": {"speed": 1}},
            f"objective={{'speed': 1}}: {OBJECTIVE}, finite, none negative and one positive.",
        ),
        ({"objective": {"memory": 0}}, f"objective={{'memory': 0}}: {OBJECTIVE}, finite, none negative and one"),
        ({"objective": {"memory": -1, "latency": 1}}, "none negative and one positive."),
        ({"objective": {"memory": float("nan")}}, "finite, none negative and one positive."),
        ({"memory_limit": "4 parsecs"}, f"memory_limit='4 parsecs': {LIMIT}"),
        ({"memory_limit": 1.5}, f"memory_limit=1.5: {LIMIT}"),
        ({"gpu_memory_limit": True}, f"gpu_memory_limit=True: {LIMIT}"),
        ({"wisdom": ""}, "wisdom='': needs a path, or one of default, off."),
        ({"wisdom": 3}, "wisdom=3: needs a path, or one of default, off."),
    ],
)
def test_a_bad_setting_is_refused_by_configure_and_changes_nothing(setting, message):
    manager = fake_manager()
    before = manager.settings, manager.epoch
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        manager.configure(sample=False, **setting)
    assert (manager.settings, manager.epoch) == before


def test_configure_sets_what_environment_sets_and_none_restores_each_default(tmp_path):
    given = {
        "mode": "prior",
        "explore_fraction": 0,
        "switch_margin": 1,
        "objective": "memory",
        "deterministic": False,
        "memory_limit": 0.25,
        "gpu_memory_limit": 1 << 30,
        "wisdom": tmp_path,
        "calibration": "shipped",
        "sample": False,
        "disable": "cuda",
        "force_backend": "torch",
        "force_algorithm": "fft",
    }
    assert set(given) == set(inspect.signature(BackendManager.configure).parameters) - {"self"}
    manager = fake_manager()
    manager.configure(**given)
    set_ones = {("disabled" if name == "disable" else name): value for name, value in given.items()}
    for field in fields(Settings):
        wanted = {"disabled": frozenset({"cuda"}), "wisdom": str(tmp_path)}.get(field.name, set_ones[field.name])
        assert getattr(manager.settings, field.name) == wanted
    manager.configure(**dict.fromkeys(given))
    assert manager.settings == Settings()


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (1, 1.0),  # up to 1 a number is a fraction: no call lives on one byte
        (0.25, 0.25),
        ("1", 1.0),
        (2, 2),
        (4e9, 4_000_000_000),
        (2**60 + 1, 2**60 + 1),
        ("4294967296", 2**32),
        ("4GiB", 2**32),
        (" 0.5 gib ", 2**29),
        ("1.5KB", 1500),
        ("1e3", 1000),
        ("7B", 7),
    ],
)
def test_a_limit_is_bytes_above_one_or_with_a_unit_and_else_a_fraction(value, meant):
    found = amount("memory_limit", value)
    assert found == meant
    assert type(found) is type(meant)


def test_weights_that_leave_one_objective_are_that_objective():
    assert Settings(objective={"memory": 2, "latency": 0}).objective == "memory"
    assert Settings(objective="memory").weights == {"memory": 1.0}


def test_settings_with_weights_survive_replacing_hashing_and_pickling():
    settings = Settings(objective={"memory": 0.5, "latency": 1})
    assert settings.weights == {"latency": 1.0, "memory": 0.5}
    same = pickle.loads(pickle.dumps(replace(settings, sample=True)))
    assert same == settings
    assert hash(same) == hash(settings)


def test_a_path_of_wisdom_is_made_absolute_and_the_two_words_are_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Settings(wisdom="learnt").wisdom == str(tmp_path / "learnt")
    assert Settings(wisdom=pathlib.Path("~/learnt")).wisdom == str(tmp_path / "home" / "learnt")
    assert [Settings(wisdom=word).wisdom for word in ("off", "default")] == ["off", "default"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FORCE_JAX": "1"}, Settings(force_backend="xla")),
        ({"FORCE_TORCH": "1", "FORCE_JAX": "0"}, Settings(force_backend="torch")),
        ({"FORCE_NUMBA": "1"}, Settings(force_backend="numba")),
        ({"FORCE_JAX": "1", "NN_FORCE_BACKEND": "torch"}, Settings(force_backend="torch")),
        ({"DISABLE_JAX": "1", "DISABLE_NUMBA": "1"}, Settings(disabled=frozenset({"xla", "numba"}))),
        ({"DISABLE_TORCH": "1", "NN_DISABLE": "cuda"}, Settings(disabled=frozenset({"torch", "cuda"}))),
        ({"DISABLE_JAX": "1", "NN_DISABLE_XLA": "0"}, Settings()),
        ({"DISABLE_NUMBA": "1", "NN_FORCE_BACKEND": "numba"}, Settings(force_backend="numba")),
        ({"DISABLE_JAX": "", "FORCE_TORCH": "0"}, Settings()),
        ({"GPU_MEMORY_LIMIT": "0.8"}, Settings(gpu_memory_limit="0.8")),
        ({"GPU_MEMORY_LIMIT": "0.8", "NN_GPU_MEMORY_LIMIT": "2GiB"}, Settings(gpu_memory_limit="2GiB")),
        ({"ENABLE_LEARNING": "0"}, Settings(mode="prior")),
        ({"ENABLE_LEARNING": "1"}, Settings(mode="learn")),
        ({"ENABLE_LEARNING": "0", "NN_SELECTION": "frozen"}, Settings(mode="frozen")),
        ({"DISABLE_THE_LOGO": "1", "FORCE_GPU": "1"}, Settings()),  # HPFRACC's own business
    ],
)
def test_the_older_names_are_honoured_and_the_newer_ones_win(environ, expected):
    assert from_environment({f"HPFRACC_{name}": value for name, value in environ.items()}) == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FORCE_JAX": "2"}, "HPFRACC_FORCE_JAX='2': needs one of 1, true, yes, on, 0, false, no, off."),
        ({"DISABLE_NUMBA": "x"}, "HPFRACC_DISABLE_NUMBA='x': needs one of 1, true, yes, on, 0, false, no, off."),
        ({"GPU_MEMORY_LIMIT": "-1"}, f"HPFRACC_GPU_MEMORY_LIMIT='-1': {LIMIT}"),
        ({"ENABLE_LEARNING": "x"}, "HPFRACC_ENABLE_LEARNING='x': needs one of 1, true,"),
        (
            {"FORCE_JAX": "1", "FORCE_NUMBA": "1"},
            "HPFRACC_FORCE_JAX and HPFRACC_FORCE_NUMBA: needs at most one of them to be 1; unset the others, or set "
            "HPFRACC_NN_FORCE_BACKEND.",
        ),
    ],
)
def test_a_bad_value_of_an_older_name_is_refused(environ, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        from_environment({f"HPFRACC_{name}": value for name, value in environ.items()})


def test_where_an_older_name_disables_the_last_kernel_the_way_out_is_named():
    with registering() as add:
        add(fake("torch/fft"))
        settings = from_environment({"HPFRACC_DISABLE_TORCH": "1", "HPFRACC_NN_CALIBRATION": "shipped"})
        with pytest.raises(LookupError, match=r"torch/fft: disabled.*configure\(disable=None\).*HPFRACC_DISABLE_\*"):
            BackendManager(settings).plan(WORK)


def test_what_is_shown_holds_our_variables_and_those_that_choose_devices():
    environ = {"HPFRACC_NN_SELECTION": "off", "HPFRACC_FORCE_JAX": "0", "JAX_PLATFORMS": "cpu", "PATH": "/bin"}
    assert shown(environ) == {
        "HPFRACC_FORCE_JAX": "0",
        "HPFRACC_NN_SELECTION": "off",
        "JAX_PLATFORM_NAME": None,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": None,
    }


def test_determinism_follows_the_framework_unless_it_is_set(monkeypatch):
    asked = FakeProbe()
    monkeypatch.setitem(_probes, "torch", asked)
    assert not Settings().is_deterministic("torch")
    monkeypatch.setattr(asked, "deterministic", lambda: True)
    assert Settings().is_deterministic("torch")
    assert not Settings(deterministic=False).is_deterministic("torch")
    assert Settings(deterministic=True).is_deterministic("a framework without a probe")
    assert not Settings().is_deterministic("a framework without a probe")


def test_torchs_own_switch_is_followed():
    torch = pytest.importorskip("torch")
    pytest.importorskip("hpfracc_nn.fractional.torch.probe")
    before = torch.are_deterministic_algorithms_enabled()
    try:
        for wanted in (True, False):
            torch.use_deterministic_algorithms(wanted)
            assert Settings().is_deterministic("torch") is wanted
    finally:
        torch.use_deterministic_algorithms(before)


class NVMLError(Exception):
    pass


def nvml(*, count=1, fails=None):
    """Return a stand-in for pynvml in which the function named `fails` raises."""

    def call(name, result):
        def answer(*_):
            if name == fails:
                raise NVMLError("Not Supported")
            return result

        return answer

    results = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": count,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetTotalEnergyConsumption": 1000,
    }
    return types.SimpleNamespace(NVMLError=NVMLError, **{name: call(name, got) for name, got in results.items()})


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "the package pynvml is not installed (pip install nvidia-ml-py)"),
        (nvml(fails="nvmlInit"), "NVML does not start (Not Supported)"),
        (nvml(count=0), "NVML knows no GPU"),
        (nvml(fails="nvmlDeviceGetTotalEnergyConsumption"), "a GPU does not tell its energy (Not Supported)"),
    ],
)
def test_energy_is_refused_with_the_reason_where_it_cannot_be_read(monkeypatch, module, reason):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    message = f"objective='energy': energy cannot be read here: {reason}; use latency or memory."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fake_manager().configure(objective="energy")
    with pytest.raises(ValueError, match=re.escape(reason)):
        Settings(objective={"latency": 1, "energy": 0.1})


def test_energy_is_accepted_where_it_can_be_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert Settings(objective={"energy": 3}).objective == "energy"


def test_nvml_is_asked_only_where_energy_counts(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(fails="nvmlInit"))
    assert Settings(objective={"latency": 1, "energy": 0}).objective == "latency"
