"""Options by engines: each row of the table is one call, which several engines must answer alike.

Results, row sums and the gradients of parameters, q, k and v are those of the dense engine.
`tests/contract` has every scheme; what an engine does beside this is in its own file.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import masks
from pe_jax.encodings.terms import DistanceBias, RelativeKeys, Scale
from pe_jax.engines.kernels import query_chunks
from tests import util
from tests.calls import ENGINES, T5, assert_dense, kernels_of, outcomes, step
from tests.util import B, H, assert_close, noise


@dataclasses.dataclass(frozen=True)
class Scaled(pe_jax.Encoding):
    """Every kind that is multiplied by the scale, with a horizon, and another scale."""

    def init_layer(self, key, dims):
        return {
            "table": jnp.ones((dims.heads, 7, dims.head_dim + 1)),
            "u": jnp.ones((dims.heads, dims.head_dim)),
        }

    def terms(self, params, dims):
        table, u = params.layer["table"], params.layer["u"]
        return (
            Scale(0.3),
            RelativeKeys(clipped, table[..., 1:], horizon=(-3, 3), u=u),
            DistanceBias(clipped, table[..., 0], horizon=(-3, 3), scaled=True),
        )


def clipped(table, distance):
    return table[:, jnp.clip(distance, -3, 3) + 3]


SCALED = pe_jax.Sum((*pe_jax.parse("t5(num_buckets=6,max_distance=9)+clipped(clip=3)"), Scaled()))
ALL = {"causal": False}
IDS = np.repeat([[0, 1, -1, 2], [3, 3, 3, -2]], [10, 15, 3, 12], axis=1)
PACKED = {"q_segments": IDS}
IN_TURNS = {"q_segments": np.arange(200).reshape(2, 100) % 3 - 1}
TURNS = {"q_segments": np.repeat([[0, 1, 0, 2], [3, 4, 3, -1]], 10, axis=1)}
ORDER = np.random.default_rng(0).permutation(40)
SHUFFLED = {"q_index": ORDER, "k_index": ORDER}
CROWD = np.random.default_rng(1).integers(0, 20, (B, 40))
STEPS, BACKWARDS = np.arange(7, 127, 3), np.arange(40)[::-1].copy()
ELSEWHERE = {  # the queries are the last tokens
    **{"length": 20, "keys": 50, "q_index": np.arange(30, 50), "k_index": np.arange(50)},
    **{"q_positions": np.arange(60, 100, 2), "k_positions": np.arange(100, 0, -2)},
}
LAST = {"q_index": np.arange(49, 50), "q_positions": np.arange(60, 61)}
CROWDED = ELSEWHERE | {"q_positions": np.arange(20) // 5, "k_positions": np.arange(50)[::-1] // 2}
PLANE = {"q_positions": np.stack(np.divmod(np.arange(40), 8), -1)}
PAGE = {"q_positions": np.stack([np.arange(40), *np.divmod(np.arange(40), 8)], -1)}
THIRTY = np.arange(30).reshape(2, 3, 5)
TWO_AXES = {"q_positions": THIRTY % 7, "q_segments": THIRTY // 4}
LONG = {"length": 200, "q_segments": np.repeat(IDS[:, [0, 10, 25, 28]], [70, 60, 20, 50], axis=1)}
PARENTS = np.array([-1, 0, 0, 1, 1, 2, *range(5, 39)])
PREFIX = {"mask": masks.prefix(np.array([7, 20])), "causal": False}
DROPOUT = {"dropout_rate": 0.3, "dropout_key": jax.random.key(0)}
SINK = {"terms": (pe_jax.Sink(noise(H)),)}
ALONE = {"lse": False}  # the output is all that is read: kernels of JAX have no other gradient
WINDOWED = {"window": 21, "logit_cap": 3.0}
STAGES, OBLONG = {"length": 120}, "clipped(clip=9)+transformer_xl"
FADES = {"length": 200, "sharp": 0.1}
BOTH = "t5(num_buckets=8,max_distance=6,bidirectional=True)"
DEBERTA = "deberta(buckets=4,max_distance=7)"
MIXED, BIASES = f"{DEBERTA}+rope", f"{T5}+clipped(clip=3)+alibi"
SCALED = pe_jax.Sum((Scaled(), *pe_jax.parse("clipped(clip=5)")))
STOCK = "gpu tpu splash cudnn"


def counted(queries: int, keys: int) -> dict[str, np.ndarray]:
    """Positions of as many queries and keys."""
    return {"q_positions": np.arange(queries), "k_positions": np.arange(keys)}


def on(engines: str, spec, **options):
    """A row: the engines that must agree with the dense one, the scheme, what the call is given."""
    return engines, spec, options


EACH = "tiles gpu tpu"
MATRIX = {
    # Masks, dropout, caps, scales.
    "prefix": on("tiles", "shaw(clip=4)", **PREFIX),
    "prefix, packed": on("tiles", "rerope(window=6)", mask=masks.prefix(12), **PACKED),
    "tree, sink": on("tiles", "rope+shaw(clip=4)", mask=masks.tree(PARENTS), **ALL, **SINK),
    "chunks, scale": on("tiles", "shaw(clip=4)", mask=masks.chunks(9), scale=np.float32(0.4)),
    "cap, window": on(EACH, "alibi", logit_cap=0.7, window=9),
    "dropout": on("tiles", f"rerope(window=6)+{T5}", **DROPOUT),
    "all of these": on("tiles", "shaw(clip=4)", **PREFIX, **DROPOUT, **SINK, logit_cap=2.0),
    # Shapes, and where tokens are.
    "more queries than keys": on("tiles", MIXED, length=11, keys=5, **ALL, **counted(11, 5)),
    "one query": on("tiles", MIXED, **ELSEWHERE | {"length": 1} | LAST),
    "no batch axis": on("tiles", f"{MIXED}+shaw(clip=3)", batch=(), q_positions=BACKWARDS),
    "two batch axes": on("tiles", MIXED, batch=(2, 3), length=5, **TWO_AXES),
    "wide values, window both ways": on(EACH, MIXED, v_width=9, window=20, **ALL),
    "narrow values, sinks": on("tiles", MIXED, v_width=1, window=2, sinks=1, **ALL),
    "window, sinks, elsewhere": on("tiles", MIXED, window=3, sinks=2, **ELSEWHERE),
    "window, shuffled": on("tiles gpu", f"clipped(clip=3)+{DEBERTA}", window=9, **SHUFFLED),
    "elsewhere": on("tiles gpu", "alibi+rope", **ELSEWHERE),
    "every bias, elsewhere": on(
        "tiles gpu", f"{BOTH}+clipped(clip=3)+alibi", window=15, **ALL, **CROWDED
    ),
    "whole blocks, one key head": on("gpu tpu", T5, length=32, heads=(4, 1)),
    "one token": on("gpu tpu", f"{T5}+fire(width=3)", length=1),
    "beyond the length": on("gpu tpu", "clipped(clip=40)+t5+rope", window=99),
    # Biases and vectors of distances.
    "nothing": on("gpu tpu", "nope", **ALL),
    "fading": on("tiles gpu", "alibi+kerple", **FADES),
    "fading both ways": on(EACH, "alibi", **FADES, **ALL),
    "biases, packed": on(EACH, BIASES, **PACKED),
    "biases, window both ways, packed": on(EACH, BOTH, window=11, **ALL, **PACKED),
    "biases at any positions": on(EACH, f"{T5}+alibi", q_positions=CROWD),
    "vectors, cap": on("gpu, oblong", "shaw(clip=3)+rope", logit_cap=1.5),
    "vectors, window, packed": on(EACH, "shaw(clip=3)", window=20, **ALL, **PACKED, logit_cap=1.5),
    "every kind": on(EACH, f"clipped(clip=3)+shaw(clip=5)+{DEBERTA}+alibi", window=25, **ALL),
    "no horizon, packed": on(EACH, "dpb(hidden=3,depth=1)+kerple", **ALL, **PACKED),
    "no horizon, elsewhere": on("gpu", "dpb(hidden=3,depth=1)+alibi", **ALL, **CROWDED),
    "vectors without a horizon": on(EACH, "transformer_xl", **ALL, **PACKED),
    "vectors of keys and queries, pairs": on("gpu", f"{DEBERTA}+fire(width=3)+alibi", window=20),
    "several scales": on(EACH, SCALED),
    "sink": on(EACH, "sink+rope", window=9, **PACKED),
    # Pairs: in chunks of queries, where a kernel has any.
    "pairs": on("gpu, oblong", f"fire(width=3)+{BOTH}+alibi", window=20, **ALL, **PACKED),
    "pairs, one key head": on("gpu tpu", "fire(width=5,shared=True)", heads=(4, 1), **PACKED),
    "pairs, no horizon": on("gpu tpu", "fire(width=3)+dpb(hidden=3,depth=1)"),
    "pairs, gates, cap": on(EACH, "fox+fire(width=3)+rope", logit_cap=3.0, q_positions=STEPS),
    "pairs, vectors": on("tiles tpu", f"fire(width=3)+{T5}+shaw(clip=3)", window=20, **PACKED),
    "pairs, all vectors": on("tpu", "fire(width=3)+transformer_xl", **ALL),
    "pairs, a table, elsewhere": on(
        "tpu", f"fire(width=3)+{T5}", window=20, **PACKED, q_positions=STEPS
    ),
    "two axes": on(EACH, "swin(width=10)+rope_2d+cpb+alibi_2d", **ALL, **PACKED, **PLANE),
    "three axes": on("gpu tpu", "layoutlmv3", **ALL, **PAGE),
    # States of tokens.
    "gates, fading": on(EACH, "fox+alibi", **FADES),
    "gates both ways, packed": on(EACH, "fox", **ALL, **PACKED),
    "gates, elsewhere": on("gpu tpu", "fox", q_positions=STEPS),
    "two gates, a table": on(EACH, f"fox+cable+{T5}"),
    "profiles": on(EACH, "inkling(extent=20,width=3)+shaw(clip=3)", window=20),
    "gated bias": on(EACH, "wavlm(num_buckets=8,max_distance=9)", **ALL),
    "products, cap": on(EACH, "tupe(length=80)+fox", logit_cap=1.5),
    "states beside vectors": on("tiles", f"{BOTH}+shaw(clip=3)+wavlm+fox+alibi+fire", **ALL),
    "states beside products": on(
        "tiles", "transformer_xl+fox+tupe(length=40)+wavlm", q_positions=BACKWARDS
    ),
    "stages, window, sinks": on("tiles", f"{BOTH}+shaw(clip=3)", **STAGES, window=20, sinks=3),
    "stages, window both ways": on("tiles", f"{BOTH}+shaw(clip=16)", **STAGES, window=50, **ALL),
    "stages without a horizon": on("tiles", "transformer_xl+alibi", **STAGES, window=50),
    "stages of products": on("tiles", "deberta+rope", **STAGES, window=20, sinks=3),
    "stages of formulas": on("tiles", "kerple", **STAGES, window=20, sinks=3, **ALL),
    "oblong, window, sinks": on("tiles, oblong", OBLONG, window=12, sinks=3),
    "oblong, both ways": on("tiles, oblong", OBLONG, **ALL),
    "views": on("tiles", "rerope(window=8)", **ALL),
    "views, sinks": on("tiles gpu", f"rerope(window=12)+{T5}", window=9, sinks=3),
    "views, window, packed": on("gpu, oblong", "self_extend(window=7)+fox", window=20, **PACKED),
    "views by blocks": on("gpu", "dual_chunk(chunk_size=12,local_size=4)+alibi", length=60),
    "window, sinks": on("gpu", "alibi+sink", window=9, sinks=50),
    "pieces": on("gpu", "fire(width=7,length=8.0)", length=100),
    "pieces, both ways": on("gpu, oblong", f"fire(width=20,length=5.0)+{BOTH}", **ALL, **WINDOWED),
    "pieces, packed": on("gpu, oblong", f"fire(width=7,length=8.0)+{T5}+fox", **PACKED),
    "pieces, vectors, packed": on("gpu", f"fire(width=3)+{DEBERTA}", **LONG),
    "pieces, documents in turns": on("tiles gpu tpu", f"fire(width=7,length=8.0)+{T5}", **TURNS),
    "pieces, views": on("gpu", "fire(width=3)+rerope(window=12)", length=60),
    "phases, packed": on("gpu", "tapa(fraction=0.25)", **PACKED),
    "phases, both ways": on("gpu, oblong", "rope+tapa+fox", **ALL, **WINDOWED, q_positions=STEPS),
    "phases, pairs": on("gpu", "tapa+fire(width=3)+transformer_xl", heads=(4, 1), length=60),
    # Sums along rows.
    **{
        f"{spec}, {name}": on("tiles, oblong" if "length" in name else "tiles", spec, **options)
        for spec, name, options in (
            ("cope(positions=6)", "cap, sinks", {"window": 21, "sinks": 3, "logit_cap": 3.0}),
            ("cope(positions=6)", "prefix, dropout", PREFIX | DROPOUT),
            ("cope(positions=6)+wall", "length", {"length": 100}),
            ("cope(positions=6)+grape_ap+rerope(window=8)+t5+fire", "packed", PACKED),
            ("cope(positions=6)+shaw(clip=3)+transformer_xl+fox", "packed", PACKED),
            ("grape_ap", "backwards", ALL | {"q_positions": BACKWARDS}),
            ("grape_ap", "whole blocks", {"length": 16}),
            ("path", "cap, sinks", {"window": 21, "sinks": 3, "logit_cap": 3.0}),
            ("path", "tree, packed", {"mask": masks.tree(PARENTS), **PACKED}),
            ("path", "documents in turns", {"length": 100, **IN_TURNS}),
            ("path+rope+cope(positions=6)+t5+fox", "length", {"length": 100, "heads": (4, 1)}),
            ("alibi+path+dape(hidden=5)", "packed, dropout", PACKED | DROPOUT),
            ("stick_breaking", "packed", PACKED),
            ("stick_breaking", "backwards", ALL | {"q_positions": BACKWARDS}),
            ("stick_breaking", "one token", {"length": 1}),
            ("stick_breaking(attend_current=True)+rope+t5+fox", "length", {"length": 100}),
        )
    },
    **{
        f"{spec}, kernels, {name}": on(engine, spec, **options)
        for engine, spec, name, options in (
            ("gpu", "cope(positions=18)", "settled", {"length": 100}),
            ("gpu, oblong", "cope(positions=6)+fire(width=3)", "packed", PACKED),
            ("gpu", f"cope(positions=70)+{BOTH}", "both ways", ALL),
            ("gpu", "cope(positions=6)", "elsewhere, window, cap", CROWDED | WINDOWED),
            ("gpu", "cope(positions=6)+transformer_xl", "chunks", {"length": 70}),
            ("gpu, oblong", "grape_ap+rope+wavlm+fox", "length", {"length": 60}),
            ("gpu", "grape_ap", "packed", PACKED),
            ("gpu, oblong", "grape_ap", "backwards", ALL | {"q_positions": BACKWARDS}),
            ("gpu, oblong", "stick_breaking", "packed", PACKED),
            ("gpu, oblong", "stick_breaking", "sharp", {"length": 90, "sharp": 100}),
            ("gpu", "stick_breaking(attend_current=True)+rope+alibi", "one token", {"length": 1}),
            ("gpu, oblong", "wall", "packed", PACKED),
            ("gpu", f"wall+{T5}+fox+rope", "length", {"length": 100, "heads": (4, 1)}),
            ("gpu", "wall+dpb(hidden=3,depth=1)", "window, cap", WINDOWED),
            ("gpu", "wall", "one token", {"length": 1}),
            ("gpu", "path", "documents in turns", {"length": 100, **IN_TURNS}),
            ("gpu, oblong", f"path+{T5}+rope", "length", {"length": 100, "heads": (4, 1)}),
            ("gpu, tall", "path+fox+dpb(depth=1)", "window, cap", {"length": 100, **WINDOWED}),
            ("gpu", "path", "one token", {"length": 1}),
        )
    },
    # Scores of all heads of a pair.
    "all heads": on("tiles", "dape(hidden=5)", **PACKED, logit_cap=2.0, **DROPOUT),
    "all heads, biases": on("tiles, oblong", f"{T5}+dape(hidden=5)+alibi", length=100),
    "all heads, pairs, sums": on("tiles", "fire(width=3)+dape(hidden=5)+cope(positions=6)"),
    # Stock kernels: products in further channels, in splash biases of keys too.
    "alone": on(f"{STOCK}", "nope", **ALONE, **ALL),
    "row sums alone": on("gpu tpu", "shaw(clip=3)", lse="alone"),
    "alone, window": on(STOCK, "rope", **ALONE, window=20),
    "alone, biases of keys": on("gpu tpu splash", "alibi+fox", **ALONE),
    "alone, products": on(STOCK, "tupe(length=128)", **ALONE),
    "alone, products, biases": on("splash", "tupe(length=128)+alibi", **ALONE),
    "alone, narrow values": on(STOCK, "rope", **ALONE, v_width=6),
    "alone, wide values": on(STOCK, "nope", **ALONE, v_width=24),
    "alone, cap": on("splash", "alibi", **ALONE, logit_cap=2.0),
    "alone, packed": on("gpu tpu splash", "alibi+fox", **ALONE, **PACKED),
    "alone, two blocks": on("splash", "rope", **ALONE, **ALL, **LONG, window=40),
    "alone, odd width": on("cudnn", "rope", **ALONE, width=12),
}


@pytest.mark.parametrize("engines, spec, options", MATRIX.values(), ids=list(MATRIX))
def test_engines_give_what_the_dense_one_gives(engines, spec, options):
    names = [engines] if engines in ENGINES else engines.split()
    for results, gradients in assert_dense(names, spec, 2e-5, **options):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))
        if "q_segments" in options:  # rows of padding see nothing
            assert not np.asarray(jax.tree.leaves(results)[0])[options["q_segments"] < 0].any()


HALF = [
    ("gpu", "products, cap"),
    ("gpu", "biases, packed"),
    ("gpu", "profiles"),
    ("tpu", "profiles"),
    ("tpu", "pairs, all vectors"),
    ("tpu", "gates, elsewhere"),
    ("tiles", "several scales"),
    ("tiles", "grape_ap, backwards"),
    ("tiles", "stick_breaking, backwards"),
    ("tiles", "path, cap, sinks"),
    ("splash", "alone, products, biases"),
    ("cudnn", "alone, products"),
]


@pytest.mark.parametrize("engine, name", HALF)
def test_half_precision_differs_as_rounding_does(engine, name):
    _, spec, options = MATRIX[name]
    half, full = ({"dtype": dtype} for dtype in ("bfloat16", "float32"))
    (low,) = outcomes([engine], spec, **options, **half)
    assert {x.dtype for x in jax.tree.leaves(low[1][1:])} == {jnp.dtype("bfloat16")}
    (want,) = outcomes(["dense"], spec, **options, **half)
    assert_close(low, want, 4e-2)


@pytest.mark.parametrize("engine", EACH.split())
def test_the_same_bits_each_time(engine):
    _, spec, options = MATRIX["every kind"]
    run, arrays = step(engine, spec, **options)
    jax.tree.map(np.testing.assert_array_equal, *(util.jit(run)(*arrays) for _ in range(2)))


PAIRS = f"fire(width=3)+{T5}+fox"


@pytest.mark.parametrize(
    "engine, spec", [("gpu", PAIRS), ("tpu", PAIRS), ("gpu", f"transformer_xl+{T5}+fox")]
)
def test_later_chunks_of_queries_meet_more_keys(engine, spec, monkeypatch):
    """Of 5 chunks of 16 queries, the last one of 6."""
    monkeypatch.setattr(query_chunks, "BLOCKS", 1)
    monkeypatch.setattr(query_chunks, "GROUPS", 2)
    ids = {"q_segments": np.repeat([[0, 1, -1, 2], [3, 3, 3, -2]], [10, 15, 3, 42], axis=1)}
    at = {"q_positions": np.arange(7, 217, 3)} if engine == "tpu" else {}
    assert_dense([engine], spec, length=70, **ids, **at)


@pytest.mark.parametrize(
    "engine, spec, counts",
    [
        ("gpu", "alibi", [2, 1, 2]),
        ("gpu", "kerple", [2, 2, 2]),
        ("gpu", "t5", [2, 2, 2]),
        ("gpu", "fox", [2, 2, 3]),
        ("tpu", "alibi", [2, 1, 2]),
        ("tpu", "kerple", [2, 2, 2]),
    ],
)
def test_gradients_of_constants_are_not_computed(engine, spec, counts):
    """Of ALiBi's slopes, say: results of the kernels forward, for queries and for keys."""
    assert kernels_of(engine, spec) == counts
