"""What the user may say, by the environment and by configure(), and how it is refused."""

import re

import pytest

from hpfracc_nn.selection import BackendManager, Settings, from_environment
from tests.selection_kernels import WORK, fake, fake_manager, registering

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
