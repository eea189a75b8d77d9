"""Values and gradients of each kernel of ours for GPUs beside those of the host in float64; faults are said at once.

    python benchmarks/gpu_values.py [--small] [--output FILE] [--rehearse]

It needs no pytest, so that a sanitizer can run it; `--small` is for one. A rehearsal takes the kernels of torch on the
CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from hpfracc_nn import Caputo, derivative
from hpfracc_nn.selection import BackendManager, Kernel, Settings, kernels

# One chunk, several, cut into segments; odd sizes; fewer signals than a block takes.
LAST = [(5, 16), (70, 333), (64, 3000), (3, 20001)]
SHORT = [(5, 7), (70, 300), (9, 512)]
MIDDLE = [(3, 16, 5), (2, 333, 70), (4, 3000, 64), (1, 20001, 2)]
BOUNDS = {torch.float32: 5e-6, torch.float64: 1e-10, torch.bfloat16: 6e-3}  # faults are of order one
DT = 0.1


@dataclass
class Case:
    """One kernel on one kind of samples.

    Attributes:
        kernel: Its name.
        shape: Of the samples.
        dtype: Theirs.
        alpha: The order of the derivative.
        errors: Relative ones, of the result and of the gradient.
        fault: What is wrong, or nothing.
    """

    kernel: str
    shape: tuple[int, ...]
    dtype: str
    alpha: float
    errors: tuple[float, ...] = ()
    fault: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="one size of each kind, float32, one order")
    parser.add_argument("--output", type=Path, help="write all cases into this file, as JSON")
    parser.add_argument("--rehearse", action="store_true", help="the kernels of torch on the CPU")
    arguments = parser.parse_args()
    device, backends = ("cpu", ("torch",)) if arguments.rehearse else ("cuda", ("cuda", "triton"))
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_values: no CUDA device can be used here.")
    found: list[Case] = []
    for kernel in kernels("toeplitz", "torch"):
        if kernel.backend in backends and not kernel.offloads:
            found += [tried(case, kernel, device) for case in cases(kernel, arguments.small)]
            own = [case for case in found if case.kernel == kernel.name]
            print(f"{kernel.name}: {len(own)} cases, {sum(bool(case.fault) for case in own)} not right", flush=True)
            if arguments.output:  # kernel by kernel: compilers may take longer than there is time
                arguments.output.write_text(json.dumps([asdict(case) for case in found], indent=1) + "\n")
    sys.exit(any(case.fault for case in found))


def cases(kernel: Kernel, small: bool) -> list[Case]:
    """Return what a kernel is tried on."""
    shapes = {"recurrence": MIDDLE, "dense": SHORT}.get(kernel.algorithm, LAST)
    if kernel.backend == "triton":  # in both layouts
        shapes = [LAST[0], LAST[1], MIDDLE[1], *LAST[2:], MIDDLE[0], *MIDDLE[2:]]
    if small:
        return [Case(kernel.name, shape, "float32", 0.5) for shape in shapes[1:3]]
    dtypes = [str(dtype).removeprefix("torch.") for dtype in BOUNDS]
    return [Case(kernel.name, shape, dtype, alpha) for shape in shapes for dtype in dtypes for alpha in (0.5, 1.7)]


def tried(case: Case, kernel: Kernel, device: str) -> Case:
    """Return the case with its errors, said where they are too large.

    What raises is a fault, too; if it came from the device, so do all cases after it: the first is the one to read.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    dim = 1 if len(case.shape) == 3 else -1
    settings = {"force_backend": kernel.backend, "force_algorithm": kernel.algorithm}
    manager = BackendManager(Settings(**settings, mode="prior", sample=False, wisdom="off"))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    given, g = (torch.randn(case.shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    try:
        # The data begin at no multiple of 16 bytes.
        room = torch.empty(given.numel() + 1, dtype=dtype, device=device)
        x, exact = room[1:].view(case.shape).copy_(given).requires_grad_(), given.double().requires_grad_()
        y = derivative(x, Caputo(case.alpha), dt=DT, dim=dim, manager=manager)
        wanted = derivative(exact, Caputo(case.alpha), dt=DT, dim=dim)
        pairs = [
            (y.detach(), wanted.detach()),
            (torch.autograd.grad(y, x, g.to(device))[0], torch.autograd.grad(wanted, exact, g.double())[0]),
        ]
        case.errors = tuple(float((a.cpu().double() - b).norm() / b.norm()) for a, b in pairs)
        if not max(case.errors) <= BOUNDS[dtype]:
            case.fault = f"above {BOUNDS[dtype]:g}"
    except Exception as error:
        case.fault = f"{type(error).__name__}: {str(error)[:160]}"
    if case.fault:
        errors = ", ".join(f"{error:.1e}" for error in case.errors)
        print(f"{case.kernel} {case.shape} {case.dtype} alpha {case.alpha}: {errors} {case.fault}", flush=True)
    return case


if __name__ == "__main__":
    main()
