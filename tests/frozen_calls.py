"""Public calls as data, and what they return.

A call is a tree of JSON. A mapping with one of these keys stands for

    {"leaf": name}                         an array that the call draws, see `leaf`; gradients are taken in it
    {"array": arguments of `leaf`}         one in which none are
    {"name": "hpfracc_nn.Caputo"}          the public object of that name
    {"call": tree or name, "args", "kw"}   what it returns for these arguments
    {"module": tree, "args", "kw"}         what a layer returns: gradients are taken in its parameters too
    {"field": name, "with": [trees]}       a right-hand side of `FIELDS`, with its coefficients
    {"network": width, "plus": number}     a right-hand side that is a module
    {"descend": tree, "from": [trees]}     where an optimizer goes from these parameters in `STEPS` steps
    {"tuple": [...]}, {"map": [[k, v]]}    of trees
    {"integers": [...]}, {"dtype": name}   of the framework
    {"generator": seed}, {"key": seed}, {"rngs": seed}, {"numpy_rng": seed}

and everything else for itself. Only public names are in it, so that it outlives what lies behind them.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

Tree = Any  # of JSON
Parts = dict[str, np.ndarray]  # results and gradients by name

STEPS = 8  # of an optimizer
FEW = 24  # entries up to which an array is kept whole
SOME = 8  # entries that are kept of a longer one
SMALL = 1e-6  # the least scale: inputs are about 1, and what is 0 but for rounding has no digits


def uniform(seed: int, size: int) -> np.ndarray:
    """Return numbers in (0, 1) that every version of NumPy draws alike: raw bits are, distributions need not be."""
    raw = np.random.Philox(key=seed).random_raw(size)
    return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def leaf(seed: int, name: str, kind: str, shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Return the array that a leaf stands for: "normal", a "walk" along its last axis, or "uniform" in (low, high)."""
    drawn = uniform(seed * 1000 + zlib.crc32(name.encode()) % 1000, int(np.prod(shape))).reshape(tuple(shape))
    if kind == "uniform":
        return low + (high - low) * drawn
    normal = ndtri(drawn)
    return normal if kind == "normal" else normal.cumsum(-1) / max(shape[-1], 1) ** 0.5


def public(name: str) -> Any:
    """Return the object of a dotted name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise LookupError(name)


def weights_like(size: int, shape: Sequence[int]) -> np.ndarray:
    """Return fixed numbers of about 1: the sum of results with them is what gradients are taken of."""
    return np.cos(1.0 + 0.7 * np.arange(size)).reshape(tuple(shape))


def flat(value: Any) -> Iterator[Any]:
    """Yield the arrays and numbers in nested results."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from flat(value[key])
    elif isinstance(value, tuple | list):
        for each in value:
            yield from flat(each)
    elif hasattr(value, "to_dict"):  # what a fit returns
        yield from flat(value.to_dict())
    elif value is not None and not isinstance(value, str):
        yield value


# The same text for both frameworks: xp is torch or jax.numpy.
def _relax(xp: Any, rate: Any) -> Callable[..., Any]:
    return lambda t, y: rate * xp.tanh(1 - y * y) - 0.3 * xp.roll(y, 1, -1) + 0.1 * xp.sin(1.0 * t)


def _turned(xp: Any, matrix: Any) -> Callable[..., Any]:
    return lambda t, y: xp.tanh(y @ matrix) + xp.sin(1.0 * t)


def _diagonal(xp: Any, mix: Any) -> Callable[..., Any]:
    return lambda t, y: mix[:, 0] * xp.cos(y) * (1 + t)


def _additive(xp: Any, mix: Any) -> Callable[..., Any]:
    return lambda t, y: xp.ones_like(y) * mix[:, 0] * (1 + t)


def _scalar(xp: Any, mix: Any) -> Callable[..., Any]:
    return lambda t, y: (mix[:, 1] * xp.cos(y))[..., None]


def _general(xp: Any, mix: Any) -> Callable[..., Any]:
    return lambda t, y: xp.cos(y)[..., None] * mix


def _forced(xp: Any, rate: Any) -> Callable[..., Any]:
    return lambda t, y: xp.cos(2.0 * t) - rate * y


FIELDS = {
    "relax": _relax,
    "turned": _turned,
    "diagonal": _diagonal,
    "additive": _additive,
    "scalar": _scalar,
    "general": _general,
    "forced": _forced,
}


def torch_network(width: int, plus: float) -> Any:
    """Return a module for tanh(W z + b) cos(t) + plus."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(width, width, dtype=torch.float64)

        def forward(self, t: Any, z: Any) -> Any:
            return torch.tanh(self.net(z)) * torch.cos(t) + plus

    return Network()


def jax_network(width: int, plus: float) -> Any:
    from flax import nnx
    from jax import numpy as jnp

    class Network(nnx.Module):
        def __init__(self) -> None:
            self.net = nnx.Linear(width, width, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

        def __call__(self, t: Any, z: Any) -> Any:
            return jnp.tanh(self.net(z)) * jnp.cos(t) + plus

    return Network()


def _same(each: Any) -> Any:
    return each


class Call:
    """One call: `spec` holds the framework, the seed, the leaves (multiplied by `factor`) and the tree."""

    def __init__(self, spec: Mapping[str, Any], factor: float = 1.0):
        self.spec, self.framework, self.seed = spec, spec["framework"], spec["seed"]
        self.leaves = {name: factor * leaf(self.seed, name, *of) for name, of in spec.get("leaves", {}).items()}
        self._compiled: Callable[..., Any] | None = None

    def run(self, *, one_sign: bool = False) -> Parts:
        """Return results and gradients; with `one_sign` those of a sum with weights that are all positive."""
        return {"numpy": self._in_numpy, "torch": self._in_torch, "jax": self._in_jax}[self.framework](one_sign)

    def built(self, tree: Tree, given: Mapping[str, Any], made: Callable[[Any], Any]) -> Any:
        """Return what a tree stands for; `made` is called with every object that a call returns."""

        def of(each: Tree) -> Any:
            return self.built(each, given, made)

        if isinstance(tree, list):
            return [of(each) for each in tree]
        if not isinstance(tree, dict):
            return tree
        ((kind, what), *_) = tree.items()
        arguments = [of(each) for each in tree.get("args", ())]
        named = {name: of(each) for name, each in tree.get("kw", {}).items()}
        if kind == "call":
            return made((public(what) if isinstance(what, str) else of(what))(*arguments, **named))
        if kind == "module":
            layer = given["layer"] if "layer" in given else of(what)
            return (getattr(layer, tree["method"]) if "method" in tree else layer)(*arguments, **named)
        if kind == "field":
            return FIELDS[what](self.functions, *(of(each) for each in tree["with"]))
        if kind == "network":
            return {"torch": torch_network, "jax": jax_network}[self.framework](what, tree["plus"])
        if kind == "descend":
            return self._descended(what, [of(each) for each in tree["from"]], of)
        simple: dict[str, Callable[[Any], Any]] = {
            "leaf": lambda name: given[name],
            "array": lambda of: self._array(leaf(self.seed, "", *of)),
            "name": public,
            "tuple": lambda each: tuple(map(of, each)),
            "map": lambda pairs: {of(key): of(value) for key, value in pairs},
            "integers": lambda values: self._array(np.asarray(values)),
            "dtype": lambda name: getattr(self.functions, name),
            "numpy_rng": lambda seed: np.random.default_rng(seed),
            "generator": lambda seed: self.functions.Generator().manual_seed(seed),
            "key": lambda seed: public("jax.random.key")(seed),
            "rngs": lambda seed: public("flax.nnx.Rngs")(seed),
        }
        return simple[kind](what)

    @property
    def functions(self) -> Any:
        """The framework's functions."""
        return importlib.import_module({"numpy": "numpy", "torch": "torch", "jax": "jax.numpy"}[self.framework])

    def _array(self, values: np.ndarray) -> Any:
        return values if self.framework == "numpy" else self.functions.asarray(values)

    def _in_numpy(self, one_sign: bool) -> Parts:
        found = flat(self.built(self.spec["call"], self.leaves, _same))
        return {f"result {j}": np.asarray(each) for j, each in enumerate(found)}

    def _in_torch(self, one_sign: bool) -> Parts:
        import torch

        torch.manual_seed(self.seed)
        given = {name: torch.as_tensor(values).requires_grad_() for name, values in self.leaves.items()}
        modules: list[Any] = []

        def made(each: Any) -> Any:
            if isinstance(each, torch.nn.Module):
                modules.append(each)
            return each

        found = [
            each if isinstance(each, torch.Tensor) else torch.as_tensor(np.asarray(each))
            for each in flat(self.built(self.spec["call"], given, made))
        ]
        wanted: dict[str, Any] = dict(given)
        if modules:  # the last one holds the others
            wanted.update((name, p) for name, p in modules[-1].named_parameters() if p.requires_grad)
        parts = {f"result {j}": each.detach().numpy() for j, each in enumerate(found)}
        real = [torch.view_as_real(each) if each.is_complex() else each for each in found if each.requires_grad]
        if not real:
            return parts
        weights = [torch.as_tensor(weights_like(each.numel(), each.shape)) for each in real]
        total = sum((each * (w.abs() if one_sign else w)).sum() for each, w in zip(real, weights, strict=True))
        grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)  # type: ignore[arg-type]
        gradients = zip(wanted, grads, strict=True)
        return parts | {f"gradient {name}": g.numpy() for name, g in gradients if g is not None}

    def _in_jax(self, one_sign: bool) -> Parts:
        import jax
        from jax import numpy as jnp

        with jax.enable_x64(True):
            given: dict[str, Any] = {name: jnp.asarray(values) for name, values in self.leaves.items()}
            tree, split, others = self.spec["call"], None, None
            if "descend" in tree:
                return {f"result {j}": np.asarray(each) for j, each in enumerate(self.built(tree, given, _same))}
            if isinstance(tree, dict) and "module" in tree:
                from flax import nnx

                layer = self.built(tree["module"], given, _same)
                split, given["parameters"], others = nnx.split(layer, nnx.Param, ...)  # type: ignore[misc]

            def total(given: dict[str, Any], others: Any, one_sign: Any) -> tuple[Any, list[Any]]:
                if split is not None:
                    from flax import nnx

                    given = {**given, "layer": nnx.merge(split, given["parameters"], others, copy=True)}
                found = [jnp.asarray(each) for each in flat(self.built(tree, given, _same))]
                real = [jnp.stack([each.real, each.imag], -1) if each.dtype.kind == "c" else each for each in found]
                sums = jnp.zeros(())
                for each in real:
                    if jnp.issubdtype(each.dtype, jnp.floating):
                        weights = weights_like(each.size, each.shape)
                        sums = sums + (each * jnp.where(one_sign, np.abs(weights), weights)).sum()
                return sums, found

            self._compiled = self._compiled or jax.jit(jax.grad(total, has_aux=True))
            gradients, found = self._compiled(given, others, one_sign)
            parts = {f"result {j}": np.asarray(each) for j, each in enumerate(found)}
            for path, each in jax.tree_util.tree_flatten_with_path(gradients)[0]:
                keys = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
                parts[f"gradient {'.'.join(key for key in keys if key != 'value')}"] = np.asarray(each)
            return parts

    def _descended(self, tree: Tree, start: list[Any], of: Callable[[Tree], Any]) -> list[Any]:
        """Return the parameters after some steps on sum((p - 1)**2 + (p - 1)**4 / 4)."""
        if self.framework == "jax":
            jax, optax, optimizer = public("jax"), public("optax"), of(tree)

            @jax.jit
            def step(params: list[Any], state: Any) -> tuple[list[Any], Any]:
                grads = [2 * (p - 1) + (p - 1) ** 3 for p in params]
                changes, state = optimizer.update(grads, state, params)
                return optax.apply_updates(params, changes), state

            params, state = start, optimizer.init(start)
            for _ in range(STEPS):
                params, state = step(params, state)
            return params
        torch = self.functions
        params = [torch.nn.Parameter(each.detach().clone()) for each in start]
        optimizer = public(tree["call"])(params, **{name: of(each) for name, each in tree["kw"].items()})

        def closure() -> Any:
            optimizer.zero_grad()
            loss = sum(((p - 1) ** 2 + (p - 1) ** 4 / 4).sum() for p in params)
            loss.backward()
            return loss

        for _ in range(STEPS):
            optimizer.step(closure)
        return [each.detach() for each in params]


def summary(values: np.ndarray, scale: float = 0.0) -> dict[str, Any]:
    """Return what is kept of an array: all of it, or some entries, its norm and two projections.

    Args:
        values: Of any shape; complex ones as pairs.
        scale: What differences are held against, if it is more than the largest entry.
    """
    values = np.asarray(values)
    shape = list(values.shape)
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], -1)
    numbers = values.astype(np.float64).ravel()
    largest = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
    kept: dict[str, Any] = {"shape": shape, "scale": max(largest, scale, SMALL)}
    if numbers.size <= FEW:
        return kept | {"all": numbers.tolist()}
    places = (uniform(numbers.size, SOME) * numbers.size).astype(int)
    sides = np.where(uniform(numbers.size + 1, 2 * numbers.size).reshape(2, -1) < 0.5, -1.0, 1.0)
    return kept | {
        "some": [*numbers[places].tolist(), float(numbers[-1])],
        "sums": [float(np.linalg.norm(numbers)), *(sides @ numbers).tolist()],
    }


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Return how far two summaries are apart: entries relative to the scale, sums to that of as many random entries."""
    if list(found["shape"]) != list(wanted["shape"]):
        return np.inf
    scale, size = wanted["scale"], int(np.prod(found["shape"]))
    off = 0.0
    for key, unit in (("all", 1.0), ("some", 1.0), ("sums", max(size, 1) ** 0.5)):
        if key in wanted:
            one, other = np.asarray(found[key]), np.asarray(wanted[key])
            if not np.array_equal(np.isfinite(one), np.isfinite(other)):
                return np.inf
            fine = np.isfinite(one)
            off = max(off, float(np.abs(one - other)[fine].max(initial=0.0)) / (scale * unit))
    return off
