"""What the settings may be: bounds, limits on memory, objectives, determinism, and how a wrong one is refused."""

import pathlib
import pickle
import re
import sys
import types
from dataclasses import fields, replace

import pytest

from hpfracc_nn.selection import Settings
from hpfracc_nn.selection.registry import _probes
from hpfracc_nn.selection.settings import SettingsChanges, amount
from tests.selection_kernels import FakeProbe, fake_manager

LIMIT = (
    "needs a whole number of bytes, a fraction in (0, 1], or text such as '4GiB', with one of the units "
    "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB."
)
OBJECTIVE = "needs one of latency, memory, energy, or weights of them such as {'latency': 1, 'memory': 0.5}"


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
        "offload": True,
        "wisdom": tmp_path,
        "calibration": "shipped",
        "sample": False,
        "disable": "cuda",
        "force_backend": "torch",
        "force_algorithm": "fft",
    }
    assert set(given) == set(SettingsChanges.__annotations__)
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
    pytest.importorskip("hpfracc_nn.fractional.torch.device")
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
