"""The kinds by name, and the check of a group's fractional options."""

from __future__ import annotations

from numbers import Integral, Real

from hpfracc_nn.training import power_law
from hpfracc_nn.training.torch.optimizers.averages import Average
from hpfracc_nn.training.torch.optimizers.caputo import ClosedForm, FixedTerminal
from hpfracc_nn.training.torch.optimizers.kind import EXPONENTIALS, Group, Kind

KINDS: dict[str, Kind] = {
    "integral": Average(power_law.integral, is_normalised=True, fades=True),
    "difference": Average(power_law.difference, is_normalised=False),
    "fcgd": Average(power_law.fcgd, is_normalised=False, drops=True),
    "caputo": ClosedForm(),
    "caputo_terminal": FixedTerminal(),
}


def kind_of(group: Group) -> Kind:
    """Return the kind of a parameter group."""
    return KINDS[group["kind"]]


def is_identity(group: Group) -> bool:
    """Whether the gradients of a parameter group stay what they are."""
    return kind_of(group).is_identity(group)


def check_options(group: Group) -> None:
    """Raise unless alpha, kind and memory of a parameter group are good, alone and with its other options.

    Raises:
        TypeError: alpha is not a number, or memory neither a whole number nor "exponentials".
        ValueError: One is out of range or unknown, or the kind does not support another option.
    """
    alpha, kind, memory = group["alpha"], group["kind"], group["memory"]
    if isinstance(alpha, bool) or not isinstance(alpha, Real):
        raise TypeError(f"Invalid alpha type: {type(alpha).__name__}: needs a number; pass a float such as alpha=0.9")
    if not 0 < float(alpha) <= 1:
        raise ValueError(f"Invalid alpha value: {alpha}: needs 0 < alpha <= 1; pass alpha=1 for the base optimizer")
    if not (isinstance(kind, str) and kind in KINDS):
        raise ValueError(f"Invalid kind: {kind!r}: needs one of {', '.join(map(repr, KINDS))}; pass one of these names")
    if not (isinstance(memory, str) and memory == EXPONENTIALS):
        if isinstance(memory, bool) or not isinstance(memory, Integral):
            raise TypeError(
                f"Invalid memory type: {type(memory).__name__}: needs a whole number or {EXPONENTIALS!r}; "
                "pass the number of gradients to average, such as memory=10"
            )
        if memory < 1:
            raise ValueError(
                f"Invalid memory value: {memory}: needs memory >= 1; pass the number of gradients to average, such as "
                "memory=10"
            )
    fault = KINDS[kind].fault(group)
    if fault is not None:
        raise ValueError(fault)
