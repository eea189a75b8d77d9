"""Which definitions the tests of kernels and shells run on, and at which orders."""

from collections.abc import Iterable
from typing import Any

import pytest

from hpfracc_nn.fractional.definitions import (
    DEFINITIONS,
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


# Other options than the default ones: (class) -> what to test besides.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "tempered_caputo": [{"rate": 0.02}, {"rate": 30.0}],
    "tempered_riemann_liouville": [{"rate": 0.02}, {"rate": 30.0}],
    "caputo_fabrizio": [{"unit": 0.3}],
    "atangana_baleanu": [{"unit": 0.3}, {"sense": "riemann_liouville"}],
    "marchaud": [{"history": "zero"}],
}
Case = tuple[type[Definition], dict[str, Any]]
ALL: dict[str, Case] = {
    "-".join([name, scheme, *map(str, options.values())]): (kind, {"scheme": scheme, **options})
    for name, kind in DEFINITIONS.items()
    for scheme in kind.schemes
    for options in ({}, *(VARIANTS.get(name, []) if scheme == kind.scheme else []))
}
NEW = {case: found for case, found in ALL.items() if not issubclass(found[0], tuple(CLASSICAL))}


def over(cases: dict[str, Case]) -> Any:
    return pytest.mark.parametrize(("kind", "options"), cases.values(), ids=list(cases))


def only_the_first_of_each_kind_is_fast() -> Any:
    seen: set[type] = set()
    cases = []
    for case, (kind, options) in NEW.items():
        cases.append(pytest.param(kind, options, id=case, marks=[pytest.mark.slow] if kind in seen else []))
        seen.add(kind)
    return pytest.mark.parametrize(("kind", "options"), cases)
