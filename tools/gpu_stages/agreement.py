"""Every scheme by the kernels and by the dense engine in float32: outputs and every gradient."""

import functools
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measuring.timing import Refused, reason
from pe_jax.encodings import ENCODINGS, parse
from pe_jax.encodings.base import Dims, Encoding, adds_to_input
from pe_jax.engines import reference, tiled
from pe_jax.engines.api import attention
from pe_jax.engines.kernels import self_check
from pe_jax.engines.kernels.gpu import cudnn, engine
from tools.gpu_stages.results import Clock, Results, Row, Shared, in_processes, key

STAGE = "agreement"
SPECS = {name: name + "(length=1024)" for name in ("learned", "tupe")} | {
    "rerope": "rerope(window=20)",  # so that few tokens have every view
    "self_extend": "self_extend(window=20,group=3)",
    "dual_chunk": "dual_chunk(chunk_size=24,local_size=8)",
}
FIRST = (  # one or two for each kind of term
    *("nope", "rope", "alibi", "t5", "shaw", "fox", "deberta", "kerple", "sandwich", "wavlm"),
    *("inkling", "tupe", "cable", "sink", "cope", "stick_breaking", "tapa", "wall", "path"),
)
ONLY_TIMED = ("shaw_keys", "alibi_plain")  # the benchmark's names for variants of two schemes
SUMS = ("alibi+rope", "t5+rope", "shaw+t5", "kerple(kind='power')", "fox+alibi", "deberta+rope")


class Shape(NamedTuple):
    """Sizes of a call: tokens, query heads, key heads, width of a head, rows."""

    length: int = 397  # several blocks and a partial one; past the horizons of most tables
    heads: int = 4
    kv_heads: int = 2
    width: int = 64
    rows: int = 2

    @property
    def dims(self) -> Dims:
        """The sizes that encodings see."""
        return Dims(self.heads * self.width, self.heads, self.kv_heads, self.width)


SMALL = Shape(37, width=16)  # of a rehearsal


def cases(shape: Shape) -> dict[str, tuple[Shape, dict[str, Any]]]:
    """Name → sizes, and options of `attention`; the most important first."""
    length, rows = shape.length, shape.rows
    ids = np.where(np.arange(length) < 0.4 * length, 0, 1)
    ids = np.where(np.arange(length) < 0.95 * length, ids, -1)[None].repeat(rows, 0)
    return {
        "causal, grouped heads": (shape, {}),
        "documents and a window": (shape, {"q_segments": ids, "window": length // 4}),
        "both ways": (shape, {"causal": False}),
        "wider heads": (shape._replace(width=2 * shape.width, kv_heads=shape.heads), {}),
        "positions of its own": (shape, {"q_positions": 3 * np.arange(length) + 7}),
        "capped": (shape, {"logit_cap": 2.0}),
        "sinks": (shape, {"window": length // 4, "sinks": 4}),
        # What cuDNN runs.
        "no row sums": (
            shape._replace(width=3 * shape.width // 4, length=shape.length + 1),
            {"return_lse": False},
        ),
    }


def names() -> list[str]:
    """All schemes of one axis, and sums."""
    of_one_axis = [n for n, kind in ENCODINGS.items() if kind().claims.axes == 1]
    return list(dict.fromkeys((*FIRST, *SUMS, *of_one_axis)))


def compare(spec: str, shape: Shape, options: dict, dtype: str, attend: Callable) -> Row:
    """How far the kernels are from the dense engine: the worst array, and whether it is rounding.

    Raises:
      Refused: no kernel runs the call, or the scheme does not support it.
    """
    (encoding,) = parse(SPECS.get(spec, spec))
    q, k, v = (
        jnp.asarray(_normal(shape.rows, shape.length, heads, shape.width, seed=seed), dtype)
        for seed, heads in enumerate((shape.heads, shape.kv_heads, shape.kv_heads))
    )
    x = jnp.asarray(_normal(shape.rows, shape.length, shape.dims.width, seed=4), dtype)
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), shape.dims))
    params = jax.tree.map(lambda x: jnp.asarray(0.4 * _normal(*x.shape, seed=5)), shapes)
    operands = params, q, k, v, x

    def dense(*call):
        if why := engine.refusal(*call):
            raise Refused(why)
        spec, terms, q, k, v = call
        q, k = (side._replace(x=side.x.astype(jnp.float32)) for side in (q, k))
        return reference.attend(spec, terms, q, k, v.astype(jnp.float32))

    def outcome(attend):
        return _outcome(encoding, shape, options, attend)

    try:
        jax.eval_shape(outcome(dense), *operands)
    except ValueError as error:
        raise Refused(str(error)) from error

    def errors(attend) -> dict[str, float]:
        pairs = zip(leaves(outcome(attend)(*operands)), leaves(want), strict=True)
        name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
        return {name(path): self_check.relative_error(a, b) for (path, a), (_, b) in pairs}

    leaves = jax.tree_util.tree_leaves_with_path
    with jax.default_matmul_precision("highest"):
        want = outcome(dense)(*operands)
        measured = errors(attend)
        wrong = self_check.beyond_rounding(measured, dtype, lambda: errors(tiled.attend))
    name, worst = self_check.worst(wrong or measured)
    return {"agrees": not wrong, "error": worst, "of": name}


def _outcome(encoding: Encoding, shape: Shape, options: dict, attend: Callable) -> Callable:
    """(params, q, k, v, x) → output and row sums, with the gradients of all."""

    def forward(params, q, k, v, x):
        settings = {"return_lse": True, "causal": True, **options}
        result = attention(
            q,
            k,
            v,
            encoding=encoding,
            params=params,
            x=x,
            dims=shape.dims,
            embedded=adds_to_input(encoding, shape.dims),
            implementation=attend,
            **settings,
        )
        if not settings["return_lse"]:
            return {"out": result}
        out, lse = result
        return {"out": out, "lse": jnp.where(lse > reference.LOWEST / 2, lse, 0)}

    @jax.jit
    def run(*operands):
        results, pull = jax.vjp(forward, *operands)
        gradients = pull(jax.tree.map(self_check.cotangent, results))
        return results | {"d": dict(zip(("params", *"qkvx"), gradients, strict=True))}

    return run


def _normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def jobs(
    done: Container[tuple], schemes: list[str], dtypes: list[str], small: bool
) -> Iterator[tuple[Row, tuple[Any, ...]]]:
    """Comparisons without a result yet, as arguments of `compare`; each case for all schemes."""
    for case, (shape, options) in cases(SMALL if small else Shape()).items():
        for dtype in dtypes:
            for spec in schemes:
                row = {"stage": STAGE, "scheme": spec, "dtype": dtype, "case": case}
                if key(row) not in done:
                    yield row, (spec, shape, options, dtype)


def kernels(rehearse: bool) -> Callable:
    """The engine that is compared: cuDNN's where `attention` would take it, or ours."""
    ours, stock = engine.attend, cudnn.attend
    if rehearse:
        ours = functools.partial(ours, interpret=True, sizes=(16, 16))
        stock = functools.partial(stock, implementation="xla")

    def attend(*call):
        by_stock = cudnn.refusal(*call) is None and cudnn.is_faster(*call)
        return (stock if by_stock else ours)(*call)

    return attend


def work(
    schemes: list[str], dtypes: list[str], rehearse: bool, done: set, _: int, shared: Shared
) -> None:
    """Compares in one of the processes."""
    for row, arguments in shared.taken(jobs(done, schemes, dtypes, rehearse)):
        spec, shape, options, dtype = arguments
        try:
            result = compare(spec, shape, options, dtype, kernels(rehearse))
        except Refused as refused:
            result = {"note": reason(refused)}
        except Exception as error:  # an error of a compiler or of the device is a result
            result = {"agrees": False, "note": reason(error)}
        shared.found.put(row | result)


def run(
    results: Results,
    clock: Clock,
    processes: int,
    schemes: list[str],
    dtypes: list[str],
    rehearse: bool,
) -> None:
    """Compares what the flags select, until time is up."""
    task = functools.partial(work, schemes, dtypes, rehearse, results.keys)
    for row in in_processes(task, processes, clock):
        results.add(row)


def failures(results: Results) -> list[str]:
    """A line for each comparison that did not agree."""
    return [
        f"{row['scheme']}, {row['dtype']}, {row['case']}: "
        + (f"{row['of']} is off by {row['error']:.2g}" if "of" in row else row["note"])
        for row in results.of(STAGE)
        if row.get("agrees") is False
    ]
