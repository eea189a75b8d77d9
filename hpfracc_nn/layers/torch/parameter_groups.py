"""Parameter groups for torch's optimizers: orders apart from the weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.parameters import Alpha


def param_groups(
    module: nn.Module, lr: float | Tensor, alpha_lr: float | Tensor, **defaults: Any
) -> list[dict[str, Any]]:
    """Return two groups for an optimizer: the weights, and the orders with a learning rate of their own.

    An order moves slowly beside the weights of a network, in the free number that is mapped into its bounds; ten
    times the weights' learning rate is a start. Weight decay would draw it to the middle of its bounds: orders have
    none.

    The groups hold every parameter of the module once, in its own order, also those that are frozen, as
    `module.parameters()` does; an optimizer passes over them for as long as they have no gradient.

    Args:
        module: A module with learned orders, which are the parameters of its `Alpha` and `ProbabilisticAlpha`.
        lr: Learning rate of the weights.
        alpha_lr: Learning rate of the orders.
        **defaults: Further options of the optimizer, for both groups; `weight_decay` for the weights.

    Returns:
        [weights, orders], dictionaries as `torch.optim.Optimizer` takes them. Each has a `name`.

    Raises:
        ValueError: The module has no learned order, or a learning rate is negative.
        TypeError: `module` is no module, or a learning rate is no number.

    Examples:
        >>> net = torch.nn.Sequential(
        ...     FractionalDifference(3, orders=2), torch.nn.Conv1d(6, 4, 5)
        ... )
        >>> optimizer = torch.optim.AdamW(
        ...     param_groups(net, lr=5e-3, alpha_lr=3e-2, weight_decay=1e-2)
        ... )
        >>> {
        ...     group["name"]: (group["lr"], group["weight_decay"])
        ...     for group in optimizer.param_groups
        ... }
        {'weights': (0.005, 0.01), 'orders': (0.03, 0.0)}
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"param_groups(module of type {type(module).__name__}): needs a torch module; pass the network."
        )
    if "params" in defaults or "name" in defaults:
        raise TypeError("param_groups: makes the entries 'params' and 'name' itself; leave them out.")
    rates = [
        rate if isinstance(rate, Tensor) else errors.real("param_groups", argument, rate, 0.0)
        for argument, rate in (("lr", lr), ("alpha_lr", alpha_lr))
    ]
    orders = {id(each) for part in module.modules() if isinstance(part, Alpha) for each in part.parameters()}
    if not orders:
        raise ValueError(
            f"param_groups({type(module).__name__}): needs a learned order; make a layer with learn_alpha=True, or "
            "pass module.parameters() to the optimizer."
        )
    parameters = list(module.parameters())
    return [
        {**defaults, "name": "weights", "params": [p for p in parameters if id(p) not in orders], "lr": rates[0]},
        {
            **defaults,
            "name": "orders",
            "params": [p for p in parameters if id(p) in orders],
            "lr": rates[1],
            "weight_decay": 0.0,
        },
    ]
