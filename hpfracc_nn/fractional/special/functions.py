"""The special functions, for arrays of NumPy, PyTorch and JAX."""

from __future__ import annotations

from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.fractional.dispatch import backend, framework_of, preload, type_name

Array = Any  # an array of any framework, a number, or what NumPy makes an array of


def mittag_leffler(z: Array, alpha: Array, beta: Array = 1.0, *, derivative: tuple[int, int, int] = (0, 0, 0)) -> Array:
    """Return the Mittag-Leffler function, or one of its derivatives.

        E_(alpha, beta)(z) = sum over k >= 0 of z**k / Gamma(alpha k + beta)

    For |z| <= 1000, alpha >= 0.05 and 0 < beta <= 4 the error is below

        1e-13 |E| + 2 eps (|z dE/dz| + |alpha dE/dalpha| + |beta dE/dbeta|),    eps = 2.2e-16,

    that is, 1e-13 relative except where the last bit of an argument decides about more: next to the zeros of E, and
    where E grows like exp(z**(1/alpha)). First and second derivatives are right to 1e-9 in the same sense. A point
    costs 39 complex divisions, 77 for complex `z`, and twice as many exponentials where alpha or beta is an array.

    Torch tensors and JAX arrays are differentiable in z, alpha and beta to any order, in reverse and forward mode and
    under the transforms of torch.func and JAX; half and single precision are computed in double, in JAX also where the
    process has not enabled 64 bit types.

    Args:
        z: Real or complex; broadcasts with alpha and beta. Overflow gives inf.
        alpha: Real, in (0, 2].
        beta: Real, in [-1, 5].
        derivative: Orders of the partial derivatives in z, alpha and beta.

    Returns:
        The shape that they broadcast to. Real for real `z`, else complex; floating, of the dtype that the framework
        promotes the arguments to. A torch tensor or JAX array if any argument is one; then an alpha or beta that is one
        too and outside its range gives NaN: a check would wait for the device.

    Raises:
        TypeError: An argument is not a number or an array of a supported framework, or alpha or beta is complex.
        ValueError: alpha or beta is outside its range, or a derivative's order is negative.

    Source: Garrappa, SIAM J. Numer. Anal. 53 (2015) 1350; see `hpfracc_nn.fractional.special.mittag_leffler`.

    Examples:
        >>> round(float(mittag_leffler(-1.0, 0.5)), 12)  # e erfc(1)
        0.427583576156
    """
    owner = "mittag_leffler"
    if not (isinstance(derivative, tuple | list) and len(derivative) == 3):
        raise TypeError(
            f"{owner}(derivative={derivative!r}): needs three orders, in z, alpha and beta; pass such as (1, 0, 0)."
        )
    in_z, in_alpha, in_beta = (errors.count(owner, "derivative", order, least=0) for order in derivative)
    return _implementation(owner, z=z, alpha=alpha, beta=beta).mittag_leffler(z, alpha, beta, (in_z, in_alpha, in_beta))


def fractional_fourier(x: Array, order: Array, dim: int = -1, *, centred: bool = False) -> Array:
    """Return the fractional Fourier transform of `x` along `dim`.

    Order 0 is the identity, 1 the unitary FFT, 2 the reversal, and the period is 4: these hold exactly for every n. For
    every order the transform is unitary and maps the k-th Hermite function to exp(-i pi k order / 2) times itself. It
    is the FFT of the nearest whole order and, for the rest, three chirps and two FFTs: O(n log n). The chirps of an
    order that is a number are kept; an order in a tensor or JAX array, whose value is not looked at, takes two more
    FFTs.

    Unitarity is exact for every signal; additivity in the order, and the eigenvalues above, hold to the share of the
    signal that lies outside the disc of radius 0.92 sqrt(n) / 2 in the plane of time and frequency (one sample is
    1 / sqrt(n) in either). Where the order passes a half (0.5, 1.5, ...) the result jumps by as much.

    Args:
        x: Real or complex samples, shape [..., n, ...].
        order: Real, any value; a number, or an array that broadcasts over the axes of `x` other than `dim`. A torch
            tensor or JAX array is differentiable.
        dim: The axis that is transformed.
        centred: Where time and frequency zero are: at index 0, as in numpy.fft and torch.fft, or at index n // 2.

    Returns:
        Shape of `x`; complex64 for single and half precision, else complex128.

    Raises:
        TypeError: `x` is no array of a supported framework, or `order` is not real.
        ValueError: `dim` is no axis of `x`, it has no samples, or `order` does not broadcast.

    Source: Ozaktas, Arikan, Kutay & Bozdagi, IEEE Trans. Signal Process. 44 (1996) 2141, for the chirps.

    Examples:
        >>> import numpy as np
        >>> x = np.array([1.0, 2.0, 0.5, -1.0])
        >>> bool(np.allclose(fractional_fourier(x, 1), np.fft.fft(x, norm="ortho")))
        True
    """
    return _implementation("fractional_fourier", x=x, order=order).fractional_fourier(x, order, dim, centred)


def _implementation(owner: str, **arguments: Array) -> Any:
    """Return a framework's module of special functions: torch's or JAX's if any argument is its array, else NumPy's.

    `owner` is the public function and the keywords are the names of its arguments, for messages.
    """
    names = {framework_of(type(value)): name for name, value in arguments.items()}
    if "torch" in names and "jax" in names:
        given = ", ".join(f"{names[each]} of type {type_name(arguments[names[each]])}" for each in ("torch", "jax"))
        raise TypeError(f"{owner}({given}): needs arrays of one framework; convert one of the two.")
    framework = next((each for each in ("torch", "jax") if each in names), "numpy")
    return backend(framework).special


preload()
