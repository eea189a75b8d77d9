"""Parameters of layers: learned orders, fixed or random, mapped into bounds; and checks of devices, dtypes and meshes.

A module whose parameters mean nothing without numbers that it was built with, such as bounds, keeps those numbers in
its state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.distributions import (
    DISTRIBUTIONS,
    Bounds,
    Distribution,
    Pair,
    broadcast,
    check_inside,
    check_order_fits,
    finite_bounds,
    first_spread,
    first_unconstrained,
    first_values,
    order_shape,
    prior_of,
)
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import is_plain, is_watched

_PREFIX = "stated_"  # with which the names of the buffers begin
_LETTERS = 16  # to which a word is padded, so that the buffers of all words have one shape


class StateMetadata(nn.Module):
    """A module whose parameters mean nothing without numbers that it was made with, such as bounds.

    A state dict holds these numbers in its metadata, where torch keeps the versions of modules and which `torch.save`
    writes; those passed to `keep` also as buffers, which every format writes. A state without either loads unchecked.
    Buffers are int64, which no cast rounds, and are written from the module's attributes at each save and load: the
    attributes are right even where buffers were averaged, broadcast or left empty.
    """

    def state_metadata(self) -> dict[str, Any]:
        """Return the numbers by name, as plain Python values, which `torch.load(weights_only=True)` accepts."""
        raise NotImplementedError(
            f"{type(self).__name__}.state_metadata: it has none; return a dict of what the parameters need."
        )

    def keep(self, name: str, value: Any, device: torch.device) -> None:
        """Register a buffer for a value of `state_metadata`: a pair of floats, a word, or tuples of indices."""
        self.register_buffer(_PREFIX + name, _code(value).to(device))

    def reset_parameters(self) -> None:
        """Write the values into their buffers, which `to_empty` has left uninitialised."""
        self._buffers.update({name: code.to(self.get_buffer(name).device) for name, code in self._codes().items()})

    def _codes(self) -> dict[str, Tensor]:
        """Return the codes (see `_code`) of the metadata's values that are kept in buffers, by the buffer's name."""
        values = {_PREFIX + name: value for name, value in self.state_metadata().items()}
        return {name: _code(value) for name, value in values.items() if self._buffers.get(name) is not None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, code in self._codes().items():
            destination[prefix + name] = code.to(self.get_buffer(name).device)
        metadata = getattr(destination, "_metadata", None)  # a plain dict that a caller has filled has none
        if metadata is not None:
            metadata[prefix[:-1]] = {**metadata.get(prefix[:-1], {}), **self.state_metadata()}

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load as torch does, but report an error where the metadata differ.

        A state of other bounds, say, has parameters that would mean something else in this module.
        """
        present = {k: v for k, v in state_dict.items() if k.startswith(prefix) and isinstance(v, Tensor)}
        is_read = not all(_PREFIX in key[len(prefix) :] for key in present)  # else no parameter could be misread
        for name, own in self.state_metadata().items():
            theirs = local_metadata.get(name, own)
            if theirs == own:
                theirs = _read(state_dict.get(prefix + _PREFIX + name), own)
            if theirs != own and is_read:
                error_msgs.append(
                    f"{prefix[:-1] or type(self).__name__}: needs a state with {name}={own!r}, which it was made with; "
                    f"the state has {name}={theirs!r}, make the layer as that of the state was made."
                )
                return
        for name, code in self._codes().items():  # older files have no such buffers, which must not count as missing
            state_dict[prefix + name] = code.to(next(iter(present.values()), self.get_buffer(name)).device)
        arguments = prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, *arguments)


def with_axes(module: nn.Module, state_dict: Any, prefix: str) -> None:
    """Reshape numbers of an older state, which had no axis, to [1] where the module's parameters have that shape.

    `state_dict` is changed in place; `prefix` is that of the module's names in it.
    """
    for name, parameter in module.named_parameters():
        value = state_dict.get(prefix + name)
        if isinstance(value, Tensor) and value.ndim == 0 and parameter.shape == (1,):
            state_dict[prefix + name] = placed_as(value.reshape(1), parameter)


def _code(value: Any) -> Tensor:
    """Return a value of `StateMetadata.state_metadata` as int64 numbers, on the CPU.

    For a pair of floats the numbers are their bits, for a word its letters, and for tuples of indices, for each index,
    the number of the tuple that has it.
    """
    if isinstance(value, str):
        return torch.tensor(list(value.encode().ljust(_LETTERS)), device="cpu")
    if value and isinstance(value[0], tuple):
        part_of = {place: part for part, places in enumerate(value) for place in places}
        return torch.tensor([part_of[place] for place in sorted(part_of)], device="cpu")
    return torch.tensor(value, dtype=torch.float64, device="cpu").view(torch.int64)


def _read(code: Any, own: Any) -> Any:
    """Return the value that a loaded buffer `code` encodes, to be compared with `own`, the value of the module itself.

    The result is `own` also where `code` is no tensor or a meta tensor, and a list of bare numbers where these encode
    no such value.
    """
    if not isinstance(code, Tensor) or code.is_meta:
        return own
    expected, found = _code(own), code.detach().cpu()
    if found.shape == expected.shape and torch.equal(found, expected.to(found.dtype)):
        return own
    numbers = found.tolist()
    if found.dtype != torch.int64 or found.ndim != 1:
        return numbers
    if isinstance(own, str):
        return bytes(numbers).decode().rstrip() if set(numbers) <= set(range(128)) else numbers
    if own and isinstance(own[0], tuple):
        return tuple(tuple(k for k, part in enumerate(numbers) if part == each) for each in sorted(set(numbers)))
    return tuple(found.view(torch.float64).tolist())


class Alpha(StateMetadata):
    """Orders that stay strictly between two bounds: alpha = low + (high - low) sigmoid(raw).

    A layer with `learn_alpha=True` makes one and calls it `order`. An Alpha that is passed as a layer's alpha is that
    layer's order itself, so that several layers may share it.

    A state dict says between which bounds alpha lies, in a small buffer and in torch's metadata; only an order with the
    same bounds loads it. A state dict without bounds loads unchecked. The parameter of a single order has one axis,
    which alpha has not, because FSDP takes no parameter without axes.

    Args:
        init: The first value or values, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `init` is broadcast; None is its own.
        owner: Name of the public function, for messages.
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
        """Set the parameters to their initial values, as after `to_empty`."""
        super().reset_parameters()
        self._begin()

    def forward(self) -> Tensor:
        """Return alpha in real units, float64."""
        low, high = self.bounds
        part = torch.sigmoid(self._free(self.raw))
        if high - low != 1:  # autograd would record a factor of 1 too
            part = (high - low) * part
        return low + part if low else part

    def beside_local(self, owner: str) -> Tensor:
        """Return alpha for a call of `owner` on samples of this process alone.

        Raises:
            RuntimeError: The parameter is a DTensor that gets a gradient, which would be that of these samples alone.
        """
        raw = self.raw
        if type(raw) is not nn.Parameter and is_spread(raw) and raw.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{owner}: needs samples that are a DTensor where the learned order is one, for else its gradient "
                "would be that of one process's samples alone; pass DTensor.from_local(x, mesh, placements), or, after "
                "fully_shard, call the layer itself or what torch.distributed.fsdp.register_fsdp_forward_method names."
            )
        return self._read()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of alpha."""
        return self._shape

    @property
    def mean(self) -> Tensor:
        """Alpha in real units, float64; of a random one (`ProbabilisticAlpha`) its mean, which is never drawn."""
        return self()

    def bounds_for(self, owner: str, bounds: Any, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return the order's bounds for a layer that takes this module as its order; raise where it cannot.

        Args:
            owner: The layer.
            bounds: The layer's own argument `bounds`, which must be None.
            shape: The shape that the layer needs.

        Raises:
            ValueError: `bounds` is not None, or `shape` is not that of alpha.
        """
        check_order_fits(owner, type(self).__name__, self.bounds, self.shape, bounds, shape)
        return self.bounds

    def extra_repr(self) -> str:
        return f"shape={self.shape}, bounds=({self.bounds[0]:g}, {self.bounds[1]:g})"

    def state_metadata(self) -> dict[str, Any]:
        """Return the bounds; see `StateMetadata`."""
        return {"bounds": self.bounds}

    @torch.no_grad()
    def _begin(self) -> None:
        for name, values in self._first.items():
            parameter = getattr(self, name)
            first = torch.as_tensor(values, device="cpu").expand(self._shape).reshape(parameter.shape)
            parameter.copy_(placed_as(first, parameter))

    # The parameter's value at the last call, the bounds, and alpha for them; orders from older pickles have only None.
    _last = cast(Any, None)

    def _read(self) -> Tensor:
        """Return alpha; a single number on a CPU that needs no gradient is computed only where it has changed."""
        raw = self.raw
        if raw.requires_grad and torch.is_grad_enabled():
            return self()
        if torch.compiler.is_compiling() or raw.numel() != 1 or not (is_plain(raw) and raw.is_cpu):
            return self()
        if type(self).forward is not Alpha.forward or self._forward_hooks or self._forward_pre_hooks:
            return self()  # a forward of its own, or a hook, may read more than the parameter
        value, last = raw.item(), self._last
        if last is None or last[0] != value or last[1] is not self.bounds:
            last = self._last = value, self.bounds, self()
        return last[2]  # type: ignore[no-any-return]

    def _free(self, parameter: Tensor) -> Tensor:
        """Return a parameter in float64 and alpha's shape, gathered if it is sharded over processes."""
        if not self._shape and parameter.shape == (1,) and type(parameter) in (nn.Parameter, Tensor):
            return parameter.sum(dtype=torch.float64)  # one number without its axis, in one step
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
        """Load as `StateMetadata` does, but report an error where the state has NaN.

        `given` are the other arguments that torch passes, the last of them its list of errors.
        """
        with_axes(self, state_dict, prefix)
        broken = [name for name, _ in self.named_parameters() if _has_nan(state_dict.get(prefix + name))]
        for name in broken:
            given[-1].append(
                f"{prefix}{name}: needs numbers, and the state has NaN; load a state from before the training diverged."
            )
        if not broken:
            super()._load_from_state_dict(state_dict, prefix, *given)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled order; one of an older version gets its parameter's axis, initial values and buffers."""
        super().__setstate__(state)
        if "_shape" in self.__dict__:
            return
        self._shape = tuple(self.raw.shape)
        for parameter in self._parameters.values():
            if parameter is not None and parameter.ndim == 0:
                parameter.data = parameter.data.reshape(1)  # the same Parameter, which an optimizer may hold
        self._first = {
            name: parameter.detach().to("cpu", torch.float64).reshape(self._shape).numpy()
            for name, parameter in self._parameters.items()
            if parameter is not None
        }
        for name, value in self.state_metadata().items():
            self.keep(name, value, self.raw.device)


def _has_nan(value: Any) -> bool:
    """Return whether a value of a state dict has NaN; False where it has no numbers to read, such as a meta tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta:
        return False
    found = gathered(value.detach())
    return not is_watched(found) and bool(found.float().isnan().any())


class ProbabilisticAlpha(Alpha):
    """Orders with a learned law between two bounds: alpha = low + (high - low) u, 0 < u < 1.

    In training every call draws u anew, one number for each order and not for each signal, with a gradient in the law's
    two parameters. In evaluation alpha is the mean. What decides is `training` of the order itself, which `train` and
    `eval` of every layer that holds it set. A stream (`initial_state`) keeps the alpha that it was made with.

    - "normal": u = sigmoid(mu + sigma z), z standard normal;
    - "beta": u has a beta law; the gradient is that of `torch.distributions.Gamma`, and has no second derivative and no
      forward mode;
    - "uniform": u is anywhere between two learned ends alike.

    Args:
        init: The first mean or means, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `init` and `std` are broadcast; None is theirs.
        distribution: "normal", "beta" or "uniform".
        std: The first standard deviation or deviations of alpha; None is a quarter of the way to the nearer bound.
        prior: (mean, standard deviation) of the law, of the same kind and between the same bounds, that `kl` compares
            with; None is those of a uniform law between the bounds.
        owner: Name of the public function, for messages.
        device: Of the parameters.
        dtype: Of the parameters; alpha itself is float64.

    Raises:
        ValueError: `init` or `prior` is not strictly inside the bounds, or a standard deviation is not positive or
            larger than the law can have between them.

    Source: Kingma & Welling, arXiv 1312.6114; Figurnov, Mohamed & Mnih, arXiv 1805.08498, for the beta law.

    Examples:
        >>> order = ProbabilisticAlpha(0.6, std=0.05)
        >>> layer = FractionalLayer(order, "caputo")
        >>> loss = layer(torch.randn(4, 100)).square().mean() + 1e-3 * order.kl()
    """

    def __init__(
        self,
        init: float | Sequence[float],
        bounds: tuple[float, float] = (0.0, 1.0),
        shape: tuple[int, ...] | None = None,
        *,
        distribution: str = "normal",
        std: float | Sequence[float] | None = None,
        prior: tuple[float, float] | None = None,
        owner: str = "ProbabilisticAlpha",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        means, spread = first_values(owner, read(init)), first_spread(owner, read(std))
        if shape is None:
            shape = broadcast(owner, means, spread)
        super().__init__(means, bounds, shape, owner=owner, device=device, dtype=dtype)
        self.distribution = errors.one_of(owner, "distribution", distribution, DISTRIBUTIONS)
        free = first_unconstrained(owner, distribution, means, spread, self.bounds)
        self.spread = nn.Parameter(torch.empty_like(self.raw))
        self._first = dict(zip(("raw", "spread"), map(np.asarray, free), strict=True))
        self.keep("distribution", distribution, self.raw.device)
        self._begin()
        self._prior_moments, self._prior = prior_of(owner, distribution, prior, self.bounds)

    def forward(self) -> Tensor:
        """Return alpha in real units, float64: a draw in training, the mean in evaluation."""
        return self.sample() if self.training else self.mean

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Return draws of alpha, float64 [*sample_shape, *shape], differentiable in the law's parameters.

        Args:
            sample_shape: How many.
            generator: Where randomness comes from, on the parameters' device; None is torch's own.
        """
        return self._scaled(
            self._distribution.sample(self._constrained(), _Noise(tuple(sample_shape), generator), TORCH)
        )

    @property
    def mean(self) -> Tensor:
        """The mean of alpha, float64: in closed form, but for the normal law by quadrature, to 1e-12."""
        return self._scaled(self._distribution.moments(*self._constrained(), TORCH)[0])

    @property
    def std(self) -> Tensor:
        """The standard deviation of alpha, float64; computed as the mean is."""
        low, high = self.bounds
        return (high - low) * self._distribution.moments(*self._constrained(), TORCH)[1]

    def kl(self) -> Tensor:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders, float64.

        The divergence has a closed form: it does not change when both variables go through the same increasing map, so
        that it is that of two normal, two beta or two uniform laws. A uniform law that reaches beyond its prior, by
        more than its parameters are rounded, has an infinite divergence.
        """
        one, other = (torch.tensor(value, dtype=torch.float64, device=self.raw.device) for value in self._prior)
        return self._distribution.divergence(
            self._constrained(), (one, other), torch.finfo(self.raw.dtype).eps, TORCH
        ).sum()

    @property
    def prior(self) -> tuple[float, float]:
        """Mean and standard deviation of the law that `kl` compares with; may be set."""
        return self._prior_moments

    @prior.setter
    def prior(self, prior: tuple[float, float]) -> None:
        self._prior_moments, self._prior = prior_of(type(self).__name__, self.distribution, prior, self.bounds)

    def state_metadata(self) -> dict[str, Any]:
        """Return the bounds and the kind of distribution; see `StateMetadata`."""
        return {**super().state_metadata(), "distribution": self.distribution}

    def extra_repr(self) -> str:
        mean, std = self.prior
        return f"{super().extra_repr()}, distribution={self.distribution!r}, prior=({mean:g}, {std:g})"

    @property
    def _distribution(self) -> Distribution:
        return DISTRIBUTIONS[self.distribution]

    def _constrained(self) -> Pair:
        return self._distribution.constrained(self._free(self.raw), self._free(self.spread), TORCH)

    def _scaled(self, u: Tensor) -> Tensor:
        low, high = self.bounds
        return low + (high - low) * u


class _Noise(NamedTuple):
    """PyTorch's random numbers for `distributions.Noise`: methods draw `shape` numbers for each number of an array."""

    shape: tuple[int, ...]  # how many draws of each number
    generator: torch.Generator | None
    least: float = 1e-100  # with parameters this small a beta draw has long been 0 or 1

    def normal(self, like: Tensor) -> Tensor:
        return torch.randn(self._of(like), dtype=like.dtype, device=like.device, generator=self.generator)

    def uniform(self, like: Tensor) -> Tensor:
        return 1 - torch.rand(self._of(like), dtype=like.dtype, device=like.device, generator=self.generator)

    def gamma(self, parameter: Tensor) -> Tensor:
        """Return draws of Gamma(parameter, 1); the gradient is that of `torch.distributions.Gamma.rsample`."""
        return torch._standard_gamma(parameter.expand(self._of(parameter)), generator=self.generator)

    def _of(self, like: Tensor) -> tuple[int, ...]:
        return (*self.shape, *like.shape)


def check_place(owner: str, device: Any, dtype: Any) -> None:
    """Raise TypeError or ValueError unless parameters can have this dtype and lie on this device; None passes.

    A dtype must be a floating one of torch, a device a torch.device, an index or a name that torch knows.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"{owner}(dtype={dtype!r}): needs a floating dtype of torch; pass such as torch.float32.")
    if device is None or isinstance(device, torch.device):
        return
    if isinstance(device, bool) or not isinstance(device, str | int):
        raise TypeError(f"{owner}(device={device!r}): needs a device; pass such as 'cpu' or torch.device('cuda', 0).")
    try:
        torch.device(device)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{owner}(device={device!r}): needs the name of a device that is there, and torch says: "
            f"{str(error).splitlines()[0]}; pass such as 'cpu'."
        ) from None


def read(given: Any) -> Any:
    """Return a tensor detached on the CPU, so that NumPy can read it; other objects and meta tensors unchanged."""
    return given.detach().cpu() if isinstance(given, Tensor) and not given.is_meta else given


def gathered(tensor: Tensor) -> Tensor:
    """Return the whole of a DTensor, with its gradient; other tensors unchanged."""
    if type(tensor) in (Tensor, nn.Parameter) or not is_spread(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole


def is_spread(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, found out without importing torch.distributed; compilers follow this function."""
    return hasattr(type(tensor), "full_tensor")


def placed_as(value: Tensor, like: Tensor) -> Tensor:
    """Return `value`, which every process has in full, distributed as the DTensor `like` is.

    `value` is returned unchanged if `like` is no DTensor or `value` is one already.
    """
    if not is_spread(like) or is_spread(value):
        return value
    from torch.distributed.tensor import distribute_tensor  # loaded, since there is such a tensor

    return distribute_tensor(
        value.to(like.device),
        like.device_mesh,  # type: ignore[attr-defined]
        like.placements,  # type: ignore[attr-defined]
        src_data_rank=None,
    )
