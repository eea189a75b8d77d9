"""Directions made of Caputo's derivative of the loss along the way of the parameters; for reproducing papers.

`caputo` is the closed form with the previous point as moving terminal, first term of the series:

    direction_t = gradient_t * abs(theta_t - theta_(t-1))**(1 - alpha) / Gamma(2 - alpha)

Its only limits are points where the gradient is zero, but near them the steps shrink with the distance that the last
one went, and it stalls. A tensor that did not move at all, as under a learning rate of 0, takes the gradient as it is,
as at the first step, or it would stay for good. Source: Wei, Kang, Yin & Wang, J. Franklin Inst. 357(4) 2514 (2020).

`caputo_terminal` is Caputo's derivative from the fixed terminal 0, along the straight line from there to theta:

    direction = abs(theta)**(1 - alpha) / Gamma(1 - alpha) * integral_0^1 gradient(s theta) (1 - s)**-alpha ds

by Gauss-Jacobi quadrature, whose nodes are the eigenvalues of a small matrix, and the weights squares of the first
entries of its eigenvectors. Where the loss is a sum over coordinates this is the derivative in each coordinate. It
vanishes at another point than the gradient: at 3 (2 - alpha) for (theta - 3)**2 / 2. A step takes the gradients at
`NODES` more points. Sources: Shin, Darbon & Karniadakis, arXiv 2104.02259, section 2; Golub & Welsch, Math. Comp. 23
(1969) 221.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace

NODES = 8  # exact for gradients that are polynomials of degree 15 along the line


def quadrature(alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes in (0, 1] and weights of sum 1 for integrals with (1 - s)**-alpha: two of shape [8]."""
    nodes, vectors = np.linalg.eigh(jacobi_matrix(alpha, NUMPY))
    return nodes, vectors[0] ** 2


def jacobi_matrix(alpha: Array, xp: Namespace) -> Array:
    """Return the symmetric matrix whose eigenvalues are the nodes.

    At alpha = 1 its first row holds nothing but a 1 on the diagonal: that node has all the weight.

    Shapes: alpha [*c], result [*c, 8, 8].
    """
    a = xp.asarray(alpha)[..., None]
    k = xp.constant(np.arange(1.0, NODES), a)
    even = 2 * k - a
    diagonal = xp.concat([a / (2 - a), -(a**2) / (even * (even + 2))], axis=-1)  # of Jacobi's polynomials on (-1, 1)
    later = 4 * k[1:] ** 2 * (k[1:] - a) ** 2 / (even[..., 1:] ** 2 * (even[..., 1:] ** 2 - 1))
    first = 4 * (1 - a) / ((2 - a) ** 2 * (3 - a))  # without the factor 1 - a that would make it 0 / 0
    roots = xp.concat([first, later], axis=-1) ** 0.5  # not of the 0, where a root has no slope
    beside = xp.concat([roots, 0 * a], axis=-1)
    above, below = (xp.constant(np.eye(NODES, k=side), a) for side in (1, -1))
    matrix = (
        diagonal[..., None] * xp.constant(np.eye(NODES), a) + beside[..., None] * above + beside[..., None, :] * below
    )
    return (xp.constant(np.eye(NODES), a) + matrix) / 2
