"""What XLA makes of JAX's chunked scans for a GPU that is not here: kernels of a call, registers of the Pallas kernel.

    python benchmarks/jax_gpu_code.py [--output FOLDER]

It needs the package jax-cuda12-plugin in the version of JAX, and NVIDIA's ptxas on the PATH (of nvidia-cuda-nvcc-cu12);
no device and no other library of CUDA. XLA chooses nothing by timing then (autotuning is off), so that it may choose
other matrix products where there is a device. Compiled for an H100: Caputo(0.5) of 256 x 4096 samples, and of 16 x 4096
x 64 with time in the middle.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from results import Table

from hpfracc_nn.fractional import Caputo
from hpfracc_nn.fractional.definitions import family
from hpfracc_nn.fractional.jax.operator import Call, computed
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.selection import Kernel, kernels

# What the compiler wants to know of an H100 SXM: from NVIDIA's data sheet and programming guide.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_block_limit: 65536 registers_per_core_limit: 65536 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
SHAPES = {"last": ((256, 4096), -1), "middle": ((16, 4096, 64), 1)}
PASSES = ("forward", "backward", "all")  # all: results, and the gradients in samples and in the order


def functions(kernel: Kernel, layout: str, dtype: str) -> dict[str, tuple[Any, int]]:
    """Return by pass a function that runs the kernel, and how many arrays of the samples' shape it takes."""
    shape, dim = SHAPES[layout]
    found = layout_of("jax_gpu_code", shape, dim % len(shape), ())
    fixed = Call(Caputo(0.5), False, 1.0, found, dtype)
    learned = Call(family(Caputo(0.5, bounds=(0, 1))), True, 1.0, found, dtype)

    def forward(x: Any) -> Any:
        return computed(fixed, kernel, fixed.workload(), None, x, None)

    def backward(g: Any) -> Any:
        return jax.linear_transpose(forward, g)(g)[0]

    def everything(x: Any, g: Any) -> Any:
        y, pulled = jax.vjp(
            lambda x, alpha: computed(learned, kernel, learned.workload(), None, x, alpha), x, np.array(0.5, dtype)
        )
        return y, pulled(g)

    return {"forward": (forward, 1), "backward": (backward, 1), "all": (everything, 2)}


def compiled(
    function: Any, count: int, shape: tuple[int, ...], dtype: str, sharding: Any, dump: Path
) -> tuple[int, int, str]:
    """Return how many kernels a call launches, how many of them are matrix products, and the registers of Pallas's."""
    before = set(dump.glob("*.ptx"))
    given = [jax.ShapeDtypeStruct(shape, dtype)] * count
    text = jax.jit(function, in_shardings=sharding, out_shardings=sharding).lower(*given).compile().as_text()
    entry = text[text.index("\nENTRY") :]
    launched = re.findall(r"%(\S+) = \S+ (?:fusion|custom-call|copy|while|dot|fft)\(.*", entry)
    products = [name for name in launched if "gemm" in name or "cublas" in name]
    usage = []
    for path in sorted(set(dump.glob("*.ptx")) - before):
        if ".entry chunked_scan_" in path.read_text():
            command = ["ptxas", "-v", "-arch=sm_90a", str(path), "-o", os.devnull]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
            name, spilled, registers = re.search(
                r"'chunked_scan_(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", said, re.DOTALL
            ).groups()
            usage.append(f"{name} {registers}, spilled {spilled}")
    return len(launched), len(products), "; ".join(sorted(usage)) or "-"


def main() -> None:
    """Compile every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="the folder for jax-gpu-code.md and .json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # of libraries that are not needed
        os.environ["XLA_FLAGS"] = f"--xla_gpu_autotune_level=0 --xla_dump_to={folder}"
        table = counted(Path(folder))
    if arguments.output is not None:
        table.write(arguments.output)


def counted(dump: Path) -> Table:
    """Return the table of all cases, compiled by XLA, which writes its code into `dump`."""
    jax.config.update("jax_platforms", "cpu")
    jax.devices()  # which finds the plugin
    described = topologies.get_topology_desc("", "cuda", target_config=H100, topology="1x1x1")
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(described.devices, ("x",)), jax.P())
    columns = {
        "kernel": ("kernel", ""), "layout": ("time", ""), "dtype": ("dtype", ""), "direction": ("pass", ""),
        "launches": ("kernels of a call", ""), "products": ("of which matrix products", ""),
        "registers": ("registers of the Pallas kernels", ""),
    }  # fmt: skip
    said = subprocess.run(["ptxas", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", said)[1]
    caption = f"Compiled for an H100 without a device, by JAX {jax.__version__} and ptxas {release}."
    table = Table("jax-gpu-code", caption, columns)
    table.begin("chunked scans")
    chosen = [kernel for kernel in kernels("toeplitz", "jax") if kernel.algorithm == "chunked_scan"]
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            for kernel in chosen:
                for layout, (shape, _) in SHAPES.items():
                    for direction, (function, count) in functions(kernel, layout, dtype).items():
                        launches, products, registers = compiled(function, count, shape, dtype, sharding, dump)
                        table.add(
                            kernel=kernel.name, layout=layout, dtype=dtype, direction=direction,
                            launches=launches, products=products, registers=registers,
                        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
