"""Recurrent layers for Flax whose cells remember by a power law: see `layers.py`."""

from hpfracc_nn.layers.flax.functional.recurrent.layers import FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.flax.functional.recurrent.state import RecurrentState

__all__ = ["FractionalGRU", "FractionalLSTM", "RecurrentState"]
