"""Meshes: the times at which a solver takes its steps, and where output times lie among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpfracc_nn import errors

_CUBIC = 4  # points of a cubic interpolation
ON_MESH = 1e-4  # of a step: an output counts as a point of a uniform mesh where it is as near to it as this
_SAME = 1e-9  # of a step: the same on a graded mesh, where outputs are interpolated


@dataclass(frozen=True)
class Uniform:
    """Equal steps. In JAX every output time must be a point of the mesh.

    Examples:
        >>> Uniform().times(0.0, 1.0, 4, alpha=0.5)
        array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """

    def times(self, first: float, last: float, n_steps: int, alpha: float) -> np.ndarray:
        """Return the mesh from `first` to `last`, in the caller's time unit, [n_steps + 1]; alpha plays no part."""
        return np.linspace(first, last, n_steps + 1)


@dataclass(frozen=True)
class Graded:
    """`t_j = t_0 + (T - t_0) (j / n)**exponent`: steps that begin small, as solutions that begin like `t**alpha` want.

    On it the trapezoid rule is of order 2 with exponent 2 / alpha, whatever alpha. Output times may lie anywhere:
    cubic interpolation in j, in which such solutions are smooth.

    Args:
        exponent: At least 1; None is 2 / alpha, at least 1 and at most `most`. alpha's present value counts, and a
            gradient does not see that the mesh depends on it.
        most: The largest exponent that None may mean.

    Raises:
        ValueError: The exponent is below 1 or not finite.

    Source: Stynes, O'Riordan & Gracia, SIAM J. Numer. Anal. 55 (2017) 1057.

    Examples:
        >>> Graded().times(0.0, 1.0, 4, alpha=0.5)  # (j / 4)**4
        array([0.        , 0.00390625, 0.0625    , 0.31640625, 1.        ])
        >>> options = {"scheme": "trapezoid", "mesh": Graded(), "n_steps": 100}
        >>> y = fdeint(lambda t, y: -y, torch.ones(1).double(), [0, 1], 0.5, **options)
        >>> y[-1]  # E_(1/2)(-1) = e erfc(1) = 0.4276
        tensor([0.4276], dtype=torch.float64)
    """

    exponent: float | None = None
    most: float = 10.0

    def __post_init__(self) -> None:
        if self.exponent is not None:
            object.__setattr__(self, "exponent", errors.real("Graded", "exponent", self.exponent, 1.0))
        object.__setattr__(self, "most", errors.real("Graded", "most", self.most, 1.0))

    def of(self, alpha: float) -> float:
        """Return the exponent of the mesh for an order alpha."""
        return self.exponent if self.exponent is not None else min(max(1.0, 2 / alpha), self.most)

    def times(self, first: float, last: float, n_steps: int, alpha: float) -> np.ndarray:
        """Return the mesh from `first` to `last`, in the caller's time unit, for an order alpha, [n_steps + 1]."""
        return first + (last - first) * (np.arange(n_steps + 1) / n_steps) ** self.of(alpha)


@dataclass(frozen=True)
class Points:
    """A mesh of any increasing times, for collocation.

    Args:
        elapsed: The mesh as times since the start: 0, then increasing, up to the last output.

    Raises:
        TypeError: `elapsed` is not a sequence of real numbers along one axis.
        ValueError: The times do not increase from 0.

    Examples:
        >>> mesh = Points((0.0, 0.001, 0.01, 0.1, 1.0))
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     [0, 1],
        ...     0.5,
        ...     scheme="collocation",
        ...     mesh=mesh,
        ... )
        >>> y[-1] - mittag_leffler(-1.0, 0.5)
        tensor([6.7e-06], dtype=torch.float64)
    """

    elapsed: tuple[float, ...]

    def __post_init__(self) -> None:
        times = errors.as_numbers(self.elapsed)
        if times is None or times.ndim != 1:
            raise TypeError(
                f"Points(elapsed of type {type(self.elapsed).__name__}): needs real numbers, one for each step's end; "
                "pass a tuple, such as (0.0, 0.1, 1.0)."
            )
        if times.size < 2 or times[0] != 0 or not (np.isfinite(times).all() and (np.diff(times) > 0).all()):
            raise ValueError(
                f"Points(elapsed of {times.size} times): needs finite times that increase from 0; pass those since the "
                "start, such as (0.0, 0.1, 1.0)."
            )
        object.__setattr__(self, "elapsed", tuple(times.tolist()))

    def times(self, first: float, last: float, n_steps: int, alpha: float) -> np.ndarray:
        """Return the mesh from `first` on, in the caller's time unit; the other arguments play no part."""
        return first + np.array(self.elapsed)


Mesh = Uniform | Graded
MESHES: dict[str, type[Uniform] | type[Graded]] = {"uniform": Uniform, "graded": Graded}


def places(
    mesh: Mesh, times: np.ndarray, outputs: np.ndarray, alpha: float, rounding: float, anywhere: bool = False
) -> np.ndarray:
    """Return where `outputs` lie on the mesh, as fractional indices; those of mesh points are whole.

    Args:
        mesh: The kind of mesh that `times` were made by.
        times: The times of the mesh points, from 0 on, [n_steps + 1].
        outputs: Output times, from 0 to the last time of the mesh.
        alpha: The order that the mesh was made for.
        rounding: The largest error of an output time by rounding, in the unit of `times`.
        anywhere: Whether outputs may lie between the points of a uniform mesh.

    Raises:
        ValueError: The mesh is uniform and an output is none of its points; the text names the first such output.
    """
    n_steps = times.size - 1
    part = outputs / times[-1]
    index = n_steps * part ** (1 / mesh.of(alpha) if isinstance(mesh, Graded) else 1.0)
    nearest = np.clip(np.round(index), 0, n_steps)
    is_point = np.abs(index - nearest) <= (ON_MESH if isinstance(mesh, Uniform) else _SAME)
    if isinstance(mesh, Uniform):
        is_rounded = ~is_point & (np.abs(outputs - times[nearest.astype(np.int64)]) <= rounding)
        _check_apart(outputs, nearest, is_rounded)
        is_point |= is_rounded
    if isinstance(mesh, Uniform) and not anywhere and not is_point.all():
        i = int(np.argmin(is_point))
        raise ValueError(
            f"needs output times that are points of the uniform mesh; ts[{i}] lies {outputs[i]:g} from the start, "
            f"{index[i]:.6g} steps at n_steps={n_steps}; choose n_steps so that all are, or pass mesh='graded', which "
            "interpolates."
        )
    return np.where(is_point, nearest, index)


def _check_apart(outputs: np.ndarray, nearest: np.ndarray, is_rounded: np.ndarray) -> None:
    """Raise where two neighbouring outputs get the same mesh point, and one of them only by the rounding of its time.

    All arguments have one entry per output: its time since the start, the index of the mesh point closest to it, and
    whether it counts as that point only because its time may be rounded.
    """
    same = np.flatnonzero((np.diff(nearest) == 0) & (is_rounded[1:] | is_rounded[:-1]))
    if same.size:
        i = int(same[0]) + 1
        raise ValueError(
            f"ts[{i - 1}] and ts[{i}] lie {outputs[i - 1]:g} and {outputs[i]:g} from the start, which with the "
            "rounding of so late times is one point of the uniform mesh; pass times in float64 that begin at 0, or "
            "more steps."
        )


def interpolation(index: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mesh points that each output is interpolated from, [outputs, 4], and their weights, of the same shape.

    Interpolation is cubic in the index, of lower degree where the mesh has fewer than 4 points, and exact at mesh
    points. `index` are the outputs' fractional indices, as `places` returns them.
    """
    points = min(_CUBIC, n_steps + 1)
    first = np.clip(np.floor(index).astype(np.int64) - (points - 1) // 2, 0, n_steps + 1 - points)
    offset = index - first
    weights = np.ones((index.size, points))
    for i in range(points):
        for j in range(points):
            if i != j:
                weights[:, i] *= (offset - j) / (i - j)
    return first[:, None] + np.arange(points), weights
