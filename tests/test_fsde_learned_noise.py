"""Noises that hold tensors of their own: where these are found, they get their gradients; where not, it is said."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import fsdeint
from hpfracc_nn.solvers.noise import CompoundPoisson, Noise
from tests.sde_cases import Network, assert_same, gradients


@dataclass(frozen=True, eq=False)
class Held(Noise):
    """Brownian motion times a scale that `get` takes out of what is held."""

    held: Any
    get: Any
    name = "held"

    def increments(self, n_steps, shape, dt, source, state):
        return self.get(self.held) * math.sqrt(dt) * source.normal((n_steps, *shape)), ()


class Law:
    """Jumps of a size that a plain attribute holds."""

    trailing = ()
    mean_square = 0.5

    def characteristic(self, k):
        raise NotImplementedError("no law is compared")

    def __init__(self, size):
        self.size = size

    def total(self, counts, source):
        return counts * source.cast(self.size)


@dataclass(frozen=True, slots=True)
class Slotted:
    scale: Any


class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.inner = torch.nn.ParameterDict({"scale": torch.nn.Parameter(scale.detach().clone())})
        self.plain = scale  # no parameter


HOLDERS = {
    "a law's attribute": lambda x: CompoundPoisson(40.0, Law(x)),
    "a tuple": lambda x: Held((0.5, x), lambda held: held[1]),
    "a list in a dict": lambda x: Held({"scales": [x]}, lambda held: held["scales"][0]),
    "slots": lambda x: Held(Slotted(x), lambda held: held.scale),
    "a module's attribute": lambda x: Held(Scaled(x), lambda held: held.plain),
    "a closure": lambda x: Held(None, lambda held: x),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_tensor_that_a_noise_holds_somewhere_gets_its_gradient(holder):
    size = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    noise = HOLDERS[holder](size)
    found, expected = (gradients(Network("additive"), adjoint, noise=noise, also=[size]) for adjoint in (True, False))
    assert found[-1].abs() > 0
    assert_same(found, expected)


def test_a_parameter_of_a_module_that_a_noise_holds_gets_its_gradient():
    module = Scaled(torch.tensor(0.7, dtype=torch.float64))
    noise, also = Held(module, lambda held: held.inner["scale"]), list(module.parameters())
    found, expected = (gradients(Network("additive"), adjoint, noise=noise, also=also) for adjoint in (True, False))
    assert found[-1].abs() > 0
    assert_same(found, expected)


ELSEWHERE = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)


class Hidden(Noise):
    name = "hidden"

    def increments(self, n_steps, shape, dt, source, state):
        return ELSEWHERE * math.sqrt(dt) * source.normal((n_steps, *shape)), ()


@pytest.mark.parametrize("n_steps", [20, 3000])  # noise that is kept, and noise that is drawn again
def test_a_noise_with_a_gradient_in_a_tensor_that_it_does_not_hold_is_refused(n_steps):
    with pytest.raises(ValueError, match=r"noise of type Hidden\): its increments have a gradient.*adjoint=False"):
        gradients(Network("additive"), True, noise=Hidden(), n_steps=n_steps)
    with torch.no_grad():
        fsdeint(Network("additive"), torch.zeros(2, 3).double(), [0.0, 1.0], dt=0.1, noise=Hidden())
