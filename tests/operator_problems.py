"""Operators that are drawn: any definition, scheme, option and order, on samples at any step."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hpfracc_nn.fractional import DEFINITIONS, Definition
from hpfracc_nn.fractional.namespace import NUMPY
from tests.definition_cases import VARIANTS
from tests.properties import between

EPS = {"float32": float(np.finfo(np.float32).eps), "float64": float(np.finfo(np.float64).eps)}
steps = st.floats(1e-3, 1e3)
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Problem:
    """An operator on n samples at a step, with the generator of the samples."""

    definition: Definition
    n: int
    dt: float
    seed: int

    @property
    def matrix(self) -> np.ndarray:
        return self.definition.stencil(self.n, self.dt, NUMPY).as_matrix()

    def samples(self, *shape: int) -> np.ndarray:
        return np.random.default_rng(self.seed).standard_normal((*shape, self.n))

    @property
    def size(self) -> float:
        """The matrix's largest sum of a row, or the first weight, by which differences are multiplied on their way."""
        first = abs(self.definition.stencil(1, self.dt, NUMPY).column(np.arange(1))).max()
        return float(max(np.abs(self.matrix).sum(axis=-1).max(), first))

    def rounding(self, x: np.ndarray, dtype: str = "float64") -> float:
        """Return what a product with the matrix may lose.

        Samples less their Taylor polynomial are up to 8 n max|x|: x'(0) is a sum of four of them whose weights add up
        to less than 7. They are differenced and summed, n terms of up to `size` times as much.
        """
        return 128 * EPS[dtype] * self.n * self.size * max(1.0, np.abs(x).max(initial=0.0))


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    name = draw(st.sampled_from(sorted(DEFINITIONS)))
    kind = DEFINITIONS[name]
    scheme, options = draw(st.sampled_from(kind.schemes)), draw(st.sampled_from([{}, *VARIANTS.get(name, [])]))
    return kind(draw(between(kind.lowest, kind.highest)), scheme, **options)


@st.composite
def problems(draw: st.DrawFn, least: int = 1, most: int = 40) -> Problem:
    return Problem(draw(definitions()), draw(st.integers(least, most)), draw(steps), draw(seeds))
