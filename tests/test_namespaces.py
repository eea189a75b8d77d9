"""The functions of a namespace, which give the same numbers for every framework's arrays."""

from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

torch = pytest.importorskip("torch")

from hpfracc_nn.fractional.jax.arrays import JAX  # noqa: E402
from hpfracc_nn.fractional.namespace import NUMPY, Namespace, namespace  # noqa: E402
from hpfracc_nn.fractional.torch.namespace import TORCH  # noqa: E402

X = np.random.default_rng(0).uniform(0.1, 0.9, (2, 3, 4))
CALLS: dict[str, Any] = {
    **{
        name: lambda xp, x, name=name: getattr(xp, name)(x)
        for name in (
            "exp",
            "log",
            "log1p",
            "expm1",
            "cos",
            "sin",
            "acos",
            "floor",
            "abs",
            "gammaln",
            "expit",
            "fft",
            "ifft",
        )
    },
    "fft": lambda xp, x: xp.fft(x),
    "ifft": lambda xp, x: xp.ifft(x),
    "angle": lambda xp, x: xp.angle(xp.fft(x)[..., 1:2]),  # not of a real number, whose angle is pi or -pi
    "iscomplexobj": lambda xp, x: np.array([xp.iscomplexobj(x), xp.iscomplexobj(xp.fft(x))]),
    "where": lambda xp, x: xp.where(x > 0.5, x, 0 * x),
    "polygamma": lambda xp, x: xp.polygamma(1, x),
    "matmul": lambda xp, x: xp.matmul(x, x.mT),
    "toeplitz": lambda xp, x: xp.toeplitz(x, x.shape[-1]),
    "toeplitz of a longer matrix": lambda xp, x: xp.toeplitz(x, 6),
    "toeplitz, too large for NumPy": lambda xp, x: xp.toeplitz(xp.pad(x, 0, 400, axis=-1), 400 + x.shape[-1]),
    "convolve": lambda xp, x: xp.convolve(x, x),
    "sum": lambda xp, x: xp.sum(x, axis=1, keepdims=True),
    "max": lambda xp, x: xp.max(x, axis=1),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=1),
    "cumulative_prod": lambda xp, x: xp.cumulative_prod(x, axis=1),
    "flip": lambda xp, x: xp.flip(x, axis=1),
    "take": lambda xp, x: xp.concat(
        [xp.take(x, np.array([1, 2]), axis=1), xp.take(x, np.array([2, 0]), axis=-2)], axis=1
    ),
    "take what begins and ends like a range": lambda xp, x: xp.concat(
        [xp.take(x, np.array([0, 2, 1, 3]), axis=2), xp.take(x, np.array([0, 0, 2]), axis=2)], axis=2
    ),
    "take by a matrix": lambda xp, x: xp.take(x, np.array([[1, 2], [3, 0]]), axis=-1),
    "stack": lambda xp, x: xp.stack([x, 2 * x], axis=-2),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
    "astype": lambda xp, x: xp.astype(x, xp.zeros((1,), x).dtype),
    "zeros": lambda xp, x: xp.zeros((2, 3), x),
    "constant": lambda xp, x: xp.constant(X, x),
}


TOLERANCES = {"polygamma": 1e-9}  # torch's trigamma sums six terms of an asymptotic series


@pytest.mark.parametrize("xp", [TORCH, JAX], ids=["torch", "jax"])
@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_the_numbers_of_numpy(name: str, xp: Namespace) -> None:
    with jax.enable_x64(True):
        found = CALLS[name](xp, xp.asarray(X))
        np.testing.assert_allclose(
            torch.resolve_conj(found) if isinstance(found, torch.Tensor) else found,
            CALLS[name](NUMPY, X),
            rtol=TOLERANCES.get(name, 1e-13),
            atol=1e-14,
        )


def test_an_array_knows_its_namespace() -> None:
    assert namespace(X) is NUMPY
    assert namespace(torch.nn.Parameter(torch.ones(1))) is TORCH
    assert namespace(jnp.ones(1)) is JAX
    assert jax.jit(lambda x: x * (namespace(x) is JAX))(1.0) == 1
