"""A plain call: the checks, the axes in the kernels' order, the weights, the plan, the product.

A call of a fixed order looks up a PreparedCall, which has the layout and the weights as a kernel takes them, by the
values of the arguments.

In the signatures `owner` is the name of the public function or layer, for messages; `dt` is the spacing of the samples
and `dim` their time axis; a `Site` keeps the plans of one caller, such as a layer, and a `Plan` names the kernel for a
workload; `needs` and `learns` say whether a gradient is wanted, in the samples and in alpha. Kernels take data [batch,
channels, n, width], n samples of each signal (`fractional/layout.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

import hpfracc_nn.fractional.torch.device  # noqa: F401  registered on import
from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition, FourierMultiplier, family
from hpfracc_nn.fractional.dispatch import shape_of
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.linear import Column, StateSpace
from hpfracc_nn.fractional.torch import kernels, rehearsal  # noqa: F401  registered on import
from hpfracc_nn.fractional.torch.linear_map import LinearMap, Toeplitz
from hpfracc_nn.fractional.torch.parameters import is_spread
from hpfracc_nn.fractional.torch.tracing import PLAIN, is_plain, is_traced, uncompiled
from hpfracc_nn.fractional.torch.weights import Source, Weights, source_of, weights_at, weights_of
from hpfracc_nn.selection import (
    Plan,
    Site,
    Work,
    Workload,
    carried_out,
)

_COMPUTED_IN = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
_MOST_KEPT = 64  # PreparedCalls that the weights of one operator keep, one for each shape
_NAMES = {each: str(each).removeprefix("torch.") for each in _COMPUTED_IN}

Pick = Callable[[tuple, Callable[[], Workload]], Plan]  # a site's `pick` or `pick_backward`


@uncompiled
def computed(
    owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site, alpha: Tensor | None = None
) -> Tensor:
    """Return the operator applied to `x` along `dim`; autograd and every transform of torch.func follow it."""
    # By exact type: True equals 1, but is no axis and no spacing.
    is_usual = is_plain(x) and type(dim) is int and type(dt) is float and x.layout is torch.strided and not x.is_nested
    if is_usual and x.dtype in _COMPUTED_IN and x.numel() and not x.is_meta:
        if alpha is None:
            return _fixed(owner, x, definition, dt, dim, site)
        if type(alpha) in PLAIN and definition.is_tabulated:
            return _learned(owner, x, definition, dt, dim, site, alpha)
    if not isinstance(x, Tensor):
        raise no_tensor(owner, "x", x)
    dt, dtype = errors.positive_step(owner, dt), computed_in(owner, x, definition)
    check_dense(owner, "x", x)
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}(x): torch.jit.trace cannot follow it; call it outside the traced part.")
    layout = layout_of(owner, x.shape, errors.axis(owner, dim, x.ndim), orders_shape(definition, alpha))
    if 0 in layout.canonical or x.device.type == "meta":
        # With a tensor alpha its gradient is zero, not absent.
        return x.clone() if alpha is None else x + 0 * alpha.sum().to(x)
    if torch.is_inference_mode_enabled():
        # Weights and working memory are kept, and autograd refuses tensors that inference mode made.
        with torch.inference_mode(False), torch.no_grad():
            return computed(owner, x, definition, dt, dim, site, alpha)
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return _ordered(x, definition, dt, layout, dtype, site, alpha)
    return _ordered(x, definition, dt, layout, dtype, site, alpha)


@dataclass(eq=False, slots=True, weakref_slot=True)
class PreparedCall:
    """What calls of an operator on samples of one shape share: their layout, and the weights as a kernel takes them.

    Calls of fixed orders find it by a weak reference; the weights keep it alive.
    """

    layout: Layout
    dtype: torch.dtype  # of the samples for the product
    is_direct: bool  # the samples need no transposition and no conversion
    product: Toeplitz

    def __call__(self, site: Site, plan: Plan, x: Tensor, needs: bool, alpha: Tensor | None) -> Tensor:
        """Return the operator on x, with its gradient recorded in x if `needs`, and in alpha unless that is None."""
        data = x if self.is_direct else arranged(x, self.layout, self.dtype)
        linear = LinearMap(site, plan, self.product)
        y = linear.recorded(data, alpha) if needs or alpha is not None else linear.forward(data)
        return y if self.is_direct else restored(y, self.layout, x.dtype)


def _fixed(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site) -> Tensor:
    """Return the operator of a fixed order on x, for a call that nothing traces or transforms.

    One look-up in `site` finds the plan, and with it the PreparedCall of earlier calls with equal arguments and shape.
    """
    needs = x.requires_grad and torch.is_grad_enabled()
    place = x.is_cpu or x.device  # a device is slow to compare
    key = (definition.key, dt, dim, x.shape, x.dtype, place, needs, torch.get_num_threads())
    plan = site.pick(key, lambda: _described(owner, x, definition, dt, dim, needs))
    call: PreparedCall | None = None if plan.usage.kept is None else plan.usage.kept()
    if call is None:
        layout, weights = _weights(owner, x, definition, dt, dim)
        dtype = sample_dtype(x.dtype, weights.dtype, definition)
        plan, call = carried_out(_PREPARED, site, plan, x.dtype, dtype, layout, weights)
        plan.usage.kept = weakref.ref(call)
    return call(site, plan, x, needs, None)


def _weights(owner: str, x: Tensor, definition: Definition, dt: float, dim: int) -> tuple[Layout, Weights]:
    """Return the layout of x and the cached weights of a fixed operator.

    Raises:
        TypeError: The dtype of x is not floating, `dim` is no integer or `dt` no number.
        ValueError: `dt` is not positive, x has no axis `dim`, or alpha does not broadcast to the other axes of x.
    """
    dt, dtype = errors.positive_step(owner, dt), computed_in(owner, x, definition)
    layout = layout_of(owner, x.shape, errors.axis(owner, dim, x.ndim), shape_of(definition.alpha))
    return layout, weights_of(definition, layout.n, dt, dtype, x.device)


def _described(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, needs: bool) -> Workload:
    layout, weights = _weights(owner, x, definition, dt, dim)
    return _workload(x, sample_dtype(x.dtype, weights.dtype, definition), layout, weights.source, needs, False)


def _prepared(
    plan: Plan, x_dtype: torch.dtype, dtype: torch.dtype, layout: Layout, weights: Weights
) -> tuple[Plan, PreparedCall]:
    """Return the plan, unchanged, and the PreparedCall for its kernel, from `weights.kept` or new.

    `carried_out` calls it with the next best plan where a kernel fails, so that the returned plan is the one that
    worked. `x_dtype` is the dtype of the caller's samples, and `dtype` is that in which the product takes them.
    """
    key = plan.kernel, x_dtype, layout.shape, layout.axis
    call = weights.kept.get(key)
    if call is None:
        kernel, workload = plan.kernel, plan.workload
        operator = kernel.prepare(weights, kernel.given(workload) if workload.converts_to else workload)
        product = Toeplitz(operator, weights.boundary, layout.canonical, weights.again or (lambda: weights))
        call = PreparedCall(layout, dtype, layout.order is None and x_dtype == dtype, product)
        if weights.again is not None:  # weights in no cache and their call would hold each other
            if len(weights.kept) >= _MOST_KEPT:
                weights.kept.clear()
            weights.kept[key] = call
    return plan, call


def _operator(plan: Plan, weights: Weights) -> tuple[Plan, Column | StateSpace]:
    return plan, plan.kernel.prepare(weights, plan.kernel.given(plan.workload))


_PREPARED, _OPERATOR = Work(_prepared, is_timed=False), Work(_operator, is_timed=False)


def _learned(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site, alpha: Tensor) -> Tensor:
    """Return the operator with its orders in the tensor `alpha` on x, for a call that nothing traces or transforms.

    One look-up in `site` finds the plan, and with it what all calls on samples of one shape share. On a CPU the weights
    are cached by value where alpha needs no gradient.
    """
    if definition.alpha is alpha:
        definition = family(definition)
    tracks = torch.is_grad_enabled()
    needs, learns = tracks and x.requires_grad, tracks and alpha.requires_grad
    place = x.is_cpu or x.device
    key = (definition.key, dt, dim, x.shape, x.dtype, place, alpha.shape, needs, learns, torch.get_num_threads())

    def shared() -> _Learned:
        return _learned_of(owner, definition, dt, dim, x.shape, x.dtype, x.device, alpha.shape)

    def described() -> Workload:
        of = shared()
        return _workload(x, of.dtype, of.layout, of.source, needs, learns)

    plan = site.pick(key, described)
    of: _Learned | None = None if plan.usage.kept is None else plan.usage.kept()
    if of is None:
        of = shared()
        plan.usage.kept = weakref.ref(of)
    call: PreparedCall | None = None
    if alpha.is_cpu and x.is_cpu and not learns:
        weights = weights_at(of.source, alpha)
        call = weights.kept.get((plan.kernel, x.dtype, x.shape, of.layout.axis))
    else:
        weights = Weights.plain(of.source, alpha.detach())
    if call is None:
        plan, call = carried_out(_PREPARED, site, plan, x.dtype, of.dtype, of.layout, weights)
    return call(site, plan, x, needs, alpha if learns else None)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class _Learned:
    """What all calls of a learned operator on samples of one shape share, whatever the values of its orders.

    That is the layout of the samples, the dtype in which the product takes them, and what weights of all orders have in
    common.
    """

    layout: Layout
    dtype: torch.dtype  # of the samples for the product
    source: Source


@lru_cache(maxsize=4096)
def _learned_of(
    owner: str,
    definition: Definition,
    dt: float,
    dim: int,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    orders: torch.Size,
) -> _Learned:
    dt = errors.positive_step(owner, dt)
    layout = layout_of(owner, shape, errors.axis(owner, dim, len(shape)), tuple(orders))
    wide = torch.float64 if definition.is_wide else _COMPUTED_IN[dtype]
    samples = sample_dtype(dtype, wide, definition)
    return _Learned(layout, samples, source_of(definition, layout.n, dt, wide, device, False))


def _ordered(
    x: Tensor, definition: Definition, dt: float, layout: Layout, dtype: torch.dtype, site: Site, alpha: Tensor | None
) -> Tensor:
    """Return the operator on x for all other calls: traced, transformed by torch.func, or of tensor subclasses.

    `dtype` is what is computed in; `alpha` has the orders, None for those of the definition.
    """
    tracks = torch.is_grad_enabled()
    needs, learns = tracks and x.requires_grad, tracks and alpha is not None and alpha.requires_grad
    if is_traced(x, () if alpha is None else (alpha,)):
        data = arranged(x, layout, dtype)
        weights = Weights(definition, layout.n, dt, dtype, x.device, alpha=alpha)  # what a tracer sees is not kept
        _, product = planned(site.pick, data, weights, layout, site, needs, learns)
        return restored(product.formula(data), layout, x.dtype)
    data = arranged(x, layout, sample_dtype(x.dtype, dtype, definition))
    with torch.no_grad():
        weights = weights_of(definition, layout.n, dt, dtype, x.device, alpha)
        linear = LinearMap(site, *planned(site.pick, data, weights, layout, site, needs, learns))
    if needs or learns:
        return restored(linear.recorded(data, alpha if learns else None), layout, x.dtype)
    return restored(linear.forward(data), layout, x.dtype)


def arranged(x: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Return `x` in `dtype`, with its axes in the kernels' order."""
    data = x if x.dtype == dtype else x.to(dtype)
    return data if layout.order is None else data.permute(layout.order)


def restored(y: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Return `y` in `dtype`, with its axes in the caller's order; contiguous if they are permuted."""
    if layout.inverse is not None:
        y = y.permute(layout.inverse).contiguous()
    return y if y.dtype == dtype else y.to(dtype)


def planned(
    pick: Pick, x: Tensor, weights: Weights, layout: Layout, site: Site, needs: bool, learns: bool
) -> tuple[Plan, Toeplitz]:
    """Return a plan for the operator from `site`, and the operator with its weights as the plan's kernel takes them.

    Args:
        pick: `site.pick` in a forward pass, `site.pick_backward` in a backward pass that stands apart from it.
        x: The samples or their gradient, in the kernels' order.
        weights: Those of the operator.
        layout: That of the caller's array.
        site: Where the plans are kept.
        needs: A gradient in the samples is wanted.
        learns: A gradient in alpha is wanted.
    """
    key = (layout.canonical, x.dtype, x.device, needs, learns, weights.source.states, torch.get_num_threads())
    plan = pick(key, lambda: _workload(x, x.dtype, layout, weights.source, needs, learns))
    plan, operator = carried_out(_OPERATOR, site, plan, weights)
    return plan, Toeplitz(operator, weights.boundary, layout.canonical, lambda: weights)


def _workload(x: Tensor, dtype: torch.dtype, layout: Layout, source: Source, needs: bool, learns: bool) -> Workload:
    return Workload(
        op="toeplitz",
        framework="torch",
        device=str(x.device),
        dtype=_NAMES[dtype],
        rows=layout.batch * layout.channels,
        n=layout.n,
        width=layout.width,
        channels=layout.channels,
        exponentials=source.states,
        needs_gradient=needs,
        learns_weights=learns,
        threads=torch.get_num_threads(),
        converts_to="" if dtype == source.dtype else _NAMES[source.dtype],
    )


def computed_in(owner: str, x: Tensor, definition: Definition | FourierMultiplier | None = None) -> torch.dtype:
    """Return the dtype that an operator on `x` is computed in: float32 or float64.

    Without a definition the dtype is that of operators that do not ask for float64 (`Definition.is_wide`).

    Raises:
        TypeError: `x` is not float16, bfloat16, float32 or float64.
    """
    dtype = _COMPUTED_IN.get(x.dtype)
    if dtype is None:
        raise wrong_dtype(owner, x)
    return torch.float64 if definition is not None and definition.is_wide else dtype


def sample_dtype(x: torch.dtype, computed: torch.dtype, definition: Definition) -> torch.dtype:
    """Return the dtype in which samples of dtype `x` go to a product that is computed in `computed`.

    The result is `computed`, but half precision goes unconverted if float32 computes the product. A kernel that does
    not read half precision gets converted samples, see `tiles.py`; all kernels do where there are cumulative sums
    before the product, which half precision would not hold.
    """
    return x if x == computed or (computed == torch.float32 and definition.differences >= 0) else computed


def wrong_dtype(owner: str, x: Tensor) -> TypeError:
    """Return the TypeError for samples that are not of a real floating dtype."""
    return TypeError(
        f"{owner}(x of dtype {x.dtype}): needs float16, bfloat16, float32 or float64; "
        + ("take x.real and x.imag apart." if x.is_complex() else "convert with x.to(torch.float32).")
    )


def no_tensor(owner: str, name: str, given: Any) -> TypeError:
    """Return the TypeError for an argument that is no tensor."""
    if isinstance(given, PackedSequence):
        return TypeError(
            f"{owner}({name}: PackedSequence): needs rows of one length; pass what torch.nn.utils.rnn."
            f"pad_packed_sequence({name}) returns first, and leave out what comes of the padding."
        )
    return TypeError(
        f"{owner}({name} of type {type(given).__name__}): needs a torch tensor; pass torch.as_tensor({name})."
    )


def check_dense(owner: str, name: str, given: Any) -> None:
    """Raise TypeError unless an argument is a dense tensor of one process.

    Nested and sparse tensors, DTensors and those in MKL-DNN's layout are refused.
    """
    if not isinstance(given, Tensor):
        raise no_tensor(owner, name, given)
    if type(given) is not Tensor and is_spread(given):
        raise TypeError(
            f"{owner}({name}: DTensor): needs a tensor of one process; pass {name}.full_tensor(), or, where every "
            f"process has whole series, {name}.to_local(), and add up the gradients of orders and weights over the "
            "mesh; layers and hpfracc_nn.distributed take DTensors."
        )
    if given.is_nested:
        raise TypeError(
            f"{owner}({name}: nested tensor): needs rows of one length; take them one by one from {name}.unbind(), or "
            f"pass torch.nested.to_padded_tensor({name}, 0.0) and leave out what it gives on the padding; "
            "FractionalLayer, Linear, Conv1d, Difference and ARFIMA take the layout torch.jagged."
        )
    if given.layout is not torch.strided:
        raise TypeError(f"{owner}({name} of layout {given.layout}): needs a dense tensor; pass {name}.to_dense().")


def orders_shape(definition: Definition, alpha: Tensor | None) -> tuple[int, ...]:
    """Return the shape of the orders: that of `alpha`, or if it is None that of the definition's own."""
    return shape_of(definition.alpha) if alpha is None else tuple(alpha.shape)


def floating_alpha(owner: str, alpha: Any) -> None:
    """Raise TypeError unless alpha is a dense tensor of a real floating dtype."""
    if not isinstance(alpha, Tensor) or not alpha.is_floating_point():
        kind = f"{alpha.dtype} tensor" if isinstance(alpha, Tensor) else type(alpha).__name__
        raise TypeError(
            f"{owner}(alpha: {kind}): needs a float or a floating torch tensor; pass for example torch.tensor(0.5)."
        )
    check_dense(owner, "alpha", alpha)


def may_be_read(alpha: Tensor) -> bool:
    """Whether alpha's values may be read without harm: on the CPU, outside tracing, where no gradient is wanted."""
    if torch.compiler.is_compiling():
        return False
    return not (alpha.requires_grad or alpha.device.type != "cpu" or is_traced(alpha, ()))


def check_alpha(owner: str, definition: Definition, alpha: Tensor | None = None) -> None:
    """Raise unless the orders are a floating tensor with values within the definition's bounds.

    The values are compared only where they may be read (`may_be_read`).

    Args:
        owner: The public function, for messages.
        definition: The operator.
        alpha: The orders in place of the definition's own; None checks these.

    Raises:
        TypeError: The orders are no dense floating tensor.
        ValueError: An order is outside the bounds.
    """
    alpha = definition.alpha if alpha is None else alpha
    floating_alpha(owner, alpha)
    if not may_be_read(alpha):
        return
    low, high = definition.interval
    if not bool(((alpha >= low) & (alpha <= high)).all()):
        raise ValueError(
            f"{owner}(alpha={alpha.tolist()}): needs a tensor alpha within its bounds ({low:g}, {high:g}); "
            "pass bounds that hold it, such as bounds=(1, 2), or a float."
        )
