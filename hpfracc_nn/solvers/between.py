"""The solution between the steps of a solve: as accurate as the scheme that took the steps, whichever scheme it is.

With J(t) the integral of (t - s)**(a - 1) / Gamma(a) times the line through f_i and f_(i+1) on each step, and x in
[0, 1] the place of t in its step k,

    y(t) = (1 - x) y_k + x y_(k+1) + J(t) - (1 - x) J(t_k) - x J(t_(k+1)).

The Taylor polynomial at the start is a line and drops out. The terms in J, here called the bend, are added to the line
through the two states. They are 0 at both ends of the step, so that the scheme's own states stay, behave like
(t - t_k)**a, and are off by O(h**(2 + a)) where f is smooth. By parts, J(t) = f_0 t**a / Gamma(1 + a) + the integral of
(t - s)**a / Gamma(1 + a) times the slopes of the lines through f.

Shapes: a orders alpha, t times, n steps.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.cells import integrals

_NOWHERE = 1e-300  # in place of a time of 0, whose powers are 0


def placed(mesh: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the step that each time lies in, and the time's place in its step, in [0, 1]; both [t].

    Args:
        mesh: The times of the steps, from 0 on, [n + 1].
        at: Times from 0 to the last time of the mesh, [t].
    """
    step = np.clip(np.searchsorted(mesh, at, side="left") - 1, 0, mesh.size - 2)
    return step, np.clip((at - mesh[step]) / (mesh[step + 1] - mesh[step]), 0.0, 1.0)


def bends(alpha: Array, mesh: np.ndarray, at: np.ndarray, xp: Namespace, derivative: int = 0) -> tuple[Array, Array]:
    """Return the weights of the bend, which is added to the line through two states, or of its derivative in time.

    Args:
        alpha: Orders, [a].
        mesh: The times of the steps, from 0 on, [n + 1].
        at: Times from 0 to the last time of the mesh, [t].
        xp: The namespace of alpha.
        derivative: 0 for the bend, 1 for its derivative in time.

    Returns:
        The weights of f_0, [a, t], and of the increases of f over the steps, [a, t, n].
    """
    step, place = placed(mesh, at)
    h = mesh[step + 1] - mesh[step]
    left, right = (1 / h, -1 / h) if derivative else (place - 1, -place)
    ends = np.maximum(step - 1, 0), step
    rows = [_integral(alpha, mesh, at, step, xp, derivative)]
    rows += [_integral(alpha, mesh, mesh[step + k], ends[k], xp, 0) for k in (0, 1)]
    factors = [xp.constant(each, alpha) for each in (np.ones_like(at), left, right)]
    first = sum(factor * each for factor, (each, _) in zip(factors, rows, strict=True))
    increases = sum(factor[:, None] * each for factor, (_, each) in zip(factors, rows, strict=True))
    return first, increases


def _integral(
    alpha: Array, mesh: np.ndarray, at: np.ndarray, step: np.ndarray, xp: Namespace, derivative: int
) -> tuple[Array, Array]:
    """Return the weights of J, or of its derivative, at the times `at`, which lie in the steps `step`, [t].

    As in `bends`, these are the weights of f_0, [a, t], and of the increases of f over the steps, [a, t, n].
    """
    power = alpha[:, None] - derivative
    first = xp.exp(power * xp.constant(np.log(np.maximum(at, _NOWHERE)), alpha) - xp.gammaln(1 + power))
    lengths, cells = np.diff(mesh), np.arange(mesh.size - 1)
    lag = step[:, None] - cells + 1  # 1 for the step that a time lies in, which ends there
    half = np.where(lag == 1, ((at - mesh[step]) / 2)[:, None], lengths / 2)
    distance = np.maximum(at[:, None] - (mesh[:-1] + half), _NOWHERE)
    found, _ = integrals(1 + power[..., None], distance, half / distance, lag, xp)
    return first, found * xp.constant(1 / lengths, alpha)
