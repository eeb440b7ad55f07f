"""What the benchmark times: attention by every engine, decoding, training steps.

`plan` lists the programs of one length and mode; each is compiled when it is called. Schemes that
read the layer's input get q. B batch, T tokens, H heads, E head width, N = B·H, W = 2T - 1
distances.
"""

import dataclasses
import functools
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measuring import training_steps
from experiments.measuring.timing import LARGE, NAIVE, OURS, OWN, SDPA, Refused
from pe_jax.encodings import ENCODINGS, parse
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.alibi import ALiBi
from pe_jax.encodings.base import Dims, Encoding, abstract_terms, adds_to_input
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines import pipeline
from pe_jax.engines.api import attention
from pe_jax.engines.decoding import cache as caches
from pe_jax.engines.dispatch import IMPLEMENTATIONS
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.models.config import ModelConfig

FLEX = "flex"
NAIVE_CUDNN = f"{NAIVE} cudnn"  # the same with cuDNN's attention, on GPUs
IN_TORCH = (FLEX, SDPA)
ENGINES = (OURS, *IMPLEMENTATIONS, NAIVE, NAIVE_CUDNN, *IN_TORCH, *training_steps.OTHERS)
SPECS = {name: name + "(length={length})" for name in ("learned", "tupe")}
SPECS["xpos"] = "xpos(scale_base={length})"  # 512 limits positions to 28,160
SPECS["shaw_keys"] = "shaw(values=False)"
PLAIN = "alibi_plain"
SCHEMES = (*(n for n, kind in ENCODINGS.items() if kind().claims.axes == 1), "shaw_keys", PLAIN)
MODES = {  # flag → what is timed, by title
    "forward": ("forward",),
    "backward": ("forward + backward",),
    "decode": ("decoding step",),
    "cold": ("first call", "first training step"),
    "train": tuple(map(training_steps.title, training_steps.SIZES)),
}


@dataclasses.dataclass(frozen=True)
class PlainALiBi(ALiBi):
    """ALiBi without the claim that it decays, so that no tile is skipped."""

    def terms(self, params, dims):
        (term,) = kinds.select(super().terms(params, dims), kinds.DistanceFormula)
        return (dataclasses.replace(term, decays=False),)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the operands of all programs."""

    batch: int
    heads: int
    head_dim: int
    dtype: str
    causal: bool

    @property
    def dims(self) -> Dims:
        """The sizes that encodings see."""
        return Dims(self.heads * self.head_dim, self.heads, self.heads, self.head_dim)


class Program(NamedTuple):
    """A compiled program to time: a call without arguments, and the compiler's figures."""

    run: Callable[[], Any]
    temp_bytes: int | None
    compile_seconds: float
    note: str = ""
    tokens: int | None = None
    operations: float | None = None


def scheme(name: str, length: int) -> Encoding:
    """The encoding of this name in a benchmark of this length."""
    if name == PLAIN:
        return PlainALiBi()
    return parse(SPECS.get(name, name).format(length=length))[0]


@functools.lru_cache(8)
def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal, float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def random_rows(sizes: Sizes, length: int) -> list[jax.Array]:
    """q, k, v and the cotangent of the output, each [B, T, H, E]."""
    shape = sizes.batch, length, sizes.heads, sizes.head_dim
    return [jnp.asarray(normal(*shape, seed=s), sizes.dtype) for s in range(4)]


def free_bytes() -> float:
    """Free memory of the device or machine; infinite if unknown."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    available = [1024 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    return available[0] if available else np.inf


def compiled(f: Callable, *args: Any, donate: tuple[int, ...] = ()) -> tuple[Any, Program]:
    """The compiled function, and a program that calls it with these arguments."""
    begin = time.perf_counter()
    call = jax.jit(f, donate_argnums=donate).lower(*args).compile()
    seconds, memory = time.perf_counter() - begin, call.memory_analysis()
    if memory is None:
        return call, Program(lambda: call(*args), None, seconds)
    need, free = memory.temp_size_in_bytes + memory.output_size_in_bytes, free_bytes()
    if need > free:  # on CPU the system would kill the process
        raise Refused(f"needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free")
    return call, Program(lambda: call(*args), memory.temp_size_in_bytes, seconds)


# Attention.


def relative_shift(x: jax.Array) -> jax.Array:
    """y[…, i, j] = x[…, i, T - 1 - i + j]: [..., T, W] → [..., T, T], as Transformer-XL does it."""
    *lead, rows, width = x.shape
    flat = x.reshape(*lead, rows * width)[..., rows - 1 : -1]
    return flat.reshape(*lead, rows, width - 1)[..., :rows]


def flat(q: jax.Array) -> jax.Array:
    """[B, T, H, E] → [B, T, D]."""
    return q.reshape(*q.shape[:2], -1)


def full_bias(terms: tuple, sides: tuple[Side, Side], dims: Dims, learned: bool) -> Any:
    """Every score term but q·k, for jax.nn: float32 [B or 1, H, T, T], or None.

    Built fast: each term once for the W distances, then a shift; arithmetic without
    parameters for all pairs, since XLA can fuse it.
    """
    (q, k), length = sides, sides[0].x.shape[2]
    distance = jnp.arange(length - 1, -length, -1)
    scale, added = kinds.scale(terms, dims.head_dim), []

    def shifted(x, term) -> jax.Array:
        return relative_shift(jnp.matmul(x, jnp.swapaxes(term.at(distance), -1, -2)))

    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, kinds.RelativeKeys):
            added.append(scale * shifted(term.dotted_with(q, k, states)[1], term))
        elif isinstance(term, kinds.RelativeQueries):
            vectors = term.at(distance)[:, ::-1]
            products = jnp.matmul(k.raw.astype(jnp.float32), jnp.swapaxes(vectors, -1, -2))
            added.append(scale * jnp.swapaxes(relative_shift(products), -1, -2))
        elif isinstance(term, kinds.RelativeState):
            added.append(shifted(states[0], term))
        elif isinstance(term, kinds.DistanceBias | kinds.DistanceFormula) and learned:
            row = term.at(distance)[:, None]
            added.append(relative_shift(jnp.repeat(row, length, axis=1))[None])
        elif isinstance(term, kinds.ScoreTerm):
            added.append(term.scores(q, k, states))
    return sum(added[1:], added[0]) if added else None


def attend(encoding: Encoding, sizes: Sizes, engine: str) -> Callable:
    """(params, q, k, v) → the output, by one engine."""

    def naive(params, q, k, v):
        terms, positions = encoding.terms(params, sizes.dims), jnp.arange(q.shape[1])
        states = tuple(
            None if t.state is None else t.state(flat(q), positions[None]) for t in terms
        )
        rotated_q = pipeline.rotate(terms, "q", q, positions, states)
        k = pipeline.offset_keys(terms, CONTIGUOUS, k, None, None)
        rotated_k = pipeline.rotate(terms, "k", k, positions, states)

        def side(rotated, raw) -> Side:
            x, raw, swapped = jax.tree.map(lambda x: jnp.swapaxes(x, 1, 2), (rotated, raw, states))
            return Side(x, raw, swapped, Tokens(positions[None], positions[None]))

        sides = side(rotated_q, q), side(rotated_k, k)
        bias = full_bias(terms, sides, sizes.dims, bool(jax.tree.leaves(params)))
        out = jax.nn.dot_product_attention(
            rotated_q,
            rotated_k,
            pipeline.rotate(terms, "v", v, positions, states),
            None if bias is None else bias.astype(q.dtype),
            scale=kinds.scale(terms, sizes.head_dim),
            is_causal=sizes.causal,
            implementation="cudnn" if engine == NAIVE_CUDNN else None,
        )
        return pipeline.rotate(terms, "out", out, positions, states)

    def ours(params, q, k, v):
        implementation = None if engine == OURS else engine
        options: Any = dict(encoding=encoding, params=params, implementation=implementation)
        return attention(q, k, v, x=flat(q), causal=sizes.causal, embedded=True, **options)

    return naive if engine in (NAIVE, NAIVE_CUDNN) else ours


def _attention(
    engine: str, sizes: Sizes, operands: list, name: str, length: int, backward: bool
) -> Program:
    """Attention, or its gradients, with a scheme by an engine."""
    encoding = scheme(name, length)
    forward, params = attend(encoding, sizes, engine), encoding.init(jax.random.key(0), sizes.dims)

    def gradients(params, q, k, v, cotangent):
        return jax.vjp(forward, params, q, k, v)[1](cotangent)

    if backward:
        program = compiled(gradients, params, *operands)[1]
    else:
        program = compiled(forward, params, *operands[:3])[1]
    omitted = {kinds.RelativeValues: "vectors at the values", kinds.Sink: "sink logits"}
    for term in abstract_terms(encoding, sizes.dims) if engine in (NAIVE, NAIVE_CUDNN) else ():
        if type(term) in omitted:
            return program._replace(note=f"does less: jax.nn takes no {omitted[type(term)]}")
    return program


def _in_torch(
    engine: str, sizes: Sizes, operands: list, name: str, length: int, backward: bool
) -> Program:
    """Attention, or its gradients, with a scheme by PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise Refused("torch is not installed")
    from experiments.measuring import torch_attention

    encoding, begin = scheme(name, length), time.perf_counter()
    params = encoding.init(jax.random.key(0), sizes.dims)
    run = torch_attention.program(
        engine,
        encoding,
        params,
        operands,
        sizes.dims,
        dtype=sizes.dtype,
        causal=sizes.causal,
        backward=backward,
    )
    run()  # compiles
    return Program(run, None, time.perf_counter() - begin)


# Decoding, first calls, training steps.


def _decode(sizes: Sizes, length: int, name: str) -> Program:
    """One token with a cache that it fills to `length`; the cache is donated and reused."""
    encoding, dims = scheme(name, length), sizes.dims
    params = encoding.init(jax.random.key(0), dims)
    q, k, v, _ = random_rows(sizes, 1)
    extend = functools.partial(caches.extend, encoding=encoding, dims=dims, embedded=True)

    @jax.jit  # returns only the cache, so that XLA drops the attention
    def fill(cache, params):
        past = (sizes.batch, length - 1, sizes.heads, sizes.head_dim)
        x = jax.random.normal(jax.random.key(0), past, sizes.dtype)
        return extend(cache, x, x, x, x=flat(x), params=params)[1]

    def step(cache, params, q, k, v):
        out, longer = extend(cache, q, k, v, x=flat(q), params=params)
        return out, dataclasses.replace(longer, length=cache.length)  # the next call writes there

    empty = caches.empty(encoding, sizes.batch, length, dims, sizes.dtype, params)
    cache = fill(empty, params)
    call, program = compiled(step, cache, params, q, k, v, donate=(0,))

    def run():
        nonlocal cache
        out, cache = call(cache, params, q, k, v)
        return out, cache

    return program._replace(run=run)


def _first_step(sizes: Sizes, length: int, name: str) -> Program:
    """A first training step of a Transformer of 2 layers on bytes, with a scheme."""
    if name == PLAIN:
        raise Refused("a config's string cannot name it")
    model = ModelConfig(
        encoding=SPECS.get(name, name).format(length=length),
        vocab=256,
        width=sizes.dims.width,
        heads=sizes.heads,
        layers=2,
        dtype=sizes.dtype,
        causal=sizes.causal,
    )
    size = training_steps.Size(model, sizes.batch, length)
    return _compiled_anew(lambda: training_steps.ours(size).step())


def _first_call(sizes: Sizes, length: int, name: str) -> Program:
    """A first call of attention."""
    encoding, (*operands, _) = scheme(name, length), random_rows(sizes, length)
    params = encoding.init(jax.random.key(0), sizes.dims)
    return _compiled_anew(lambda: jax.jit(attend(encoding, sizes, OURS))(params, *operands))


def _compiled_anew(first: Callable[[], Any]) -> Program:
    """A call that first forgets everything traced or compiled before, each time that it runs."""
    if jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        raise Refused("programs are kept on disk: set JAX_ENABLE_COMPILATION_CACHE=0")

    def run():
        jax.clear_caches()
        return first()

    return Program(run, None, 0.0)


def _product(shape: tuple[int, int, int], in_torch: bool = False) -> Program:
    """A float32 matrix product [m, k] × [k, n], of XLA or of PyTorch."""
    m, k, n = shape
    factors = normal(m, k), normal(k, n)
    if in_torch:
        from experiments.measuring import torch_model

        program = Program(torch_model.product(*factors), None, 0.0)
    else:
        program = compiled(jnp.matmul, *map(jnp.asarray, factors))[1]
    return program._replace(note=f"{m} × {k} × {n}", operations=2.0 * m * k * n)


def _training_step(size: training_steps.Size, engine: str) -> Program:
    """One training step; the first, which compiles, is made here."""
    begin = time.perf_counter()
    running = training_steps.LIBRARIES[engine](size)
    jax.block_until_ready(running.step())
    seconds, counts = time.perf_counter() - begin, (size.rows * size.length, size.operations)
    return Program(running.step, running.temp_bytes, seconds, "", *counts)


# What is timed.

OURS_ALONE: dict[str, Callable[[Sizes, int, str], Program]] = {  # titles of modes
    "decoding step": _decode,
    "first call": _first_call,
    "first training step": _first_step,
}


class Planned(NamedTuple):
    """A row to time: an encoding's name or "matmuls", the engine, a function that compiles it."""

    scheme: str
    engine: str
    compile: Callable[[], Program]


def plan(
    sizes: Sizes, length: int, mode: str, schemes, engines, limits: dict[str, int]
) -> Iterator[Planned]:
    """Every row of one length and mode.

    `mode` is one of the titles in MODES; `limits` has, by engine, the length beyond which it does
    not run.
    """
    if mode in MODES["train"]:
        yield from _plan_training(mode, engines)
    elif mode in MODES["forward"] + MODES["backward"]:
        backward = mode in MODES["backward"]
        yield from _plan_attention(sizes, length, backward, schemes, engines, limits)
    else:
        for name in schemes if OURS in engines else ():
            yield Planned(name, OURS, functools.partial(OURS_ALONE[mode], sizes, length, name))


def _plan_training(mode: str, engines) -> Iterator[Planned]:
    """Two matrix products, then a step with RoPE by every library that is asked for."""
    size = dict(zip(MODES["train"], training_steps.SIZES.values(), strict=True))[mode]
    for engine, shape in zip((LARGE, OWN), size.products, strict=True):
        yield Planned("matmuls", engine, functools.partial(_product, shape))
        if "torch" in engines:
            in_torch = functools.partial(_product, shape, in_torch=True)
            yield Planned("matmuls", f"{engine}, torch", in_torch)
    for engine in training_steps.LIBRARIES:
        if engine in engines:
            yield Planned("rope", engine, functools.partial(_training_step, size, engine))


def _plan_attention(
    sizes: Sizes, length: int, backward: bool, schemes, engines, limits: dict[str, int]
) -> Iterator[Planned]:
    """Every scheme by every engine that can express it."""
    operands = random_rows(sizes, length)
    for name, engine in itertools.product(schemes, engines):
        if length > limits.get(engine, length):
            yield Planned(name, engine, functools.partial(_too_long, engine, limits[engine]))
        elif _expresses(engine, name, length, sizes.dims):
            build = _in_torch if engine in IN_TORCH else _attention
            arguments = engine, sizes, operands, name, length, backward
            yield Planned(name, engine, functools.partial(build, *arguments))


def _expresses(engine: str, name: str, length: int, dims: Dims) -> bool:
    """Whether the engine can compute the scheme."""
    encoding = scheme(name, length)
    terms = abstract_terms(encoding, dims)
    if engine in (NAIVE, NAIVE_CUDNN):  # one product and a bias
        rowwise = kinds.select(terms, kinds.Unnormalized, kinds.ChannelDecay, kinds.PairRescore)
        return kinds.views(terms) is None and not (kinds.sums_rows(terms) or rowwise)
    if engine in IN_TORCH:  # a bias of the distance, or NoPE
        biases = kinds.select(terms, kinds.DistanceBias, kinds.DistanceFormula, kinds.Scale)
        added = len(biases) < len(terms) or adds_to_input(encoding, dims)
        return not added and name != PLAIN
    return engine not in training_steps.OTHERS


def _too_long(engine: str, limit: int) -> Program:
    raise Refused(f"{engine} is limited to length {limit}")
