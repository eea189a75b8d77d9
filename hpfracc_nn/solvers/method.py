"""How an equation is solved: the scheme, the history and the mesh that names and options mean, without a framework."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.history import ANY_MESH, HISTORIES, Automatic, Exponentials, FFTBlocks, Full, History, Window
from hpfracc_nn.solvers.mesh import MESHES, ON_MESH, Graded, Mesh, Points, Uniform, places
from hpfracc_nn.solvers.schemes import SCHEMES, Scheme


@dataclass(frozen=True)
class Method:
    """How a fractional differential equation is solved: scheme, history and mesh, already checked to fit together.

    Attributes:
        scheme: How steps are taken.
        history: How the past is kept.
        mesh: Where steps are taken.
        op: Name of the operation that the BackendManager plans: the history's on a uniform mesh, else `ANY_MESH`.
    """

    scheme: Scheme
    history: History
    mesh: Mesh
    op: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", self.history.op if isinstance(self.mesh, Uniform) else ANY_MESH)

    @classmethod
    def of(cls, owner: str, scheme: str | Scheme, history: str | History, mesh: str | Mesh | Points) -> Method:
        """Return the Method for a scheme, a history and a mesh, each given by its name or as an option.

        On a mesh that is not uniform, `Automatic` becomes `Full`.

        Raises:
            ValueError: A name is unknown, the mesh is `Points`, or the scheme or history needs a uniform mesh.
            TypeError: An argument is neither a name nor an option.
        """
        if isinstance(mesh, Points):
            raise ValueError(
                f"{owner}(mesh=Points(...), scheme={getattr(scheme, 'name', scheme)!r}): needs scheme='collocation' of "
                "PyTorch's fdeint, which takes any steps; pass that, or mesh='graded'."
            )
        kinds = (Automatic, Full, FFTBlocks, Exponentials, Window)
        found = cls(
            checks.named(owner, "scheme", scheme, SCHEMES, tuple(SCHEMES.values())),
            checks.named(owner, "history", history, HISTORIES, kinds),
            checks.named(owner, "mesh", mesh, MESHES, (Uniform, Graded)),
        )
        if isinstance(found.mesh, Uniform):
            return found
        if isinstance(found.history, Automatic):
            found = replace(found, history=Full())  # where steps differ, all of the past is added up in one way only
        for part, reason, way_out in (
            ("scheme", found.scheme.needs_uniform, "scheme='trapezoid'"),
            ("history", found.history.needs_uniform, "history='full'"),
        ):
            if reason:
                raise ValueError(
                    f"{owner}({part}={getattr(found, part).name!r}, mesh={found.mesh}): needs a uniform mesh, because "
                    f"{reason}; pass mesh='uniform', or {way_out}."
                )
        return found


def laid_out(
    mesh: Mesh, outputs: np.ndarray, resolution: float, n_steps: int | None, alpha: float, anywhere: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mesh, as time since the first output, and where the outputs lie on it.

    Args:
        mesh: The kind of mesh.
        outputs: Output times, increasing.
        resolution: The relative rounding of the output times: eps of the dtype that the caller passed them in.
        n_steps: Number of steps of the mesh; None is one step between each two outputs.
        alpha: The smallest order.
        anywhere: Whether outputs may lie between the points of a uniform mesh.

    Returns:
        The mesh, [n_steps + 1], and the fractional index of each output on the mesh, whole at mesh points.

    Raises:
        ValueError: The mesh is uniform and outputs are not equally spaced or not mesh points, `n_steps` is out of
            range, or the first step is too short for float64.
    """
    rounding = 2 * resolution * float(np.abs(outputs).max())  # rounding error of a difference of two times
    if n_steps is None:
        spacing = np.diff(outputs)
        if isinstance(mesh, Uniform) and np.ptp(spacing) > 2 * rounding + ON_MESH * spacing.mean():
            i = int(np.argmax(np.abs(spacing - spacing.mean())))
            raise ValueError(
                f"fdeint(ts=...): a uniform mesh needs equal steps or a number of steps; ts[{i + 1}] - ts[{i}]="
                f"{spacing[i]:g} and the mean is {spacing.mean():g}; pass n_steps, or mesh='graded'."
            )
        n_steps = spacing.size
    n_steps = errors.count("fdeint", "n_steps", n_steps)
    # From the start on: on a graded mesh the first steps are far shorter than the rounding of a late time.
    elapsed = mesh.times(0.0, float(outputs[-1] - outputs[0]), n_steps, alpha)
    if elapsed[1] < np.finfo(np.float64).tiny:  # mesh points would coincide, or be subnormal numbers
        raise ValueError(
            f"fdeint(n_steps={n_steps}, mesh={mesh}): needs steps that float64 can hold; the first step is "
            f"{elapsed[1]:.4g}; pass a smaller exponent, fewer steps, or times in another unit."
        )
    try:
        return elapsed, places(mesh, elapsed, outputs - outputs[0], alpha, rounding, anywhere)
    except ValueError as error:
        raise ValueError(f"fdeint(ts=...): {error}") from None
