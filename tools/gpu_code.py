"""Machine code for an absent GPU: the engine's PTX, and what NVIDIA's assembler says of it.

Needs triton, which brings NVIDIA's assembler, but no GPU. `compile_kernel` runs in a separate
process, because the compiler aborts where it does not know an operation.
"""

import dataclasses
import math
import multiprocessing
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pe_jax.engines.kernels.gpu import triton_call
from pe_jax.engines.kernels.gpu.triton_source import Kernel

REGISTERS = 65536  # of a multiprocessor, 32 bits each
WARPS, BLOCKS = 64, 32  # the most that it holds at a time
RESERVED = 1024  # bytes of shared memory that the system takes per block
PATIENCE = 600  # seconds after which a compilation is given up


@dataclasses.dataclass(frozen=True)
class Chip:
    """Limits of an architecture (CUDA C++ Programming Guide, compute capabilities).

    Of a GPU of this architecture: bytes of shared memory that one block may take, and that a
    multiprocessor has; the most warps that it holds.
    """

    name: str
    block_shared: int
    shared: int
    warps: int = WARPS


CHIPS = {
    80: Chip("A100", 163 * 1024, 164 * 1024),
    89: Chip("L4", 99 * 1024, 100 * 1024, 48),
    90: Chip("H100", 227 * 1024, 228 * 1024),
    100: Chip("B200", 227 * 1024, 228 * 1024),
}
PRODUCTS = {  # instructions of tensor cores, as the assembler calls them
    "wgmma": r"wgmma\.mma_async",
    "mma": r"mma\.sync",
    "tcgen05": r"tcgen05\.mma",
}


class Job(NamedTuple):
    """A kernel to compile, its launch and the architecture."""

    kernel: Kernel
    warps: int
    stages: int
    arch: int


def compile_all(jobs: Sequence[Job], processes: int) -> Iterator[dict[str, Any]]:
    """The row of `compile_kernel` for each job, in order.

    A process that dies or takes longer than `PATIENCE` gives a row whose status says so.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.gpu_code", "triton.compiler"])

    def run(job):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(send, job))
        process.start()
        send.close()
        try:
            if receive.poll(PATIENCE):
                return receive.recv()
            return {"status": f"the compiler was stopped after {PATIENCE} s"}
        except EOFError:
            process.join()
            return {"status": f"the compiler aborted (exit status {process.exitcode})"}
        finally:
            process.kill()
            process.join()

    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(run, jobs)


def _answer(send: Any, job: Job) -> None:
    try:
        send.send(compile_kernel(job))
    except Exception as error:  # of many kinds; the reason is what counts
        send.send({"status": " ".join(f"{type(error).__name__}: {error}".split())[:300]})


def compile_kernel(job: Job) -> dict[str, Any]:
    """Compiles to machine code, and reports what it needs.

    Returns:
      status "ok", or why the chip would refuse it; registers per thread, bytes of spills (stores
      and loads) and of shared memory, instructions of tensor cores by kind, blocks that a
      multiprocessor holds at a time and the share of its warps (occupancy), seconds.
    """
    from triton.backends.nvidia import compiler  # pyright: ignore[reportMissingImports]

    begin = time.monotonic()
    ptx, shared, _ = triton_call.compiled(*job)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        assembler = compiler.get_ptxas(job.arch).path
        flags = ["-v", f"--gpu-name={compiler.sm_arch_from_capability(job.arch)}"]
        command = [assembler, *flags, str(source), "-o", str(binary)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            return {"status": " ".join(run.stderr.split())[:300]}
    row = {"shared": shared, **said(run.stderr)}
    row |= occupancy(row["registers"], shared, job.warps, job.arch)
    row |= {kind: len(re.findall(pattern, ptx)) for kind, pattern in PRODUCTS.items()}
    row["seconds"] = round(time.monotonic() - begin, 1)
    chip = CHIPS[job.arch]
    too_much = shared > chip.block_shared
    why = f"{shared} bytes of shared memory, {chip.name} has {chip.block_shared} for a block"
    return {"status": why if too_much else "ok", **row}


def said(text: str) -> dict[str, int]:
    """Registers and bytes of spills from the assembler's messages."""
    patterns = {
        "registers": r"Used (\d+) registers",
        "spill_stores": r"(\d+) bytes spill stores",
        "spill_loads": r"(\d+) bytes spill loads",
    }
    return {name: max(map(int, re.findall(p, text)), default=0) for name, p in patterns.items()}


def occupancy(registers: int, shared: int, warps: int, arch: int) -> dict[str, float]:
    """How many blocks a multiprocessor holds at a time, and the share of its warps that are these.

    Registers are handed out to each warp in units of 256.
    """
    chip = CHIPS[arch]
    per_block = 256 * math.ceil(registers * 32 / 256) * warps
    limits = REGISTERS // max(per_block, 1), chip.warps // warps, BLOCKS
    blocks = min(*limits, chip.shared // (shared + RESERVED))
    return {"blocks": blocks, "occupancy": round(blocks * warps / chip.warps, 3)}
