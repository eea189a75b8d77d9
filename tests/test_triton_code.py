"""The kernels in Triton compile for GPUs that are not here, and no longer than in the table of the last look.

`make triton` runs these, in an environment of its own; elsewhere they are left out.
"""

import json
import pathlib
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from tests.triton_cases import IS_INTERPRETED, IS_THERE

pytestmark = pytest.mark.skipif(IS_INTERPRETED or not IS_THERE, reason="needs Triton, and not its interpreter")
TABLE = pathlib.Path(__file__).parents[1] / "benchmarks" / "results" / "triton-code.json"
Load = Callable[[str], ModuleType]
# At K = 32, in single precision, on sm_90, with time last: what a call with up to one boundary column runs.
PROMISED = [(kernel, m, j) for kernel in ("forward", "backward") for m in (0, 1, 2) for j in (0, 1)]
CHECKED = [
    {"target": target, "kernel": kernel, "layout": layout, "differences": m, "states": 32}
    for kernel in ("forward", "backward")
    for target, layout, m in (
        ("sm_80", "last", 1),
        ("sm_90", "last", 1),
        ("sm_90", "middle", 2),
        ("sm_100", "middle", 1),
        ("gfx942", "last", 1),
    )
] + [
    {"target": "sm_90", "kernel": "inner", "layout": "last"},
    {"target": "sm_90", "kernel": "forward", "dtype": "float64"},
    {"target": "sm_90", "kernel": "backward", "dtype": "bfloat16"},
    {"target": "sm_90", "kernel": "backward", "is_split": True},
]


def records(**wanted: Any) -> list[dict[str, Any]]:
    """Return the records of the table that have these values."""
    found = json.loads(TABLE.read_text("utf-8"))["records"]
    return [each for each in found if wanted.items() <= each.items()]


def recounted(load: Load, record: dict[str, Any]) -> Any:
    code = load("triton_code")
    fields = asdict(code.Case())
    return code.counted(code.Case(**{name: record[name] for name in fields}), record["target"])


@pytest.mark.slow
@pytest.mark.parametrize("wanted", CHECKED, ids=lambda wanted: " ".join(map(str, wanted.values())))
def test_a_kernel_compiles_for_a_target_as_it_did(load: Load, wanted: dict[str, Any]) -> None:
    """A tenth more instructions or registers than in the table is a step back; update the table where it is meant."""
    record = records(**wanted)[0]
    found = recounted(load, record)
    assert found.instructions <= 1.1 * record["instructions"]
    assert found.registers <= 1.1 * record["registers"]
    assert found.spilled == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "m", "j"), PROMISED)
def test_few_instructions_and_registers_do(load: Load, kernel: str, m: int, j: int) -> None:
    case = {"kernel": kernel, "layout": "last", "differences": m, "columns": j, "dtype": "float32", "states": 32}
    (record,) = records(target="sm_90", is_split=False, **case)
    found = recounted(load, record)
    assert found.instructions <= 140
    assert found.registers <= 128
    assert found.spilled == 0


class Elsewhere:
    """Stands for the driver of a device that is not here, as far as a tracer asks: what is compiled for."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("segment", [3, 2])
def test_a_compiler_sees_the_kernels_and_what_they_write(
    monkeypatch: pytest.MonkeyPatch, transposed: bool, segment: int
) -> None:
    """In torch's own graph, as Inductor and AOTInductor take it, on tensors of a GPU without data."""
    import triton

    from hpfracc_nn.fractional.torch.kernels import triton_op  # noqa: F401  registers it

    monkeypatch.setattr(triton.runtime.driver, "_active", Elsewhere())
    sizes = (4, 1, 40, 1), (1, 16, 16), (16, 24), (1, 24, 16), (24,), (1, 1, 40)
    with FakeTensorMode():
        tensors = [
            torch.empty(size, device="cuda", dtype=torch.float64 if len(size) == 1 else torch.float32) for size in sizes
        ]

        def call(*tensors: Tensor) -> Tensor:
            return torch.ops.hpfracc_nn.chunked_scan(*tensors, 1, True, 1, 1, segment, transposed)

        graph = make_fx(dispatch_functionalize(call))(*tensors).graph
    nodes = [node for node in graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    written = [node.kwargs["tensors_to_clone"] for node in nodes]
    name = "records_ptr" if transposed else "y_ptr"
    assert sorted(written[-1 - transposed]) == sorted({"y_ptr", name})
    assert len(nodes) == (1 if segment == 3 else 3) + transposed  # with the states before each segment, and the edge
    assert not [node for node in graph.nodes if node.target is torch.ops.hpfracc_nn.chunked_scan.default]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rounds"), [("bfloat16", "cvt.rn.bf16"), ("float16", "cvt.rn.f16")])
def test_half_precision_is_rounded_to_the_nearest(load: Load, dtype: str, rounds: str) -> None:
    """Triton's interpreter cuts bfloat16 off instead."""
    code = load("triton_code")
    assert rounds in code.compiled(code.Case(dtype=dtype), "sm_90").asm["ptx"]


def test_the_estimate_counts_as_the_table_does() -> None:
    from hpfracc_nn.fractional.torch.kernels import triton_product

    for states in (16, 32, 64):
        for kernel in ("forward", "backward"):
            case = {"kernel": kernel, "layout": "last", "differences": 1, "columns": 0, "dtype": "float32"}
            (record,) = records(target="sm_90", is_split=False, states=states, **case)
            estimated = triton_product._INSTRUCTIONS + triton_product._EACH_STATE * states
            assert estimated == pytest.approx(record["instructions"], rel=0.1)


def test_a_count_finds_the_longest_loop(load: Load) -> None:
    code = load("triton_code")
    inner, outer = "BRA `(.L_x_1)", "BRA `(.L_x_0)"
    lines = [("", "A"), (".L_x_0", ""), ("", "B"), (".L_x_1", ""), ("", "C"), ("", inner), ("", outer)]
    assert code._longest(lines, r"BRA.*?`\((\.L_x_\d+)\)") == (["A", "B", "C", inner, outer], 4)
