"""Noise in PyTorch: increments from a generator, whole or block by block, and the same blocks again.

A solve needs its noise twice, forward and in the adjoint. `NoisePath` draws the noise in blocks of steps and keeps for
each block the states of the generator and of the noise, from which `block` makes the block again, bit for bit.

Here [*shape] is the shape of the noise of one step: batch axes and channels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import Namespace
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.parameters import check_place
from hpfracc_nn.fractional.torch.tracing import is_plain
from hpfracc_nn.solvers.noise import Noise, State
from hpfracc_nn.solvers.noise.noise import fits
from hpfracc_nn.solvers.noise.source import CACHED, Formulas
from hpfracc_nn.solvers.torch.snapshot import tensors_within

_BLOCK = 1 << 16  # numbers that a block holds
_SHORTEST = 32  # least steps of a block
_COLUMNS = 32  # columns of an array that are added up together
_MANY = 1 << 13  # normal numbers in double precision from which on Box and Muller's formula is faster


@dataclass(frozen=True)
class TorchSource:
    """Random numbers of a torch generator; see `solvers.noise.Source`.

    Attributes:
        generator: A generator of `device`.
        dtype: The dtype of the numbers, float64 or float32.
        device: The device of the numbers.
    """

    generator: torch.Generator
    dtype: torch.dtype
    device: torch.device

    at_once = CACHED

    @property
    def xp(self) -> Namespace:
        return TORCH

    def computed(self, formulas: Formulas, *parameters: Any) -> tuple[Tensor, ...]:
        """Return the arrays formulas(xp, *parameters), computed in float64, in the source's dtype, on its device."""
        return tuple(self.cast(each) for each in formulas(TORCH, *map(TORCH.asarray, parameters)))

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers of a shape."""
        if self.dtype == torch.float64 and self.device.type == "cpu" and math.prod(shape) >= _MANY:
            return self._box_muller(shape)
        return self._empty(shape).normal_(generator=self.generator)

    def _box_muller(self, shape: tuple[int, ...]) -> Tensor:
        """Return normal numbers [*shape] in double precision on the CPU, by Box and Muller's formula.

        The formula uses vector instructions; torch's own normal numbers are computed one by one.
        """
        count = math.prod(shape)
        half = -(-count // 2)
        numbers = self._empty((2 * half,))
        radius = numbers[:half].uniform_(2.0**-54, 1, generator=self.generator).log_().mul_(-2).sqrt_()
        angle = numbers[half:].uniform_(0, 2 * math.pi, generator=self.generator)
        cosine = angle.cos()
        angle.sin_().mul_(radius)
        radius.mul_(cosine)
        return numbers[:count].view(shape)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Return uniform numbers of a shape, in (0, 1), neither end among them."""
        eps = torch.finfo(self.dtype).eps
        found = self._empty(shape).uniform_(generator=self.generator)
        return found.add_(eps / 4).clamp_(max=1 - eps / 2)  # off 0, to the middle of the numbers' cells, and below 1

    def exponential(self, shape: tuple[int, ...]) -> Tensor:
        """Return exponential numbers of a shape, of mean 1."""
        return self.uniform(shape).log_().neg_()

    def poisson(self, mean: float, shape: tuple[int, ...]) -> Tensor:
        """Return Poisson counts of a shape, as floating numbers."""
        return torch.poisson(self._empty(shape).fill_(mean), generator=self.generator)

    def gamma(self, concentration: Tensor) -> Tensor:
        """Return gamma numbers of scale 1, one for each concentration; 0 where the concentration is 0."""
        positive = concentration > 0
        found = torch._standard_gamma(torch.where(positive, concentration, 1.0), generator=self.generator)
        return torch.where(positive, found, 0.0)

    def cast(self, x: Any) -> Tensor:
        """Return x as a tensor of the source's dtype and device."""
        return torch.as_tensor(x, dtype=self.dtype, device=self.device)

    def complex_normal(self, shape: tuple[int, ...], scale: Tensor) -> Tensor:
        """Return `scale` times complex numbers whose real and imaginary parts are independent and standard normal."""
        found, scales = self.normal((*shape, 2)), self.cast(scale)
        # Real and imaginary part each get their own copy of the scale: broadcasting over pairs is several times slower.
        each = scales[..., None].expand(*scales.shape, 2).contiguous()
        is_number = is_plain(each) and not each.requires_grad
        return torch.view_as_complex(found.mul_(each) if is_number else found * each)

    def by_time(self, pairs: Iterable[Tensor], count: int) -> Tensor:
        """Return complex tensors [m, ..., n] as one real tensor, time first, [n, 2 count, ...]; see `Source`."""
        parts = [torch.view_as_real(x).movedim((-2, -1), (0, 1)).flatten(1, 2) for x in pairs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def joined(self, some: list[Tensor], axis: int) -> Tensor:
        """Return tensors joined along an axis."""
        return torch.cat(some, axis)


class NoisePath:
    """The increments of a noise over `n_steps` equal steps, drawn in blocks when they are first needed.

    The increments do not depend on the order in which blocks are requested: the first time, all blocks up to the one
    wanted are drawn. A block that was drawn before is drawn again from the states of generator and noise that were
    kept, bit-identical. Where blocks take no more memory than these states, the blocks themselves are kept; so are they
    where the noise is drawn whole, or where a tensor that it holds requires a gradient, which then flows through
    `block`.

    Args:
        noise: The noise.
        n_steps: How many steps.
        shape: The shape of the noise of one step: batch axes and channels; all entries are independent.
        dt: The step size, positive, in the caller's time unit.
        generator: The source of the random numbers; None is the default generator of the device.
        dtype: The floating dtype of the increments; None is torch's default. Half precision is drawn in float32.
        device: The device of the increments; None is the generator's, or the CPU.

    Raises:
        ValueError: The generator is another device's, the dtype is not floating, or a number is out of range.
        TypeError: The generator is none.

    Examples:
        >>> path = NoisePath(
        ...     Brownian(), 100_000, (), dt=0.01, generator=torch.Generator().manual_seed(0)
        ... )
        >>> first, last = path.block(0), path.block(path.n_blocks - 1)
        >>> torch.equal(path.block(0), first)
        True
        >>> path.whole().var()
        tensor(0.0100)
    """

    def __init__(
        self,
        noise: Noise,
        n_steps: int,
        shape: Sequence[int],
        *,
        dt: float,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        if not isinstance(noise, Noise):
            raise TypeError(f"NoisePath(noise={noise!r}): needs a noise; pass for example Brownian().")
        if not isinstance(dtype, torch.dtype | None):
            raise TypeError(f"NoisePath(dtype={dtype!r}): needs a floating dtype of torch; pass such as torch.float32.")
        if device is not None and not isinstance(device, torch.device):
            check_place("NoisePath", device, None)
        self.noise = noise
        self.n_steps = errors.count("NoisePath", "n_steps", n_steps)
        self.shape = errors.lengths("NoisePath", "shape", shape)
        fits("NoisePath", noise, self.shape)
        self.dt = errors.positive_step("NoisePath", dt)
        self.dtype = dtype or torch.get_default_dtype()
        if not self.dtype.is_floating_point:
            raise ValueError(f"NoisePath(dtype={self.dtype}): needs a floating dtype; pass for example torch.float32.")
        self.source = _source(generator, self.dtype, device)
        width = max(1, math.prod(self.shape))
        learns = bool(learned(noise))
        # Blocks are the same whether the noise is learned or not, so that the same generator gives the same numbers.
        self.block_steps = self.n_steps if noise.is_whole else min(self.n_steps, max(_SHORTEST, _BLOCK // width))
        self._keeps = noise.is_whole or learns
        self._made: list[Tensor] = []
        self._begun: list[tuple[Tensor, State]] = []  # for each block, the states of generator and noise before it
        self._state: State | None = None

    @property
    def n_blocks(self) -> int:
        """The number of blocks; block i holds the steps from i * block_steps on."""
        return -(-self.n_steps // self.block_steps)

    def block(self, i: int) -> Tensor:
        """Return the increments of block `i`, [steps, *shape].

        Raises:
            IndexError: `i` is not in 0 to n_blocks - 1.
        """
        if not 0 <= i < self.n_blocks:
            raise IndexError(
                f"NoisePath.block(i={i}): needs 0 <= i < {self.n_blocks}, which is n_blocks; block i holds the steps "
                f"from {self.block_steps} i on."
            )
        drawn = len(self._made if self._keeps else self._begun)
        for k in range(drawn, i):
            self._draw(k)
        if i >= drawn:
            return self._draw(i)
        return self._made[i] if self._keeps else self._again(i)

    def whole(self) -> Tensor:
        """Return all increments, [n_steps, *shape]."""
        if self.n_blocks == 1:
            return self.block(0)
        return torch.cat([self.block(i) for i in range(self.n_blocks)])

    def _draw(self, i: int) -> Tensor:
        """Draw block `i`, the next to be drawn; keep the block, or the states of generator and noise before it."""
        if self._state is None:
            self._state = self.noise.start(self.n_steps, self.shape, self.dt, self.source)
            self._keeps = self._keeps or self._is_small
        if not self._keeps:
            self._begun.append((self.source.generator.get_state(), self._state))
        found, self._state = self._increments(i, self.source, self._state)
        if self._keeps:
            self._made.append(found)
        return found

    @property
    def _is_small(self) -> bool:
        """Whether a block takes no more bytes than the states of generator and noise from which it is drawn again."""
        own = [each.numel() * each.element_size() for each in self._state or () if isinstance(each, Tensor)]
        state = self.source.generator.get_state().numel() + sum(own)
        return self.block_steps * math.prod(self.shape) * self.dtype.itemsize <= state

    def _again(self, i: int) -> Tensor:
        numbers, state = self._begun[i]
        generator = torch.Generator(self.source.device)
        generator.set_state(numbers)
        return self._increments(i, dataclasses.replace(self.source, generator=generator), state)[0]

    def _increments(self, i: int, source: TorchSource, state: State) -> tuple[Tensor, State]:
        steps = min(self.block_steps, self.n_steps - i * self.block_steps)
        found, after = self.noise.increments(steps, self.shape, self.dt, source, state)
        return found.to(self.dtype), after


def learned(noise: Noise) -> list[Tensor]:
    """Return the tensors that require a gradient among all that a noise holds, at any depth: see `tensors_within`."""
    return [each for each in tensors_within(noise) if each.requires_grad]


def increments(
    noise: Noise,
    n_steps: int,
    shape: Sequence[int] = (),
    *,
    dt: float,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the increments of a noise over equal steps, [n_steps, *shape]: all blocks of a `NoisePath` in one tensor.

    They are differentiable in parameters of the noise that are tensors. Arguments and errors are those of `NoisePath`.

    Examples:
        >>> dw = increments(
        ...     Brownian(), 100, (32, 3), dt=0.01, generator=torch.Generator().manual_seed(0)
        ... )
        >>> dw.shape, dw.var()
        (torch.Size([100, 32, 3]), tensor(0.0100))
    """
    path = NoisePath(noise, n_steps, shape, dt=dt, generator=generator, dtype=dtype, device=device)
    return path.whole()


def paths(
    noise: Noise,
    n_steps: int,
    shape: Sequence[int] = (),
    *,
    dt: float,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return paths of a noise at the times 0, dt, ..., n_steps dt, [n_steps + 1, *shape]: zero, then running sums.

    They are the running sums of what `increments` returns for the same generator. Arguments and errors are those of
    `NoisePath`.

    Examples:
        >>> x = paths(
        ...     FractionalBrownian(0.3),
        ...     100,
        ...     (4000,),
        ...     dt=0.04,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> x.shape, round(x[-1].var().item(), 1)  # 4**(2 hurst) = 2.3
        (torch.Size([101, 4000]), 2.3)
    """
    steps = increments(noise, n_steps, shape, dt=dt, generator=generator, dtype=dtype, device=device)
    flat = steps.reshape(n_steps, -1)
    if flat.shape[1] >= _COLUMNS and flat.device.type == "cpu" and is_plain(flat) and not flat.requires_grad:
        return _sums(flat).view(n_steps + 1, *steps.shape[1:])
    # Sums along the first axis of a wide array read one number per cache line.
    sums = [torch.cat([torch.zeros_like(some[:1]), some.cumsum(0)]) for some in flat.split(_COLUMNS, 1)]
    return torch.cat(sums, 1).reshape(n_steps + 1, *steps.shape[1:])


def _sums(steps: Tensor) -> Tensor:
    """Return the running sums of the increments `steps` [n, columns], from 0 on, [n + 1, columns].

    Sums are made in double precision, as those of torch.cumsum are.
    """
    found = steps.new_empty(steps.shape[0] + 1, steps.shape[1])
    rows = found.unbind()
    total = rows[0].zero_().double()
    for step, row in zip(steps.unbind(), rows[1:], strict=True):
        if row.dtype == total.dtype:
            total = torch.add(total, step, out=row)
        else:
            row.copy_(total.add_(step))
    return found


def check_generator(owner: str, generator: torch.Generator | None, device: torch.device | None) -> None:
    """Raise unless `generator` is None or a torch.Generator, and one of `device` where that is not None.

    Raises:
        TypeError: `generator` is neither None nor a torch.Generator.
        ValueError: The generator belongs to another device.
    """
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"{owner}(generator={generator!r}): needs a torch.Generator or None; pass "
            "torch.Generator().manual_seed(0) for a seed of 0."
        )
    if device is not None and generator.device != device:
        raise ValueError(
            f"{owner}(generator on {generator.device}, device={device}): needs a generator of the device; pass "
            f"torch.Generator({str(device)!r})."
        )


def _source(generator: torch.Generator | None, dtype: torch.dtype, device: torch.device | str | None) -> TorchSource:
    wanted = None if device is None else torch.empty(0, device=device).device  # "cuda" is one device, by its index
    check_generator("NoisePath", generator, wanted)
    if generator is None:
        wanted = wanted or torch.device("cpu")
        generator = _default_generator(wanted)
    wanted = wanted or generator.device
    drawn = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    return TorchSource(generator, drawn, wanted)


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    return getattr(torch, device.type).default_generators[device.index]
