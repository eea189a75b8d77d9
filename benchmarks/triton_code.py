"""What Triton makes of the kernels for a GPU that is not here: instructions and registers a sample, and a roofline.

    python benchmarks/triton_code.py [--target sm_90] [--output FOLDER]

It needs Triton, no device: `make triton` has an environment with both. Counted are the instructions of the loop over
chunks, as they stand in the code, times threads over samples of a step. What a branch skips is counted too; a number of
columns is compiled in, where a call hands it over, so that only the columns that are there count.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as the package launches them; some versions warn

from results import Table

from hpfracc_nn.fractional.torch.kernels.triton_product import CHUNK, ROWS, WARPS

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
# AMD's are left out: there Triton takes matrix instructions of full single precision, which last many cycles.
# Published: instructions of one lane a second in single precision (half of the operations), and bytes a second.
PUBLISHED = {
    "A100": (19.5e12 / 2, 2.0e12, "sm_80"),
    "H100 SXM": (67e12 / 2, 3.35e12, "sm_90"),
    "H200 SXM": (67e12 / 2, 4.8e12, "sm_90"),
    "B200": (75e12 / 2, 8.0e12, "sm_100"),
}
TYPES = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
NUMBERS = (
    "rows",
    "channels",
    "n",
    "width",
    "segments",
    "segment",
    "count",
    "own",
    "subtract",
    "taylor",
    "start",
    "terms",
)


@dataclass(frozen=True)
class Case:
    """A kernel with what is compiled into it.

    Attributes:
        kernel: forward, inner (the gradient in the order), backward, or the passes over segments.
        layout: Whether time is the last axis or in the middle.
        differences: 0 to 2.
        columns: Boundary columns, 0 to 3.
        dtype: Of the samples.
        states: K.
        is_split: Whether signals are cut.
    """

    kernel: str = "forward"
    layout: str = "last"
    differences: int = 1
    columns: int = 0
    dtype: str = "float32"
    states: int = 32
    is_split: bool = False


@dataclass(frozen=True)
class Code:
    """What was made of it.

    Attributes:
        instructions: A sample.
        registers: Of a thread.
        spilled: Instructions that write registers to memory or read them back.
        shared: Bytes of shared memory of a program.
    """

    instructions: float
    registers: int
    spilled: int
    shared: int


BOTH = ("forward", "backward")
CASES = [
    *(Case(kernel, differences=m, columns=j) for kernel in BOTH for m in (0, 1, 2) for j in (0, 1)),
    *(Case(kernel, columns=3) for kernel in BOTH),
    *(Case(kernel, "middle", differences=m) for kernel in BOTH for m in (1, 2)),
    *(Case("inner", layout) for layout in ("last", "middle")),
    *(Case(kernel, states=states) for kernel in BOTH for states in (16, 64)),
    *(Case(kernel, dtype=dtype) for kernel in BOTH for dtype in ("bfloat16", "float16")),
    *(Case(kernel, dtype="float64", states=64) for kernel in BOTH),
    *(Case(kernel, is_split=True) for kernel in (*BOTH, "forward ends", "backward ends")),
]
FEW = [Case(kernel, layout) for kernel in BOTH for layout in ("last", "middle")]  # on other targets


def compiled(case: Case, target: str) -> Any:
    """Return the kernel as Triton compiles it for a target."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hpfracc_nn.fractional.torch.kernels import triton_scan

    name = case.kernel.split()[0].replace("inner", "forward")
    kernel = getattr(triton_scan, name)
    signature, constants = _arguments(case, kernel.arg_names)
    places = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name == "n"
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=places)
    options = {"num_warps": WARPS, "num_stages": 1, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)


def _arguments(case: Case, names: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the types of the arguments, and the values of those that are compiled in."""
    stored = f"*{TYPES[case.dtype]}"
    wide = "*fp64" if case.dtype == "float64" else "*fp32"
    ends, inner = "ends" in case.kernel, case.kernel == "inner"
    used = {
        "x_ptr": stored,
        "y_ptr": None if ends or inner else stored,
        "against_ptr": stored if inner else None,
        "products_ptr": "*fp64" if inner else None,
        "intra_ptr": wide,
        "b_ptr": wide,
        "c_ptr": wide,
        "a_ptr": "*fp64",
        "columns_ptr": wide,
        "states_ptr": "*fp64" if case.is_split or ends else None,
        "records_ptr": None if ends else "*fp64",
        **dict.fromkeys(NUMBERS, "i32"),
    }
    constants: dict[str, Any] = {
        "DIFFERENCES": case.differences,
        "ENDS": ends,
        "SPLIT": case.is_split or ends,
        "MIDDLE": case.layout == "middle",
        "ROWS": ROWS,
        "CHUNK": CHUNK,
        "K": case.states,
        "PRECISION": "ieee",
        "terms": case.columns,
        **{name: None for name, kind in used.items() if kind is None},
    }
    constants = {name: value for name, value in constants.items() if name in names}
    return {name: "constexpr" if name in constants else str(used[name]) for name in names}, constants


def counted(case: Case, target: str) -> Code:
    """Compile a kernel and count."""
    made = compiled(case, target)
    samples = ROWS * CHUNK / (WARPS * TARGETS[target][2])  # of a thread, in a step
    if target.startswith("gfx"):
        return _counted_amd(made.asm["amdgcn"], samples, made.metadata.shared)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        text = _tool("nvdisasm", "-c", file.name)
        usage = _tool("cuobjdump", "-res-usage", file.name)
    lines = re.findall(r"^(\.L_x_\d+):|^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", text, re.MULTILINE)
    code, loop = _longest(lines, r"BRA.*?`\((\.L_x_\d+)\)")
    spilled = sum(bool(re.search(r"\b(STL|LDL)\b", each)) for each in code)
    (registers,) = re.findall(r"REG:(\d+)", usage)
    return Code(loop / samples, int(registers), spilled, made.metadata.shared)


def _counted_amd(text: str, samples: float, shared: int) -> Code:
    lines = re.findall(r"^(\.LBB\w+):|^\t([a-z]\w+[^\n;]*)", text, re.MULTILINE)
    _, loop = _longest(lines, r"s_c?branch\w* (\.LBB\w+)")
    (registers,) = re.findall(r"\.vgpr_count:\s+(\d+)", text)
    (spilled,) = re.findall(r"\.vgpr_spill_count:\s+(\d+)", text)
    return Code(loop / samples, int(registers), int(spilled), shared)


def _longest(lines: list[tuple[str, str]], branch: str) -> tuple[list[str], int]:
    """Return the instructions, and how many the longest loop has.

    Args:
        lines: Labels and instructions, one of the two each.
        branch: Matches an instruction that goes to a label.
    """
    code: list[str] = []
    labels: dict[str, int] = {}
    longest = 0
    for label, instruction in lines:
        if label:
            labels[label] = len(code)
            continue
        code.append(instruction)
        found = re.search(branch, instruction)
        if found and found[1] in labels:
            longest = max(longest, len(code) - labels[found[1]])
    return code, longest


def _tool(name: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def roofline(instructions: float, device: str, itemsize: int = 4) -> tuple[float, float]:
    """Return the picoseconds that the instructions and the bytes of a sample take, each at a device's full rate."""
    lanes, bandwidth, _ = PUBLISHED[device]
    return 1e12 * instructions / lanes, 1e12 * 2 * itemsize / bandwidth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, action="append", help="which; all of them if none is given")
    parser.add_argument("--output", type=Path, help="write triton-code and triton-roofline into this folder")
    arguments = parser.parse_args()
    import triton

    caption = f"Triton {triton.__version__}, without a device. ROWS={ROWS}, CHUNK={CHUNK}, {WARPS} warps."
    columns = {
        "target": ("target", ""),
        "kernel": ("kernel", ""),
        "layout": ("time", ""),
        "differences": ("differences", ""),
        "columns": ("columns", ""),
        "dtype": ("dtype", ""),
        "states": ("K", ""),
        "is_split": ("cut", ""),
        "instructions": ("instructions a sample", ".1f"),
        "registers": ("registers", ""),
        "spilled": ("spilled", ""),
        "shared": ("shared bytes", ""),
    }
    table = Table("triton-code", caption, columns, folder=arguments.output)
    targets = arguments.target or list(TARGETS)
    for target in targets:
        table.begin(target)
        for case in CASES if target == "sm_90" else FEW:
            table.add(target=target, **asdict(case), **asdict(counted(case, target)))
    _roofline_table(table, arguments.output)


def _roofline_table(code: Table, folder: Path | None) -> None:
    columns = {
        "device": ("device", ""),
        "kernel": ("kernel", ""),
        "instructions": ("instructions a sample", ".1f"),
        "arithmetic_ps": ("arithmetic, ps a sample", ".2f"),
        "memory_ps": ("memory, ps a sample", ".2f"),
        "copies": ("copies, at the least", ".2f"),
    }
    caption = "From published rates and counted instructions, float32, K = 32, time last, one difference; not measured."
    table = Table("triton-roofline", caption, columns, folder=folder)
    table.begin("float32")
    for device, (_, _, target) in PUBLISHED.items():
        for kernel in BOTH:
            wanted = asdict(Case(kernel)) | {"target": target}
            found = [each for each in code.records if wanted.items() <= each.items()]
            for record in found:
                arithmetic, memory = roofline(record["instructions"], device)
                table.add(
                    device=device,
                    kernel=kernel,
                    instructions=record["instructions"],
                    arithmetic_ps=arithmetic,
                    memory_ps=memory,
                    copies=max(arithmetic, memory) / memory,
                )


if __name__ == "__main__":
    main()
