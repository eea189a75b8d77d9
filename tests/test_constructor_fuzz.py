"""Every public constructor, one argument at a time in place of a good one: an object that works, or our own words.

An object works where it can be shown, and copied and pickled as the valid one can, and where a tiny call of it returns
or says what is wrong. Our own words are a ValueError, TypeError or LookupError from a `raise` statement: what Python,
NumPy or a framework says of a value that reached them is none, and neither is a warning. In the call a warning will do,
such as NumPy's where a result overflows.
"""

import copy
import dis
import importlib
import inspect
import pickle
import random
import re
import sys
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.selection import default_manager
from tests.constructor_cases import Call, every_call
from tests.frameworks import is_there
from tests.hostile_values import VALUES

CALLS = every_call()
ROOMS = {
    "hpfracc_nn": "torch",
    "hpfracc_nn.layers.torch": "torch",
    "hpfracc_nn.solvers": "torch",
    "hpfracc_nn.training": "lightning",
    "hpfracc_nn.selection": "numpy",
    "hpfracc_nn.preprocessing": "sklearn",
    "hpfracc_nn.jax": "jax",
    "hpfracc_nn.layers.flax.nnx": "jax",
    "hpfracc_nn.layers.flax.linen": "jax",
    "hpfracc_nn.layers.flax.functional": "jax",
}
NOT_MADE_BY_CALLERS = {
    # Protocols and classes to inherit from.
    *("Definition", "FourierMultiplier", "Noise", "Probe", "Scheme", "StochasticEquation", "StochasticScheme"),
    "VolterraWeights",
    # What a function or a manager returns.
    *("Compilation", "Fit", "HurstEstimate", "Measurement", "Operation", "Plan", "Prediction", "ReportRow", "Share"),
    *("Occurrences", "Solution", "Statistics"),
    *("Site", "Stencil", "StochasticFit", "Stopwatch", "StructureFunction", "Wisdom", "Work", "CostModel", "Place"),
    # Errors, and what only the authors of a kernel write: the tests of kernels run on each.
    *("Doubt", "StepLimit", "WrongResult", "Kernel"),
}
ASKS_FOR = {"Telemetry": "opentelemetry"}  # of public classes, what no room needs
OWN_KINDS = (ValueError, TypeError, LookupError, ArithmeticError)
# What a caller's own function says of arguments that it does not take.
OF_THE_CALLERS_FUNCTION = re.compile(r"takes .*arguments?|missing \d+ required|unexpected keyword")
SAMPLED = 3  # arguments and values of each constructor in the fast suite


def public_classes() -> Iterator[tuple[str, type]]:
    for room, package in ROOMS.items():
        if not is_there(package):
            continue
        module = importlib.import_module(room)
        for name in module.__all__:
            if name in NOT_MADE_BY_CALLERS or not is_there(ASKS_FOR.get(name, "numpy")):
                continue
            if inspect.isclass(found := getattr(module, name)):
                yield f"{room}.{name}", found


def test_every_public_class_has_a_valid_call():
    known = {call.made for call in CALLS}
    missing = [name for name, made in public_classes() if made not in known]
    assert not missing, f"add a `Call` of {', '.join(missing)} to a file in tests/constructor_cases"


@pytest.mark.parametrize("call", [call for call in CALLS if not call.slow], ids=lambda call: call.id)
def test_one_bad_argument_is_refused_in_our_words_or_harmless(call):
    pairs = [(argument, value) for argument in call.arguments for value in VALUES]
    chosen = random.Random(zlib.crc32(call.id.encode())).sample(pairs, min(SAMPLED, len(pairs)))
    assert complaints(call, chosen, uses=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.id)
def test_every_bad_value_of_every_argument(call):
    assert complaints(call, [(argument, value) for argument in call.arguments for value in VALUES], uses=True) == []


def complaints(call: Call, pairs: list[tuple[str, str]], *, uses: bool) -> list[str]:
    """Return what is wrong with a constructor at these arguments and values."""
    valid = call.made(**call.given())
    copies = [way for way in (copy.deepcopy, pickled) if error_of(way, valid) is None]
    before, found = surroundings(), []
    for argument, value in pairs:
        where = f"{argument}={value}"
        found += [f"{where}: {text}" for text in wrongs(call, argument, VALUES[value](), copies, uses)]
        if surroundings() != before:
            found.append(f"{where}: something global was changed")
            before = surroundings()
    return found


def wrongs(call: Call, argument: str, value: Any, copies: list[Any], uses: bool) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a framework's advice on a value that it takes
            made = call.made(**{**call.given(), argument: value})
    except Exception as error:
        if not is_own(error) and not is_the_callers(error):
            yield f"{type(error).__name__} from {last_line(error)}: {error}"
        return
    for way in (repr, *copies):
        failed = error_of(way, made)
        # A function without a name in a module, and the like, pickle and copy as little as elsewhere.
        if failed is not None and (way is repr or error_of(way, value) is None):
            yield f"{way.__name__} of what was made: {type(failed).__name__}: {failed}"
    if uses and call.use is not None:
        failed = error_of(call.use, made)
        if failed is not None and not (is_own(failed) or is_the_callers(failed) or isinstance(failed, Warning)):
            yield f"when called: {type(failed).__name__} from {last_line(failed)}: {failed}"


def error_of(way: Any, value: Any) -> Exception | None:
    try:
        way(value)
    except Exception as error:
        return error
    return None


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def is_own(error: Exception) -> bool:
    """Whether a `raise` statement says it, of a kind that is documented, and in more than a word."""
    frame = last_frame(error)
    says = dis.opname[frame.tb_frame.f_code.co_code[frame.tb_lasti]]
    return isinstance(error, OWN_KINDS) and says in ("RAISE_VARARGS", "RERAISE") and len(str(error).split()) > 2


def is_the_callers(error: Exception) -> bool:
    """Whether it is the caller's own function that does not take the arguments that it is called with."""
    return isinstance(error, TypeError) and bool(OF_THE_CALLERS_FUNCTION.search(str(error)))


def last_frame(error: Exception) -> Any:
    frame: Any = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    return frame


def last_line(error: Exception) -> str:
    frame = last_frame(error)
    return f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"


def surroundings() -> tuple[Any, ...]:
    """Return what no constructor may change."""
    found: list[Any] = [warnings.filters[:], np.geterr(), default_manager().settings, sys.getrecursionlimit()]
    found.append(np.random.get_state()[1].tobytes())  # type: ignore[union-attr,index]  # noqa: NPY002
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found += [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()]
        found.append(torch.are_deterministic_algorithms_enabled())
    if "jax" in sys.modules:
        found.append(sys.modules["jax"].config.jax_enable_x64)
    return tuple(found)
