"""Values of the parameters of every model, with orders inside their bounds, for tests over the registries."""

from dataclasses import fields

from hpfracc_nn.models.impedance import CIRCUITS
from hpfracc_nn.models.rheology import MATERIALS

_VALUES = {
    "V": 2.0,
    "alpha": 0.7,
    "G": 3.0,
    "beta": 0.2,
    "K": 0.5,
    "eta": 0.3,
    "eta_m": 2.0,
    "tau": 1.5,
    "R": 4.0,
    "C": 0.3,
    "L": 0.2,
    "Q": 0.6,
    "sigma": 1.2,
    "gamma": 0.6,
}

PARAMETERS = {
    kind: {field.name: _VALUES[field.name] for field in fields(kind)}
    for kind in (*MATERIALS.values(), *CIRCUITS.values())
}
