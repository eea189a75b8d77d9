"""Formulas for the reference pages: an extension of Griffe.

A docstring is read in a terminal too, and says in plain text what an operator is. The
reference shows, below the first paragraph, the formula that stands here under its name,
in place of one in plain text there.
"""

from __future__ import annotations

from typing import Any

import griffe

FORMULAS = {
    "fractional.Caputo": r"D^\alpha x(t) = \frac{1}{\Gamma(m-\alpha)} \int_0^t"
    r" (t-s)^{m-\alpha-1}\, x^{(m)}(s)\, ds, \qquad m = \lceil \alpha \rceil",
    "fractional.RiemannLiouville": r"D^\alpha x(t) = \frac{d^m}{dt^m}\,"
    r" \frac{1}{\Gamma(m-\alpha)} \int_0^t (t-s)^{m-\alpha-1}\, x(s)\, ds,"
    r" \qquad m = \lceil \alpha \rceil",
    "fractional.RiemannLiouvilleIntegral": r"I^\alpha x(t) ="
    r" \frac{1}{\Gamma(\alpha)} \int_0^t (t-s)^{\alpha-1}\, x(s)\, ds",
    "fractional.GrunwaldLetnikov": r"D^\alpha x(t_n) = \frac{1}{dt^\alpha}"
    r" \sum_{k=0}^{n} (-1)^k \binom{\alpha}{k}\, x_{n-k}",
    "fractional.TemperedCaputo": r"D^{\alpha,\lambda} x(t) = e^{-\lambda t}\,"
    r" D^\alpha \bigl(e^{\lambda t} x\bigr)(t), \qquad \lambda = \text{rate}",
    "fractional.TemperedRiemannLiouville": r"D^{\alpha,\lambda} x(t) ="
    r" e^{-\lambda t}\, D^\alpha \bigl(e^{\lambda t} x\bigr)(t),"
    r" \qquad \lambda = \text{rate}",
    "fractional.CaputoFabrizio": r"D x(t) = \frac{1}{1-\alpha} \int_0^t x'(s)\,"
    r" e^{-r (t-s)}\, ds, \qquad r = \frac{\alpha}{(1-\alpha)\,\text{unit}}",
    "fractional.AtanganaBaleanu": r"D x(t) = \frac{1}{1-\alpha} \int_0^t x'(s)\,"
    r" E_\alpha\Bigl(-c \Bigl(\frac{t-s}{\text{unit}}\Bigr)^\alpha\Bigr)\, ds,"
    r" \qquad c = \frac{\alpha}{1-\alpha}",
    "fractional.Marchaud": r"D^\alpha x(t) = \frac{\alpha}{\Gamma(1-\alpha)}"
    r" \int_0^\infty \frac{x(t) - x(t-s)}{s^{1+\alpha}}\, ds",
    "fractional.Hadamard": r"D x(t) = \Bigl(t \frac{d}{dt}\Bigr)^{c}"
    r" \frac{1}{\Gamma(c-\alpha)} \int_{t_0}^t"
    r" \Bigl(\log\frac{t}{s}\Bigr)^{c-\alpha-1} x(s)\, \frac{ds}{s}",
    "fractional.CaputoHadamard": r"D x(t) = \frac{1}{\Gamma(c-\alpha)} \int_{t_0}^t"
    r" \Bigl(\log\frac{t}{s}\Bigr)^{c-\alpha-1}"
    r" \Bigl(s \frac{d}{ds}\Bigr)^{c} x(s)\, \frac{ds}{s}",
    "fractional.HadamardIntegral": r"I x(t) = \frac{1}{\Gamma(\alpha)} \int_{t_0}^t"
    r" \Bigl(\log\frac{t}{s}\Bigr)^{\alpha-1} x(s)\, \frac{ds}{s}",
    "fractional.Riesz": r"D x = -\Bigl(-\frac{d^2}{dt^2}\Bigr)^{\alpha/2} x",
    "fractional.PeriodicWeyl": r"\widehat{D x}(\omega) ="
    r" (i\omega)^\alpha\, \hat x(\omega)",
    "fractional.PeriodicRiesz": r"\widehat{D x}(\omega) ="
    r" -\lvert\omega\rvert^\alpha\, \hat x(\omega)",
    "fractional.FractionalLaplacian": r"\widehat{(-\Delta)^{\alpha/2} x}(\omega) ="
    r" \lvert\omega\rvert^\alpha\, \hat x(\omega)",
    "fractional.mittag_leffler": r"E_{\alpha,\beta}(z) ="
    r" \sum_{k=0}^{\infty} \frac{z^k}{\Gamma(\alpha k + \beta)}",
    "solvers.fdeint": r"D^\alpha y(t) = f\bigl(t, y(t)\bigr), \qquad y(t_0) = y_0",
    "solvers.fsdeint": r"X(t) = x_0 + \int_0^t"
    r" \frac{(t-s)^{\alpha-1}}{\Gamma(\alpha)}\,"
    r" \bigl[ f(s, X_s)\, ds + g(s, X_s)\, dZ_s \bigr]",
    "layers.ARFIMA": r"u = (1 - z)^\alpha (x - \text{mean}), \qquad"
    r" e_t = u_t - \sum_{i=1}^{p} \text{ar}_i\, u_{t-i}"
    r" - \sum_{j=1}^{q} \text{ma}_j\, e_{t-j}",
    "layers.FractionalLinear": r"y = W\, (D^\alpha x) + b",
    "layers.FractionalLSTM": r"c_t = f_t\, m_t + i_t \tanh(\cdots),"
    r" \qquad m_t = \sum_{k \ge 1} a_k\, c_{t-k}, \qquad a_k = -w_k(\alpha)",
    "layers.FractionalGRU": r"h_t = (1 - z_t)\, n_t + z_t\, m_t,"
    r" \qquad m_t = \sum_{k \ge 1} a_k\, h_{t-k}, \qquad a_k = -w_k(\alpha)",
    "layers.FractionalGraphConv": r"D^\alpha X = (A - D)\, X,"
    r" \qquad X(0) = x W + b",
}


class Formulas(griffe.Extension):
    """Puts each formula below the first paragraph of its name's docstring.

    An indented paragraph that stands there is the same formula in plain text, and goes.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for name, formula in FORMULAS.items():
            docstring = pkg[name].docstring
            summary, _, rest = docstring.value.partition("\n\n")
            if rest.startswith("    "):
                rest = rest.partition("\n\n")[2]
            docstring.value = f"{summary}\n\n$$\n{formula}\n$$\n\n{rest}"
