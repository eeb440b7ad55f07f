"""Calls of attention: what several engines make of one, and what an engine says of one.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D = H·E.
"""

import functools
from collections.abc import Sequence

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import pe_jax
from pe_jax.encodings.base import Encoding, adds_to_input
from pe_jax.engines.kernels import small_case
from pe_jax.engines.kernels.gpu import cudnn
from pe_jax.engines.kernels.gpu import engine as gpu
from pe_jax.engines.kernels.tpu import engine as tpu
from pe_jax.engines.kernels.tpu import splash
from pe_jax.engines.sharded.layout import CONTIGUOUS, BlockPermuted, RowSharded
from pe_jax.engines.tiled import Tiled, TileSizes
from tests import util
from tests.util import DIMS, B, E, H, K, assert_close, noise


@functools.cache
def mesh(**axes: int) -> jax.sharding.Mesh:
    """Auto axes over the first devices."""
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), kinds)


TILES = Tiled(TileSizes(16, 16, group=(1, 2)))  # of squares, some are known to be near
LENGTH = 300  # longer than what is always dense
T5 = "t5(num_buckets=6,max_distance=9)"
NARROW = Tiled(TileSizes(3, 3, group=(1, 2)))  # few tokens are many tiles
ENGINES = {  # what runs a call; kernels are interpreted, and XLA stands for cuDNN
    "tiles": TILES,
    "tiles, oblong": Tiled(TileSizes(24, 8, group=(1, 2))),
    "gpu": functools.partial(gpu.attend, interpret=True, sizes=(16, 16)),
    "gpu, oblong": functools.partial(gpu.attend, interpret=True, sizes=(32, 16)),
    "gpu, tall": functools.partial(gpu.attend, interpret=True, sizes=(16, 32)),
    "tpu": functools.partial(tpu.attend, interpret=True, block=16),
    "splash": functools.partial(splash.attend, interpret=True),
    "cudnn": functools.partial(cudnn.attend, implementation="xla"),
}


def placed(engine, causal: bool) -> tuple:
    """What runs a call of an engine's name, or given itself, and how tokens lie on devices."""
    if engine == "ring":
        return NARROW, BlockPermuted(mesh(seq=4), balanced=causal)
    if engine == "rows":
        return NARROW, RowSharded(mesh(data=2), ("data",))
    return engine if isinstance(engine, tuple) else (ENGINES.get(engine, engine), CONTIGUOUS)


def parse(spec: str | Encoding) -> Encoding:
    """One encoding, if it is not one already."""
    return pe_jax.parse(spec)[0] if isinstance(spec, str) else spec


def operands(
    length=LENGTH, keys=None, batch=(B,), heads=(H, K), width=E, v_width=None, sharp=1, dtype="f"
) -> tuple[jax.Array, ...]:
    """q [*batch, T, H, E], larger by `sharp`, k [*batch, S, K, E] and v [*batch, S, K, F]."""
    keys = length if keys is None else keys
    shapes = (length, heads[0], width), (keys, heads[1], width), (keys, heads[1], v_width or width)
    q, k, v = (noise(*batch, *shape, seed=n) for n, shape in enumerate(shapes))
    return tuple(jnp.asarray(x, dtype) for x in (sharp * q, k, v))


SIZES = ("length", "keys", "batch", "heads", "width", "v_width", "sharp", "dtype")


def attend(spec="alibi", qkv=None, *, params=None, **options):
    """Attention of these or of the usual operands; x, which some schemes read, is q again."""
    encoding = parse(spec)
    q, k, v = operands() if qkv is None else qkv
    dims = pe_jax.Dims(q.shape[-2] * q.shape[-1], q.shape[-2], k.shape[-2], q.shape[-1])
    params = util.random_params(encoding, dims) if params is None else params
    x = q.reshape(*q.shape[:-2], dims.width) if q.shape[-3] == k.shape[-3] else None
    given = {"encoding": encoding, "params": params, "dims": dims, "x": x}
    return pe_jax.attention(q, k, v, **given, **options)


def results(engine, encoding: Encoding, params, *qkv, lse=True, **options):
    """The output, with row sums if `lse`, or these "alone": zeros for rows that see nothing.

    Operands and what is told of tokens are spread over the layout, and the results restored.
    """
    run, layout = placed(engine, options.get("causal", True))
    named = "q_positions", "q_segments"
    told = {name: jnp.asarray(options.pop(name)) for name in named if name in options}
    if adds_to_input(encoding, DIMS):
        (*rows, length, _, _), dims = qkv[0].shape, qkv[0].shape[-2:]
        places = jnp.arange(length)
        if "q_segments" in told:
            places = pe_jax.positions.per_segment(told["q_segments"])
        x = qkv[0].reshape(*rows, length, -1)
        x = encoding.embed(params, x, told.get("q_positions", places))
        qkv = (x.reshape(*rows, length, *dims), *qkv[1:])
    qkv, told = jax.tree.map(layout.spread, (qkv, told))
    options |= {"implementation": run, "layout": layout, **told}
    found = attend(encoding, qkv, params=params, embedded=True, return_lse=bool(lse), **options)
    if not lse:
        return layout.restore(found)
    out, sums = map(layout.restore, found)
    sums = jnp.where(sums > -1e29, sums, 0)
    return sums if lse == "alone" else (out, sums)


def step(engine, spec="alibi", **options):
    """(params, q, k, v) → `results` and the gradients of these four; four to give, of 40 tokens."""
    encoding, sizes = parse(spec), {n: options.pop(n) for n in SIZES if n in options}
    qkv = operands(**{"length": 40} | sizes)
    dims = pe_jax.Dims(*(np.prod(qkv[0].shape[-2:]), qkv[0].shape[-2]), *qkv[1].shape[-2:])

    def run(*arrays):
        found, pull = jax.vjp(functools.partial(results, engine, encoding, **options), *arrays)
        return found, pull(jax.tree.map(lambda x: jnp.asarray(noise(*x.shape), x.dtype), found))

    return run, (util.random_params(encoding, dims), *qkv)


def outcomes(engines: Sequence, spec, **options) -> list:
    """Results and gradients by each engine, in one program."""
    runs = [step(engine, spec, **options) for engine in engines]
    return util.jit(lambda *arrays: [run(*arrays) for run, _ in runs])(*runs[0][1])


def assert_dense(engines: Sequence, spec, tol: float = 1e-5, **options) -> list:
    """That engines give what the dense one gives, gradients too; returns the outcomes."""
    want, *found = outcomes(("dense", *engines), spec, **options)
    for engine, got in zip(engines, found, strict=True):
        assert_close({engine: got}, {engine: want}, tol)
    return [want, *found]


def kernels_of(engine, spec="alibi", **options) -> list:
    """How many results each kernel has of a call and its gradients."""
    run, arrays = step(engine, spec, **options)
    jaxpr = jax.make_jaxpr(run)(*arrays).jaxpr
    return [len(e.outvars) for e in equations(jaxpr, "pallas_call")]


def equations(jaxpr, name):
    """The equations of a primitive, in every nested program but its own."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        else:
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from equations(inner, name)


def answer(question, *args, **options):
    """What `question` says of the call that an engine gets from `attend`; no engine runs."""
    answers = []

    def ask(spec, terms, q, k, v):
        answers.append(question(spec, terms, q, k, v))
        rows = q.x.shape[:3]
        return jnp.zeros((*rows, v.shape[-1]), v.dtype), jnp.zeros((*rows, 1))

    attend(*args, implementation=ask, **options)
    return answers[0]


def drawn(terms=(), spec="nope", qkv=None, length: int | None = 41, **options):
    """The small case of a call with its numbers; as long as the GPU's kernels ask if None."""

    def draw(*call):
        tokens = gpu.sample_length(*call) if length is None else length
        return small_case.draw(small_case.shrink(tokens, *call))

    return answer(draw, spec, qkv, terms=terms, **options)
