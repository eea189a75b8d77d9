"""The kinds by name, and the check of a group's fractional options."""

from __future__ import annotations

from hpfracc_nn.training import power_law
from hpfracc_nn.training.fractional_options import check_alpha, check_kind, check_memory
from hpfracc_nn.training.torch.optimizers.averages import Average
from hpfracc_nn.training.torch.optimizers.caputo import ClosedForm, FixedTerminal
from hpfracc_nn.training.torch.optimizers.kind import Group, Kind

KINDS: dict[str, Kind] = {
    **{name: Average(law) for name, law in power_law.LAWS.items()},
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
    check_alpha(group["alpha"])
    check_kind(group["kind"], KINDS)
    check_memory(group["memory"])
    fault = kind_of(group).fault(group)
    if fault is not None:
        raise ValueError(fault)
