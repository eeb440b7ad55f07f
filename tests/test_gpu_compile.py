"""The kernels for GPUs in the Triton language: written, interpreted and compiled without a GPU.

The last two need the package triton, the extra `gpu-compile`; `make gpu-compile` compiles them all.
"""

import csv
import importlib.util
import os
import subprocess
import sys
from unittest import mock

import jax
import pytest
from jaxlib import gpu_triton

import pe_jax
from pe_jax.engines.kernels.gpu import engine, launches, triton_call
from pe_jax.engines.kernels.gpu.launches import Launch, Launches
from tools import compile_gpu, gpu_code
from tools.compile_gpu import Case
from tools.gpu_code import Job

T5 = "t5(num_buckets=6,max_distance=9)"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: pip install -e '.[gpu-compile]'",
)


@pytest.mark.parametrize(
    "spec, count",
    [("rope", 3), ("alibi", 3), ("kerple", 3), ("sandwich", 3), ("t5", 3), ("shaw", 3), ("fox", 3)]
    + [("alibi at explicit positions", 3), ("deberta", 3), ("inkling", 3), ("tupe", 3)]
    + [("cope", 3), ("grape_ap", 3), ("stick_breaking", 3), ("wall", 3), ("path", 3)],
)
def test_every_operation_of_the_kernels_can_be_written(spec, count):
    spec, *explicit = spec.split(" at explicit positions")
    kernels = Case(spec, 64, 90, 256, "bfloat16", explicit=bool(explicit)).kernels()
    assert [name for name, _, _ in kernels][:1] == ["forward"] and len(kernels) == count
    for name, _, kernel in kernels:
        compile(kernel.text, name, "exec")
        assert kernel.text.count("tl.dot(") >= 2 and len(kernel.grid) == 3
        assert kernel.pointers.count("*bf16") >= 3
        logarithms = spec in ("kerple", "grape_ap", "stick_breaking")  # a CPU's may be a series
        assert ("fast_logf" in kernel.text) == logarithms


@needs_triton
@pytest.mark.parametrize(
    "spec, explicit",
    [
        (T5, False),
        ("fox", False),
        ("shaw(clip=3)", False),
        (f"{T5}+alibi", True),
        ("cope(positions=18)", False),
        ("wall", False),
        ("path", False),
    ],
)
def test_interpreted_by_triton_they_give_what_pallas_gives(spec, explicit):
    """In a process of its own: Triton decides at its import what its functions are."""
    code = f"from tests import triton_interpreter; triton_interpreter.compare({spec!r}, {explicit})"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]


@needs_triton
@pytest.mark.parametrize("spec, arch, kind", [("alibi", 80, "mma"), ("kerple", 90, "wgmma")])
def test_they_compile_to_machine_code_without_spills(spec, arch, kind):
    (_, launch, kernel), *_ = Case(spec, 64, arch, 256, "bfloat16").kernels()
    (row,) = gpu_code.compile_all([Job(kernel, launch.warps, launch.stages, arch)], 1)
    assert row["status"] == "ok" and not row["spill_stores"], row
    assert row[kind] and 0 < row["registers"] <= 255 and row["blocks"] >= 1


def test_what_the_assembler_says():
    text = (
        "ptxas info : Function properties for k\n"
        " 8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info : Used 168 registers, used 1 barriers\n"
    )
    assert gpu_code.said(text) == {"registers": 168, "spill_stores": 12, "spill_loads": 16}
    assert gpu_code.occupancy(168, 65536, 4, 90) == {"blocks": 3, "occupancy": 0.188}
    assert gpu_code.occupancy(255, 100 * 1024, 8, 90) == {"blocks": 1, "occupancy": 0.125}


def test_a_spill_or_a_refusal_is_reported():
    row = {"encodings": ["shaw"], "arch": 90, "width": 64, "kernel": "keys", "status": "ok"}
    assert compile_gpu.wrong([row | {"spills": 0}], 0) == []
    assert compile_gpu.wrong([row | {"spills": 8}], 8) == []
    (line,) = compile_gpu.wrong([row | {"spills": 8}], 0)
    assert line == "shaw, sm_90, width 64, keys: 8 bytes of spills"
    measured = compile_gpu.MEASURED[90, "keys", "vectors", 64]._asdict()
    assert compile_gpu.wrong([row | measured | {"spills": 8}], 0) == []
    assert compile_gpu.wrong([row | measured | {"stages": 4, "spills": 8}], 0)
    (line,) = compile_gpu.wrong([row | {"status": "no", "spills": 0}], 0)
    assert line.endswith("keys: no")


def test_a_row_is_in_the_file_as_soon_as_it_is_there(tmp_path, monkeypatch):
    path, texts = tmp_path / "new" / "kernels.csv", []

    def compile_all(jobs, processes):
        for answer in ({"status": "ok", "registers": 9}, {"status": "no"}, {"status": "ok"}):
            texts.append(path.read_text())
            yield answer | {"blocks": 1}

    monkeypatch.setattr(gpu_code, "compile_all", compile_all)
    case = Case("alibi", 64, 90, 256, "bfloat16")
    with compile_gpu.writing(path) as write:
        rows = compile_gpu.compiled([case], 1, write)
    written = list(csv.DictReader(path.read_text().splitlines()))
    assert [len(text.splitlines()) for text in texts] == [1, 2, 3]
    assert (
        [row["status"] for row in written] == [row["status"] for row in rows] == ["ok", "no", "ok"]
    )
    assert written[0]["registers"] == "9"
    assert written[1]["kernel"] == "queries" and written[1]["encodings"] == "alibi"


# Which launch.


def test_every_kernel_has_a_launch_on_every_device():
    for arch in (80, 86, 89, 90, 100, 103, 120):
        for reads in launches.READS:
            for dtype in ("bfloat16", "float16", "float32"):
                for width in (8, 64, 80, 128, 256):
                    chosen = launches.choose(arch, reads, dtype, width)
                    sizes = {size for launch in chosen for size in launch[:2]}
                    assert sizes <= {16, 32, 64, 128} and chosen.diagonal[0] == chosen.diagonal[1]


def test_a_device_that_is_not_in_the_table_takes_that_of_one_before():
    known = (80, 89, 90, 100)
    for arch, standing in ((75, 80), (86, 89), (87, 89), (90, 90), (103, 100), (120, 89)):
        assert launches.nearest(arch, known) == standing


@pytest.mark.parametrize("capability, arch", [("8.0", 80), ("12.0", 120), ("gfx942", None)])
def test_the_architecture_is_that_of_the_first_device(capability, arch):
    device = mock.Mock(compute_capability=capability)
    with mock.patch.object(jax, "devices", lambda: [device]):
        assert launches.architecture() == arch


def test_blocks_are_no_longer_than_the_row():
    chosen = launches.alike(Launch(64, 32, 8, 3))
    assert chosen == Launches(*[Launch(64, 32, 8, 3)] * 3, Launch(32, 32, 8, 3))
    assert chosen.longest == 64 and chosen.at_most(16).forward == Launch(16, 16, 8, 3)


def test_what_was_measured_is_launched():
    for (arch, kernel, reads, width), launch in compile_gpu.MEASURED.items():
        assert getattr(launches.choose(arch, reads, "bfloat16", width), kernel) == launch


def test_xla_is_given_what_triton_compiled():
    """With stand-ins for Triton and for JAX's plugin for CUDA, which launches kernels."""
    rows, arch = jax.ShapeDtypeStruct((1, 64, 2, 16), "bfloat16"), 90
    made = {name: mock.Mock() for name in ("TritonKernel", "TritonKernelCall")}
    made["TritonKernelCall"].return_value.to_proto.return_value = b"the call"
    made["create_array_parameter"] = lambda zeroed, aligned: (zeroed, aligned)

    def attend(*call):
        return engine.attend(*call, sizes=(32, 16, 8, 3), arch=arch)

    def f(q, k, v):
        return pe_jax.attention(q, k, v, implementation=attend)

    with (
        mock.patch.multiple(gpu_triton, create=True, **made),
        mock.patch.object(triton_call, "available", lambda: True),
        mock.patch.object(triton_call, "compiled", return_value=("ptx", 512, "k")) as compiled,
    ):
        traced = jax.jit(f).trace(rows, rows, rows)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@triton_kernel_call_ffi") == 1
    kernel, *options = compiled.call_args.args
    assert kernel.grid == (2, 2, 1) and options == [8, 3, arch]
    assert made["TritonKernel"].call_args.args == ("k", 8, 1, 512, "ptx", "", arch)
    _, *grid, pointers = made["TritonKernelCall"].call_args.args
    assert grid == [2, 2, 1] and pointers == [(0, 16)] * 5
