"""Solves outside of `jax.jit`: what was compiled once is found again by what it computes.

A right-hand side is traced at each call, because what it reads may have changed since; what is found is compared, not
the function. So a solve is compiled again where f computes something else, and where it does not it is not, whatever
values it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from hpfracc_nn.solvers.jax.arguments import is_traced


@dataclass(frozen=True)
class _Program:
    """What is compiled, equal to others by its facts.

    Attributes:
        facts: All that it depends on besides its arguments.
        run: A function of arrays that closes over none that is traced.
    """

    facts: Hashable
    run: Callable[..., Any] = field(compare=False)


@dataclass(frozen=True, eq=False)
class _Same:
    """A value that is equal to itself alone; it is held, so that its address is not given to another."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def is_staged() -> bool:
    """Return whether what is computed now becomes part of a program."""
    return is_traced(jnp.zeros(()))


def compiled(facts: Hashable, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run`, compiled; that of an earlier call with the same facts where there is one."""
    return _compiled(_Program(facts, run))


@lru_cache(maxsize=32)
def _compiled(program: _Program) -> Callable[..., Any]:
    return jax.jit(program.run)


def facts_of(jaxpr: Jaxpr) -> Hashable:
    """Return what a traced function computes: equal for two that do the same by the same operations."""
    numbers: dict[Any, int] = {}

    def made(variables: Any) -> tuple[Hashable, ...]:
        return tuple((numbers.setdefault(each, len(numbers)), each.aval) for each in variables)

    def read(atoms: Any) -> tuple[Hashable, ...]:
        return tuple(
            (_fact(np.asarray(each.val)), each.aval) if isinstance(each, Literal) else numbers[each] for each in atoms
        )

    found: list[Hashable] = [made(jaxpr.constvars), made(jaxpr.invars)]
    for equation in jaxpr.eqns:
        taken = read(equation.invars)
        found.append((equation.primitive, taken, made(equation.outvars), _fact(equation.params), _fact(equation.ctx)))
    return (*found, read(jaxpr.outvars))


def _fact(value: Any) -> Hashable:
    if isinstance(value, Jaxpr):
        return facts_of(value)
    if isinstance(value, ClosedJaxpr):
        return facts_of(value.jaxpr), tuple(map(_fact, value.consts))
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_fact, value))
    if isinstance(value, dict):
        return tuple((name, _fact(each)) for name, each in sorted(value.items()))
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, jax.Array) or not isinstance(value, Hashable):
        return _Same(value)
    return type(value), value
