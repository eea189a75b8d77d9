"""Which definitions the tests of kernels and shells run on, and at which orders."""

from collections.abc import Iterable

from hpfracc_nn.fractional.definitions import (
    Caputo,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
)

# A kernel knows stencils, not definitions. These have every kind of stencil there is: a Taylor polynomial of one or two
# terms subtracted or not, starting and analytic columns or none, m from -1 to 2. `test_definitions.py` runs on all.
CLASSICAL: list[type[Definition]] = [Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral]
SCHEMES = [(kind, scheme) for kind in CLASSICAL for scheme in kind.schemes]


def within(kind: type[Definition], alphas: Iterable[float]) -> list[float]:
    """Return the orders that a definition has."""
    return [alpha for alpha in alphas if kind.lowest <= alpha <= kind.highest]
