"""A plain call: the checks, the axes in the kernels' order, the weights, the plan, the product."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition, Multiplier
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.torch import kernels, rehearsal  # noqa: F401  registered on import
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.place import is_spread
from hpfracc_nn.fractional.torch.probe import is_plain, is_traced, uncompiled
from hpfracc_nn.fractional.torch.product import Product
from hpfracc_nn.fractional.torch.tiles import Frame
from hpfracc_nn.fractional.torch.weights import Weights, weights_of
from hpfracc_nn.selection import Plan, Site, Work, Workload, carried_out

_COMPUTED_IN = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
_MOST_KEPT = 64  # shapes of one operator
_NAMES = {each: str(each).removeprefix("torch.") for each in _COMPUTED_IN}

Pick = Callable[[tuple, Callable[[], Workload]], Plan]  # a site's `pick` or `pick_backward`


@uncompiled
def computed(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site) -> Tensor:
    """Return the operator applied to `x` along `dim`; autograd and every transform of torch.func follow it."""
    is_usual = definition.is_fixed and is_plain(x) and type(dim) is int  # True equals 1, and is none
    is_dense = is_usual and x.layout is torch.strided and not x.is_nested
    if is_dense and x.dtype in _COMPUTED_IN and x.numel() and not x.is_meta:
        return _at_once(owner, x, definition, dt, dim, site)
    if not isinstance(x, Tensor):
        raise no_tensor(owner, "x", x)
    dtype = computed_in(owner, x, definition)
    check_dense(owner, "x", x)
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}(x): torch.jit.trace cannot follow it; call it outside the traced part.")
    layout = layout_of(owner, x.shape, errors.axis(owner, dim, x.ndim), alpha_shape(definition))
    if 0 in layout.canonical or x.device.type == "meta":
        # With a tensor alpha its gradient is zero, not absent.
        return x.clone() if definition.is_fixed else x + 0 * definition.alpha.sum().to(x)
    if torch.is_inference_mode_enabled():
        # Weights and working memory are kept, and autograd refuses tensors that inference mode made.
        with torch.inference_mode(False), torch.no_grad():
            return computed(owner, x, definition, dt, dim, site)
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return _ordered(x, definition, dt, layout, dtype, site)
    return _ordered(x, definition, dt, layout, dtype, site)


def computed_in(owner: str, x: Tensor, definition: Definition | None = None) -> torch.dtype:
    """Return the dtype that `x` is computed in, by one operator or else at least, or raise."""
    dtype = _COMPUTED_IN.get(x.dtype)
    if dtype is None:
        raise wrong_dtype(owner, x)
    return torch.float64 if definition is not None and definition.is_wide else dtype


def taken_as(x: torch.dtype, computed: torch.dtype, definition: Definition) -> torch.dtype:
    """Return the dtype in which samples go to a product: half precision goes as it lies, if float32 computes it.

    A kernel that does not read it gets converted samples, see `tiles.py`; all do where there are cumulative sums before
    the product, which half precision would not hold.
    """
    return x if x == computed or (computed == torch.float32 and definition.differences >= 0) else computed


def wrong_dtype(owner: str, x: Tensor) -> TypeError:
    """Return what is raised for samples that are not real and floating."""
    return TypeError(
        f"{owner}(x of dtype {x.dtype}): needs float16, bfloat16, float32 or float64; "
        + ("take x.real and x.imag apart." if x.is_complex() else "convert with x.to(torch.float32).")
    )


def no_tensor(owner: str, name: str, given: Any) -> TypeError:
    """Return what is raised for what is no tensor."""
    if isinstance(given, PackedSequence):
        return TypeError(
            f"{owner}({name}: PackedSequence): needs rows of one length; pass what torch.nn.utils.rnn."
            f"pad_packed_sequence({name}) returns first, and leave out what comes of the padding."
        )
    return TypeError(
        f"{owner}({name} of type {type(given).__name__}): needs a torch tensor; pass torch.as_tensor({name})."
    )


def check_dense(owner: str, name: str, given: Any) -> None:
    """Raise for what is no tensor, or one that is nested, sparse, in MKL-DNN's layout or spread over processes."""
    if not isinstance(given, Tensor):
        raise no_tensor(owner, name, given)
    if type(given) is not Tensor and is_spread(given):
        raise TypeError(
            f"{owner}({name}: DTensor): needs a tensor of one process; pass {name}.to_local() where every process has "
            f"whole series, or {name}.full_tensor()."
        )
    if given.is_nested:
        raise TypeError(
            f"{owner}({name}: nested tensor): needs rows of one length; take them one by one from {name}.unbind(), or "
            f"pass torch.nested.to_padded_tensor({name}, 0.0) and leave out what it gives on the padding."
        )
    if given.layout is not torch.strided:
        raise TypeError(f"{owner}({name} of layout {given.layout}): needs a dense tensor; pass {name}.to_dense().")


def alpha_shape(definition: Definition | Multiplier) -> tuple[int, ...]:
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


def floating_alpha(owner: str, alpha: Any) -> None:
    """Raise unless alpha is a real floating tensor."""
    if not isinstance(alpha, Tensor) or not alpha.is_floating_point():
        kind = f"{alpha.dtype} tensor" if isinstance(alpha, Tensor) else type(alpha).__name__
        raise TypeError(
            f"{owner}(alpha: {kind}): needs a float or a floating torch tensor; pass for example torch.tensor(0.5)."
        )
    check_dense(owner, "alpha", alpha)


def may_be_read(alpha: Tensor) -> bool:
    """Whether a look at the values breaks nothing: on the CPU, outside tracing, where no gradient is wanted."""
    if torch.compiler.is_compiling():
        return False
    return not (alpha.requires_grad or alpha.device.type != "cpu" or is_traced(alpha, ()))


def check_alpha(owner: str, definition: Definition) -> None:
    """Raise unless a tensor alpha is a real floating tensor within its bounds, as far as it may be read."""
    alpha = definition.alpha
    floating_alpha(owner, alpha)
    if not may_be_read(alpha):
        return
    low, high = definition.interval
    if not bool(((alpha >= low) & (alpha <= high)).all()):
        raise ValueError(
            f"{owner}(alpha={alpha.tolist()}): needs a tensor alpha within its bounds ({low:g}, {high:g}); "
            "pass bounds that hold it, such as bounds=(1, 2), or a float."
        )


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Ready:
    """What a fixed operator needs for data of one shape; its weights own it."""

    layout: Layout
    dtype: torch.dtype  # of the samples for the product
    is_direct: bool  # they are taken as they come
    form: Form
    frame: Frame
    weights: Callable[[], Weights]  # they again, also after they were dropped


def _at_once(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site) -> Tensor:
    """The plain call of a fixed operator, as most are: one look-up finds the plan and what was prepared for it."""
    needs = torch.is_grad_enabled() and x.requires_grad

    def weights() -> tuple[Layout, Weights]:
        layout = layout_of(owner, x.shape, errors.axis(owner, dim, x.ndim), alpha_shape(definition))
        return layout, weights_of(definition, layout.n, dt, computed_in(owner, x, definition), x.device)

    def describe() -> Workload:
        layout, found = weights()
        return _workload(x, taken_as(x.dtype, found.dtype, definition), layout, found, needs, False)

    place = x.is_cpu or x.device  # a device is slow to compare
    plan = site.pick((definition, dt, dim, x.shape, x.dtype, place, needs, torch.get_num_threads()), describe)
    ready: _Ready | None = None if plan.kept is None else plan.kept()
    if ready is None:
        layout, found = weights()
        again = partial(weights_of, definition, layout.n, dt, found.dtype, x.device)
        dtype = taken_as(x.dtype, found.dtype, definition)
        plan, ready = carried_out(_PREPARED, site, plan, x.dtype, dtype, layout, found, again)
        plan.kept = weakref.ref(ready)
    layout = ready.layout
    product = Product(site, plan, ready.form, ready.frame, layout.canonical, ready.weights)
    if ready.is_direct:
        return product.recorded(x) if needs else product.forward(x)
    data = arranged(x, layout, ready.dtype)
    return restored(product.recorded(data) if needs else product.forward(data), layout, x.dtype)


def _prepared(
    plan: Plan,
    x_dtype: torch.dtype,
    dtype: torch.dtype,
    layout: Layout,
    weights: Weights,
    again: Callable[[], Weights],
) -> tuple[Plan, _Ready]:
    """Return the plan and what it needs, the same for all plans alike: kept as long as the weights are."""
    key = plan.kernel, x_dtype, layout
    ready = weights.kept.get(key)
    if ready is None:
        form = plan.kernel.prepare(weights, plan.kernel.given(plan.workload))
        is_direct = layout.order is None and x_dtype == dtype
        ready = _Ready(layout, dtype, is_direct, form, weights.frame, again)
        if len(weights.kept) >= _MOST_KEPT:
            weights.kept.clear()
        weights.kept[key] = ready
    return plan, ready


def _formed(plan: Plan, weights: Weights) -> tuple[Plan, Form]:
    return plan, plan.kernel.prepare(weights, plan.kernel.given(plan.workload))


_PREPARED, _FORMED = Work(_prepared, is_timed=False), Work(_formed, is_timed=False)


def _ordered(x: Tensor, definition: Definition, dt: float, layout: Layout, dtype: torch.dtype, site: Site) -> Tensor:
    alpha = None if definition.is_fixed else definition.alpha
    tracks = torch.is_grad_enabled()
    needs, learns = tracks and x.requires_grad, tracks and alpha is not None and alpha.requires_grad
    if is_traced(x, () if alpha is None else (alpha,)):
        data = arranged(x, layout, dtype)
        weights = Weights(definition, layout.n, dt, dtype, x.device)  # what a tracer sees is not kept
        return restored(planned(site.pick, data, weights, layout, site, needs, learns).formula(data), layout, x.dtype)
    data = arranged(x, layout, taken_as(x.dtype, dtype, definition))
    with torch.no_grad():
        weights = weights_of(definition, layout.n, dt, dtype, x.device)
        product = planned(site.pick, data, weights, layout, site, needs, learns)
    if needs or learns:
        return restored(product.recorded(data, alpha if learns else None), layout, x.dtype)
    return restored(product.forward(data), layout, x.dtype)


def arranged(x: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Return `x` with its axes in the kernels' order."""
    data = x if x.dtype == dtype else x.to(dtype)
    return data if layout.order is None else data.permute(layout.order)


def restored(y: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Return `y` with its axes in the caller's order, contiguous."""
    if layout.inverse is not None:
        y = y.permute(layout.inverse).contiguous()
    return y if y.dtype == dtype else y.to(dtype)


def planned(pick: Pick, x: Tensor, weights: Weights, layout: Layout, site: Site, needs: bool, learns: bool) -> Product:
    """Return the product that the site's plan computes.

    Args:
        pick: `site.pick` in a forward pass, `site.pick_backward` in a backward pass that stands apart from it.
        x: The samples or their gradient, in the kernels' order.
        weights: Of the operator.
        layout: Of the caller's array.
        site: Where the plans are kept.
        needs: A gradient in the samples is wanted.
        learns: A gradient in alpha is wanted.
    """
    key = (layout.canonical, x.dtype, x.device, needs, learns, _states(weights), torch.get_num_threads())
    plan = pick(key, lambda: _workload(x, x.dtype, layout, weights, needs, learns))
    plan, form = carried_out(_FORMED, site, plan, weights)
    return Product(site, plan, form, weights.frame, layout.canonical, lambda: weights)


def _workload(x: Tensor, dtype: torch.dtype, layout: Layout, weights: Weights, needs: bool, learns: bool) -> Workload:
    return Workload(
        op="toeplitz",
        framework="torch",
        device=str(x.device),
        dtype=_NAMES[dtype],
        rows=layout.batch * layout.channels,
        n=layout.n,
        width=layout.width,
        channels=layout.channels,
        exponentials=_states(weights),
        needs_gradient=needs,
        learns_weights=learns,
        threads=torch.get_num_threads(),
        converts_to="" if dtype == weights.dtype else _NAMES[weights.dtype],
    )


def _states(weights: Weights) -> int:
    return 0 if weights.nodes is None else weights.nodes.states
