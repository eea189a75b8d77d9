"""fsdeint: the same increments make the same paths, and the same gradients."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from hpfracc_nn.solvers import HISTORIES, SDE, STOCHASTIC_SCHEMES, VOLTERRA_WEIGHTS, Given
from hpfracc_nn.solvers.rules import RULES
from tests.parity_cases import ParityCase

STEPS, DT = 7, 0.15
OUTPUTS = DT * np.array([0, 2, 3, STEPS])  # not all of the steps
BATCH, DIM, MOTIONS = 2, 3, 2
NOISE = {"diagonal": (DIM,), "additive": (DIM,), "scalar": (1,), "general": (MOTIONS,)}


def equation(xp: ModuleType, noise_type: str, given: Any) -> SDE:
    """Return a nonlinear equation, in the text of both frameworks."""
    inner, mix = given["inner"], given["mix"]

    def drift(t, y):
        return xp.tanh(y @ inner) + xp.sin(t)

    def diffusion(t, y):
        if noise_type == "diagonal":
            return mix[None, :, 0] * xp.cos(y) * (1 + t)
        if noise_type == "additive":
            return xp.ones_like(y) * mix[None, :, 0] * (1 + t)
        if noise_type == "scalar":
            return (mix[None, :, 1] * xp.cos(y))[..., None]
        return xp.cos(y)[..., None] * mix[None]

    return SDE(drift, diffusion, noise_type)


def inputs(noise_type: str, streams: int, alpha: Any = None) -> Any:
    def make(rng: np.random.Generator) -> dict[str, np.ndarray]:
        shape = (STEPS, *((2,) if streams > 1 else ()), BATCH, *NOISE[noise_type])
        found = {
            "y0": rng.standard_normal((BATCH, DIM)),
            "inner": rng.standard_normal((DIM, DIM)),
            "mix": rng.standard_normal((DIM, MOTIONS)),
            "noise": rng.standard_normal(shape) * np.sqrt(DT),
        }
        return (
            found if alpha is None else {**found, "alpha": np.asarray(alpha) + 0.01 * rng.uniform(size=np.shape(alpha))}
        )

    return make


def solved_by_torch(noise_type: str, given: Any, **options: Any) -> Any:
    import torch

    from hpfracc_nn.solvers.torch import fsdeint

    options = {"noise": Given(given["noise"]), **options}
    if "alpha" in given:
        options["alpha"] = given["alpha"]
    return fsdeint(equation(torch, noise_type, given), given["y0"], OUTPUTS, dt=DT, **options)  # type: ignore[type-var]


def solved_by_jax(noise_type: str, given: Any, **options: Any) -> Any:
    from jax import numpy as jnp

    from hpfracc_nn.solvers.jax import fsdeint

    options = {"noise": given["noise"], **options}
    if "alpha" in given:
        options["alpha"] = given["alpha"]
    return fsdeint(equation(jnp, noise_type, given), given["y0"], OUTPUTS, dt=DT, **options)


def case(
    name: str, noise_type: str, streams: int = 1, *, adjoint: bool, alpha: Any = None, **options: Any
) -> ParityCase:
    return ParityCase(
        f"fsdeint {name}, {'adjoint' if adjoint else 'plain'}",
        inputs(noise_type, streams, alpha),
        lambda given: solved_by_torch(noise_type, given, **options),
        lambda given: solved_by_jax(noise_type, given, adjoint=adjoint, **options),
        slow=name != "euler, ito, diagonal" or not adjoint,
        cancels=name == "hybrid by entry",  # 2.2e-6 of the gradient itself
    )


def one_step_cases():
    """Yield every row of the table for Brownian motion at alpha = 1."""
    for rule in RULES:
        if rule.driver == "brownian" and not rule.has_memory:
            interpretation = rule.interpretations[-1]
            for noise_type in rule.noise_types:
                name = f"{rule.scheme}, {interpretation}, {noise_type}"
                streams = STOCHASTIC_SCHEMES[rule.scheme].streams
                options = {"scheme": rule.scheme, "interpretation": interpretation}
                for adjoint in (True, False):
                    yield case(name, noise_type, streams, adjoint=adjoint, **options)  # type: ignore[arg-type]


def volterra_cases():
    """Yield all weights below alpha = 1, with a fixed and a learned order, and one order for each entry."""
    for weights in VOLTERRA_WEIGHTS:
        streams = 2 if weights == "hybrid" else 1
        for adjoint in (True, False):
            options = {"weights": weights, "history": "full"}
            yield case(f"{weights}", "diagonal", streams, adjoint=adjoint, alpha=0.7, **options)
            if adjoint:
                yield case(f"{weights}, general", "general", streams, adjoint=True, alpha=0.7, **options)
                yield case(f"{weights} by entry", "diagonal", streams, adjoint=True, alpha=[0.6, 0.8, 0.9], **options)
    for history in HISTORIES:
        yield case(f"history {history}", "diagonal", 2, adjoint=True, alpha=0.7, history=history)


CASES = [*one_step_cases(), *volterra_cases()]
