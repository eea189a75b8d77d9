"""The operators on PyTorch tensors: checks at the door, then the product."""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.torch import kernels  # noqa: F401  registered on import
from hpfracc_nn.fractional.torch.frame import Frame
from hpfracc_nn.fractional.torch.probe import is_traced, is_watched
from hpfracc_nn.fractional.torch.product import Product
from hpfracc_nn.fractional.torch.weights import Weights, weights_of
from hpfracc_nn.selection import BackendManager, Site, Workload, default_manager

_COMPUTED_IN = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
_NAMES = {torch.float32: "float32", torch.float64: "float64"}


def apply(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, manager: BackendManager | None) -> Tensor:
    """Return the operator applied to `x` along `dim`; same shape, dtype and device. See `fractional.derivative`."""
    dt = errors.positive_step(owner, dt)
    if not definition.is_fixed:
        check_alpha(owner, definition)
    site = (default_manager() if manager is None else manager).shared_site("toeplitz", "torch", "functions")
    return apply_at(owner, x, definition, dt, dim, site)


def apply_at(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site) -> Tensor:
    """Return the same for arguments that were checked before, with the plans of `site`."""
    run = _opaque if torch.compiler.is_compiling() else _checked
    return run(owner, x, definition, dt, dim, site)


def _checked(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{owner}(x of type {type(x).__name__}): needs a torch tensor; pass torch.as_tensor(x).")
    dtype = _COMPUTED_IN.get(x.dtype)
    if dtype is None:
        raise TypeError(
            f"{owner}(x of dtype {x.dtype}): needs float16, bfloat16, float32 or float64; "
            + ("take x.real and x.imag apart." if x.is_complex() else "convert with x.to(torch.float32).")
        )
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}(x): torch.jit.trace cannot follow it; call it outside the traced part.")
    layout = layout_of(owner, x.shape, errors.axis(owner, dim, x.ndim), alpha_shape(definition))
    if 0 in layout.canonical or x.device.type == "meta":
        # With a tensor alpha its gradient is zero, not absent.
        return x.clone() if definition.is_fixed else x + 0 * definition.alpha.sum().to(x)
    if torch.is_inference_mode_enabled():
        # Weights and working memory are kept, and autograd refuses tensors that inference mode made.
        with torch.inference_mode(False), torch.no_grad():
            return _checked(owner, x, definition, dt, dim, site)
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return _ordered(x, definition, dt, layout, dtype, site)
    return _ordered(x, definition, dt, layout, dtype, site)


_opaque = torch.compiler.disable(_checked)  # a compiled model breaks its graph here: tracing the weights takes a minute


def alpha_shape(definition: Definition) -> tuple[int, ...]:
    """Return the shape of a definition's alpha."""
    alpha = definition.alpha
    if isinstance(alpha, float):
        return ()
    if isinstance(alpha, Tensor):
        return tuple(alpha.shape)
    shape = []
    while isinstance(alpha, tuple):
        shape.append(len(alpha))
        alpha = alpha[0]
    return tuple(shape)


def check_alpha(owner: str, definition: Definition) -> None:
    """Raise unless a tensor alpha is a real floating tensor within its bounds.

    Its values are read only where that breaks nothing: on the CPU, outside tracing, where no gradient is wanted.
    """
    alpha = definition.alpha
    if not isinstance(alpha, Tensor) or not alpha.is_floating_point():
        kind = f"{alpha.dtype} tensor" if isinstance(alpha, Tensor) else type(alpha).__name__
        raise TypeError(
            f"{owner}(alpha: {kind}): needs a float or a floating torch tensor; pass for example torch.tensor(0.5)."
        )
    if alpha.requires_grad or alpha.device.type != "cpu" or is_traced(alpha, ()):
        return
    low, high = definition.interval
    if not bool(((alpha >= low) & (alpha <= high)).all()):
        raise ValueError(
            f"{owner}(alpha={alpha.tolist()}): needs a tensor alpha within its bounds ({low:g}, {high:g}); "
            "pass bounds that hold it, such as bounds=(1, 2), or a float."
        )


def _ordered(x: Tensor, definition: Definition, dt: float, layout: Layout, dtype: torch.dtype, site: Site) -> Tensor:
    """Bring the axes into the kernels' order, compute, and bring them back."""
    data = x if x.dtype == dtype else x.to(dtype)
    if layout.order is not None:
        data = data.permute(layout.order)
    make = Weights if is_watched(x) else weights_of  # what a tracer sees is not kept
    weights = make(definition, layout.n, dt, dtype, x.device)
    y = _product(data.reshape(layout.canonical), weights, layout, site).reshape(layout.permuted)
    if layout.inverse is not None:
        y = y.permute(layout.inverse).contiguous()
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _product(x: Tensor, weights: Weights, layout: Layout, site: Site) -> Tensor:
    tracks = torch.is_grad_enabled()
    needs, learns = (
        tracks and x.requires_grad,
        tracks and not weights.is_fixed and weights.definition.alpha.requires_grad,
    )
    count = 0 if weights.nodes is None else weights.nodes.states
    threads = torch.get_num_threads()

    def describe() -> Workload:
        return Workload(
            op="toeplitz",
            framework="torch",
            device=str(x.device),
            dtype=_NAMES[x.dtype],
            rows=layout.batch * layout.channels,
            n=layout.n,
            width=layout.width,
            channels=layout.channels,
            exponentials=count,
            needs_gradient=needs,
            learns_weights=learns,
            threads=threads,
        )

    plan = site.pick((x.shape, x.dtype, x.device, needs, learns, count, threads), describe)
    form = plan.kernel.prepare(weights, plan.workload)
    return Product(site, plan, form, Frame(weights.stencil, weights.columns(), x.dtype))(x)
