"""Kernels through Triton itself: from their source to a call that XLA runs on an NVIDIA GPU.

`run` needs the package triton and JAX's plugin for CUDA, whose `triton_kernel_call_ffi` launches
what Triton has compiled, as it does for jax-triton.
"""

import functools
import importlib.util
import inspect
import linecache
import types
import zlib
from collections.abc import Callable
from typing import Any

import jax

from pe_jax.engines.kernels.gpu import triton_source
from pe_jax.engines.kernels.gpu.launches import Launch
from pe_jax.engines.kernels.gpu.triton_source import Kernel

TARGET = "triton_kernel_call_ffi"
ALIGNED = 16  # bytes, at least: XLA aligns arrays to more
OPTIONS = {"enable_fp_fusion": True}  # no longer Triton's default from 3.10 on


@functools.cache
def available() -> bool:
    """Whether Triton is installed, and JAX can launch what it compiles."""
    if importlib.util.find_spec("triton") is None:
        return False
    from jaxlib import gpu_triton

    return hasattr(gpu_triton, "TritonKernelCall")


def kernel_of(call: Callable, args: Any, name: str) -> tuple[Kernel, dict[str, Any]]:
    """The source of a `pallas_call`, and the parameters of its equation.

    Args:
      call: what `pallas_call` returns.
      args: what it is called with: arrays, or their shapes.
      name: of the kernel.
    """
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    (equation,) = jax.make_jaxpr(call)(*shapes).jaxpr.eqns
    return triton_source.source(equation.params, name), equation.params


def run(call: Callable, args: Any, name: str, launch: Launch, arch: int) -> Any:
    """The result of a `pallas_call`, by the kernel that Triton compiles for an architecture."""
    from jaxlib import gpu_triton

    kernel, params = kernel_of(call, args, name)
    ptx, shared, symbol = compiled(kernel, launch.warps, launch.stages, arch)
    binary = gpu_triton.TritonKernel(symbol, launch.warps, 1, shared, ptx, "", arch)
    grid = (*kernel.grid, 1, 1)[:3]
    pointers = [gpu_triton.create_array_parameter(0, ALIGNED)] * len(kernel.pointers)
    opaque = gpu_triton.TritonKernelCall(binary, *grid, pointers).to_proto(name, b"")
    outs = jax.eval_shape(call, *args)
    flat, tree = jax.tree.flatten(outs)
    aliases = dict(params["input_output_aliases"])
    launched = jax.ffi.ffi_call(TARGET, flat, input_output_aliases=aliases)
    results = launched(*jax.tree.leaves(args), name=name, opaque=zlib.compress(opaque))
    return jax.tree.unflatten(tree, results)


@functools.lru_cache(1024)
def compiled(kernel: Kernel, warps: int, stages: int, arch: int) -> tuple[str, int, str]:
    """PTX, bytes of shared memory, and the name of the kernel in it."""
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]

    options = {"num_warps": warps, "num_stages": stages, **OPTIONS}
    target = GPUTarget("cuda", arch, 32)
    result = triton.compile(program(kernel), target=target, options=options)
    return result.asm["ptx"], result.metadata.shared, result.metadata.name


def program(kernel: Kernel) -> Any:
    """The kernel as Triton's compiler takes it."""
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    signature = {f"p{i}": pointer for i, pointer in enumerate(kernel.pointers)}
    aligned = {(i,): [["tt.divisibility", ALIGNED]] for i in range(len(signature))}
    return ASTSource(function(kernel), signature, constexprs={}, attrs=aligned)


def function(kernel: Kernel) -> Any:
    """The kernel as a function of Triton, which reads its source where Python keeps that.

    Triton parses the source; no Python runs it.
    """
    import triton  # pyright: ignore[reportMissingImports]
    from triton import language  # pyright: ignore[reportMissingImports]

    file = f"<kernel {kernel.name} {hash(kernel.text):x}>"
    linecache.cache[file] = len(kernel.text), None, kernel.text.splitlines(True), file
    first = triton_source.HEAD.count("\n") + 1
    code = function.__code__.replace(
        co_filename=file, co_firstlineno=first, co_name=kernel.name, co_freevars=()
    )
    names = {"__name__": kernel.name, "triton": triton, "tl": language}
    written = types.FunctionType(code, names, kernel.name)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = (inspect.Parameter(f"p{i}", kind) for i in range(len(kernel.pointers)))
    written.__signature__ = inspect.Signature(tuple(parameters))  # pyright: ignore[reportFunctionMemberAccess]
    return triton.jit(written)
