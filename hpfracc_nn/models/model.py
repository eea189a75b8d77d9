"""Models: networks of elements with parameters that are numbers, arrays, or unknown.

A parameter that is not given is unknown, and `fit` estimates it. An unknown parameter has the name of its field, with a
number where several elements have the same field: `Spring() | (SpringPot() - SpringPot())` has G, V_1, alpha_1, V_2,
alpha_2. A string in place of a value gives it another name; two parameters with one name are one parameter, and numbers
skip names that are taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain, count
from typing import Any, ClassVar, Self

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.models import networks
from hpfracc_nn.models.networks import ORDER, Network

Parameter = Any  # a number, an array that broadcasts, a name, or None where it is unknown

ORDERS = frozenset({"alpha", "beta", "gamma"})  # the fields that are orders, in [0, 1]; all others are positive
SERIES, PARALLEL = "-", "|"


@dataclass(frozen=True)
class Model(ABC):
    """A linear, causal model: a network whose elements are in series, `a - b`, or in parallel, `a | b`.

    As everywhere in Python `-` binds more tightly than `|`.

    Examples:
        >>> from hpfracc_nn.models.rheology import Spring, SpringPot
        >>> solid = Spring(G=2) | SpringPot()
        >>> isinstance(solid, Model), solid.unknowns
        (True, ('V', 'alpha'))
    """

    domain: ClassVar[str]  # "rheology" or "impedance"
    adds: ClassVar[str]  # the arrangement, SERIES or PARALLEL, in which the functions F(s) of the parts add up
    exchangeable: ClassVar[tuple[str, ...]] = ()  # fields (coefficient, order) of each of two exchangeable parts

    def __post_init__(self) -> None:
        """Check the parameters that are numbers."""
        for each in fields(self):
            check_parameter(f"{type(self).__name__}({each.name}", each.name, getattr(self, each.name))
        self._check_names()

    @abstractmethod
    def _network(self) -> Network:
        """Return the network of the model, whose fields are values or names by now."""

    @property
    def network(self) -> Network:
        """The network F(s) of the model, with a name for each parameter that is unknown."""
        return self.named()._network()

    @property
    def unknowns(self) -> tuple[str, ...]:
        """The names of the parameters that are unknown."""
        return tuple(dict.fromkeys(name for _, name in self.named()._slots() if isinstance(name, str)))

    @property
    def roles(self) -> dict[str, str]:
        """Whether an unknown parameter is "positive" or an "order", by name."""
        return {name: _role(field) for field, name in self.named()._slots() if isinstance(name, str)}

    @property
    def label(self) -> str:
        """What the model is called in tables and plots: its class, with the parameters that have values."""
        known = [f"{field}={value:g}" for field, value in self._slots() if isinstance(value, int | float)]
        return type(self).__name__ + (f"({', '.join(known)})" if known else "")

    def named(self) -> Self:
        """Return the model with a name for each parameter that is unknown."""
        slots = list(self._slots())
        counts = Counter(field for field, value in slots if value is None)
        taken = {value for _, value in slots if isinstance(value, str)}

        def name(field: str, value: Any) -> Any:
            if value is not None:
                return value
            candidates = chain([field] if counts[field] == 1 else [], (f"{field}_{k}" for k in count(1)))
            found = next(each for each in candidates if each not in taken)
            taken.add(found)
            return found

        return self._replaced(name)

    def at(self, **values: Any) -> Self:
        """Return the model with values for parameters that are unknown.

        Raises:
            ValueError: A name is not that of an unknown parameter, or a value is out of its range.

        Examples:
            >>> from hpfracc_nn.models.rheology import SpringPot
            >>> SpringPot(alpha=0.5).at(V=2.0)
            SpringPot(V=2.0, alpha=0.5)
        """
        known = self.unknowns
        for name in values:
            if name not in known:
                raise ValueError(
                    f"{type(self).__name__}.at({name}=...): needs the name of an unknown parameter; they are "
                    f"{', '.join(known) or 'none: every parameter has a value'}."
                )
        return self.named()._replaced(lambda _, value: values.get(value, value) if isinstance(value, str) else value)

    def _check_names(self) -> None:
        """Raise ValueError where one name is that of a positive number and of an order."""
        first: dict[str, str] = {}
        for field, name in self._slots():
            if isinstance(name, str) and _role(first.setdefault(name, field)) != _role(field):
                positive, order = sorted((first[name], field), key=lambda each: _role(each) == ORDER)
                raise ValueError(
                    f"{self.label}: needs a name for one kind of parameter; {name!r} is the name of {positive}, a "
                    f"positive number, and of {order}, an order; give one of them another name."
                )

    def _slots(self) -> Iterator[tuple[str, Any]]:
        """Yield (name of the field, parameter) for every parameter, which is a value, a name, or None."""
        for each in fields(self):
            yield each.name, getattr(self, each.name)

    def _replaced(self, field: Callable[[str, Any], Any]) -> Self:
        """Return the model with other parameters: `field(name of the field, parameter)` in place of each."""
        return replace(self, **{each.name: field(each.name, getattr(self, each.name)) for each in fields(self)})

    def _beside(self, symbol: str, other: Model) -> tuple[Model, ...] | None:
        """Return the parts of this model and `other` arranged by `symbol`; None where `other` is of another domain."""
        if not isinstance(other, Model) or other.domain != self.domain:
            return None
        return (*self._parts(symbol), *other._parts(symbol))

    def _parts(self, symbol: str) -> tuple[Model, ...]:
        """Return the parts of the model in an arrangement by `symbol`: itself, or its own parts if it is such one."""
        return (self,)

    def _known(self, owner: str) -> Network:
        """Return the network, or raise ValueError where a parameter is unknown."""
        if self.unknowns:
            raise ValueError(
                f"{type(self).__name__}.{owner}(): needs a value for every parameter; {', '.join(self.unknowns)} "
                f"{'has' if len(self.unknowns) == 1 else 'have'} none; pass them to the model, or use the model that "
                "fit(...).model is."
            )
        return self._network()


@dataclass(frozen=True, repr=False)
class Arrangement(Model):
    """Models in series or in parallel.

    Attributes:
        symbol: "-" in series, "|" in parallel.
        parts: The models.
    """

    symbol: str
    parts: tuple[Model, ...]

    def __post_init__(self) -> None:
        """Check the names of the parts, whose values were checked when they were made."""
        self._check_names()

    def __repr__(self) -> str:
        """Return the expression that makes the model."""
        bracketed = [f"({each})" if isinstance(each, Arrangement) else repr(each) for each in self.parts]
        return f" {self.symbol} ".join(bracketed)

    @property
    def label(self) -> str:
        """See `Model.label`."""
        labels = [f"({each.label})" if isinstance(each, Arrangement) else each.label for each in self.parts]
        return f" {self.symbol} ".join(labels)

    def _network(self) -> Network:
        found = tuple(each._network() for each in self.parts)
        return networks.added(found) if self.symbol == self.adds else networks.joined(found)

    def _slots(self) -> Iterator[tuple[str, Any]]:
        for each in self.parts:
            yield from each._slots()

    def _replaced(self, field: Callable[[str, Any], Any]) -> Self:
        return replace(self, parts=tuple(each._replaced(field) for each in self.parts))

    def _parts(self, symbol: str) -> tuple[Model, ...]:
        return self.parts if symbol == self.symbol else (self,)


def _role(field: str) -> str:
    return ORDER if field in ORDERS else networks.POSITIVE


def check_parameter(owner: str, field: str, value: Any) -> None:
    """Raise ValueError where a parameter is out of its range, and TypeError where it is no number, array or name.

    The values of tensors and JAX arrays are not checked.
    """
    if value is None or isinstance(value, str):
        return
    number = errors.as_float(value)
    if number is None and not isinstance(value, np.ndarray):
        if not hasattr(value, "dtype"):
            raise TypeError(
                f"{owner}={value!r}): needs a number, an array, a name, or None where it is unknown; pass one of them."
            )
        return  # a tensor or a JAX array, whose values are not looked at
    values = np.atleast_1d(np.asarray(value if number is None else number, dtype=float))
    if field in ORDERS:
        wrong, rule, way = values[~((values >= 0) & (values <= 1))], f"0 <= {field} <= 1", "an order such as 0.5"
    else:
        wrong, rule, way = values[~((values > 0) & (values < np.inf))], f"{field} > 0", "a positive number"
    for each in wrong[:1]:
        raise ValueError(f"{owner}={each:g}): needs {rule}; pass {way}.")
