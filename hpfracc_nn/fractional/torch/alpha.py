"""The learned order alpha: a free parameter mapped into bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn.fractional.alpha import Bounds, check_inside, check_taken, finite_bounds, first_values, order_shape
from hpfracc_nn.fractional.torch.place import check_place, gathered, placed_as, read
from hpfracc_nn.fractional.torch.probe import is_watched
from hpfracc_nn.fractional.torch.stated import Stated, with_axes


class Alpha(Stated):
    """Orders that stay strictly between two bounds: alpha = low + (high - low) sigmoid(raw).

    A layer with `learn_alpha=True` makes one and calls it `order`. One that is passed as a layer's alpha is that
    layer's order itself, so that several layers may share it.

    A state dict says between which bounds alpha lies, in a small buffer and in torch's metadata; only an order with the
    same bounds loads it. One that does not say it is taken at its word. The parameter of one order has one axis, which
    alpha has not: FSDP takes no other.

    Args:
        init: The first value or values, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `init` is broadcast; None is its own.
        owner: Who asks, for messages.
        device: Of the parameter.
        dtype: Of the parameter; alpha itself is float64.

    Raises:
        ValueError: `init` is not strictly inside the bounds, or they are no finite interval.

    Examples:
        >>> order = Alpha(0.4, (0, 1))
        >>> torch.nn.Sequential(FractionalLayer(order), torch.nn.Tanh(), FractionalLayer(order))
    """

    def __init__(
        self,
        init: float | Sequence[float] | np.ndarray,
        bounds: Bounds,
        shape: tuple[int, ...] | None = None,
        *,
        owner: str = "Alpha",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        low, high = self.bounds = finite_bounds(owner, bounds)
        check_place(owner, device, dtype)
        first = first_values(owner, read(init))
        check_inside(owner, init, first, self.bounds)
        self._shape = order_shape(owner, shape, first)
        self.raw = nn.Parameter(
            torch.empty(self._shape or (1,), device=device, dtype=dtype or torch.get_default_dtype())
        )
        values = torch.as_tensor(first, device="cpu")
        self._first = {"raw": torch.logit((values - low) / (high - low)).numpy()}
        self.keep("bounds", self.bounds, self.raw.device)
        self._begin()

    def reset_parameters(self) -> None:
        """Begin anew with the first values, as after `to_empty`."""
        super().reset_parameters()
        self._begin()

    def forward(self) -> Tensor:
        """Return alpha in real units, float64."""
        low, high = self.bounds
        return low + (high - low) * torch.sigmoid(self._free(self.raw))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of alpha."""
        return self._shape

    @property
    def mean(self) -> Tensor:
        """Alpha in real units, float64; of a random one (`ProbabilisticAlpha`) its mean, which is never drawn."""
        return self()

    def taken_by(self, owner: str, bounds: Any, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return its bounds for a layer that was given it as its order, or raise.

        Args:
            owner: The layer.
            bounds: What the layer was given as bounds besides, which must be None.
            shape: The shape that the layer needs.
        """
        check_taken(owner, type(self).__name__, self.bounds, self.shape, bounds, shape)
        return self.bounds

    def extra_repr(self) -> str:
        return f"shape={self.shape}, bounds=({self.bounds[0]:g}, {self.bounds[1]:g})"

    def stated(self) -> dict[str, Any]:
        """Return what alpha cannot be read from the parameters without, see `Stated`."""
        return {"bounds": self.bounds}

    @torch.no_grad()
    def _begin(self) -> None:
        for name, values in self._first.items():
            parameter = getattr(self, name)
            first = torch.as_tensor(values, device="cpu").expand(self._shape).reshape(parameter.shape)
            parameter.copy_(placed_as(first, parameter))

    def _free(self, parameter: Tensor) -> Tensor:
        """Return free numbers in float64 and alpha's shape, of processes that share them all of them."""
        found = gathered(parameter).to(torch.float64)
        if found.shape == self._shape:
            return found
        if found.numel() != math.prod(self._shape):
            raise RuntimeError(
                f"{type(self).__name__}: needs its {math.prod(self._shape)} numbers, and this process holds "
                f"{found.numel()} of them; read it inside FullyShardedDataParallel.summon_full_params(model)."
            )
        return found.reshape(self._shape)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        """Load as `Stated` does, and nothing where a number is NaN."""
        with_axes(self, state_dict, prefix)
        broken = [name for name, _ in self.named_parameters() if _has_nan(state_dict.get(prefix + name))]
        for name in broken:
            given[-1].append(
                f"{prefix}{name}: needs numbers, and the state has NaN; load a state from before the training diverged."
            )
        if not broken:
            super()._load_from_state_dict(state_dict, prefix, *given)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take also what an older version pickled: an order without an axis, and no first values."""
        super().__setstate__(state)
        if "_shape" in self.__dict__:
            return
        self._shape = tuple(self.raw.shape)
        for parameter in self._parameters.values():
            if parameter is not None and parameter.ndim == 0:
                parameter.data = parameter.data.reshape(1)  # it stays the one that an optimizer knows
        self._first = {
            name: parameter.detach().to("cpu", torch.float64).reshape(self._shape).numpy()
            for name, parameter in self._parameters.items()
            if parameter is not None
        }
        for name, value in self.stated().items():
            self.keep(name, value, self.raw.device)


def _has_nan(value: Any) -> bool:
    """Whether a value of a state is known to have NaN."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta:
        return False
    found = gathered(value.detach())
    return not is_watched(found) and bool(found.float().isnan().any())
