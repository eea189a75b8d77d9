"""What the user may say, by the environment and by configure(), and how it is refused."""

import re
from pathlib import Path

import pytest

from hpfracc_nn.selection import BackendManager, Settings, from_environment
from hpfracc_nn.selection.settings import VARIABLES, SettingsChanges, shown
from tests.selection_kernels import WORK, fake, fake_manager, registering

BACKENDS = "torch, numba, xla, triton, pallas, cuda, numpy"
ALGORITHMS = "dense, chunked_scan, recurrence, fft, foreach, matmul, blocks, offload"
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
        }
    )
    assert settings == Settings("torch", "fft", frozenset({"cuda", "torch/dense", "numba"}), "shipped")


def test_a_misspelt_variable_is_warned_of():
    with pytest.warns(UserWarning, match=r"^HPFRACC_NN_SELECTON is not known .*; known is HPFRACC_NN_SELECTION\.$"):
        assert from_environment({"HPFRACC_NN_SELECTON": "off"}) == Settings()
    with pytest.warns(UserWarning, match=r"known is HPFRACC_NN_FORCE_BACKEND, .*, HPFRACC_NN_WISDOM\.$"):
        from_environment({"HPFRACC_NN_X": "1"})


@pytest.mark.parametrize(
    ("said", "meant"), [("OFF", "off"), ("0", "off"), ("Default", "default"), ("/tmp/Off", "/tmp/Off")]
)
def test_wisdom_is_switched_off_by_any_word_for_it(said, meant):
    assert from_environment({"HPFRACC_NN_WISDOM": said}).wisdom == meant


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


@pytest.mark.parametrize("bad", [3, ["numba", 3], b"numba", {"numba": 1, 3: 1}], ids=repr)
def test_what_is_no_list_of_names_to_disable_is_told_what_is(bad):
    manager = fake_manager()
    before = manager.settings
    message = f"disable={bad!r}: {DISABLE.replace('needs', 'needs a comma list or an iterable of names: each')}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        manager.configure(disable=bad)
    assert manager.settings is before


def test_settings_take_names_to_disable_in_any_form():
    for form in ("numba, cuda", ["numba", "cuda"], {"numba", "cuda"}, frozenset({"numba", "cuda"})):
        assert Settings(disabled=form).disabled == {"numba", "cuda"}  # type: ignore[arg-type]


def test_configure_changes_only_what_is_given_and_none_clears():
    manager = fake_manager(mode="learn", wisdom="default", force_backend="torch", disabled=frozenset({"cuda"}))
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


def test_the_documentation_lists_the_settings_and_their_variables():
    text = (Path(__file__).parents[1] / "docs" / "selection.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`HPFRACC_NN_(\w+)`)? ?\|", text, re.MULTILINE))
    variables = {"disable" if name == "disabled" else name: variable for name, (variable, _) in VARIABLES.items()}
    assert {name: rows.get(name) for name in SettingsChanges.__annotations__} == {
        name: variables.get(name, "") for name in SettingsChanges.__annotations__
    }
