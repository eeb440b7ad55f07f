"""The public face as a newcomer gets it wrong: one line that says what, and never a number.

What other files of this folder try (fields of schemes, positions) is not repeated here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import adapters, cache, hf, masks, naive, positions
from pe_jax.encodings import (
    buckets,
    learned,
    mrope,
    rope,
    rope_2d,
    rope_inner,
    rope_scaling,
    shaw,
    swin,
    t5,
)
from pe_jax.engines.tiled import Tiled
from tests import util
from tests.adapters.common import of_linen
from tests.faults import attention_calls
from tests.faults.attention_calls import (
    FAR,
    FOX,
    K_,
    NO_PARAMS,
    NTK,
    ROPE,
    SHAW,
    T5,
    Q,
    T,
    V,
    X,
    attention,
)
from tests.util import DIMS, B, E, H

HERE, KEY, NONE = np.arange(T), jax.random.key(0), NO_PARAMS
LEARNED, BOTH = pe_jax.make("learned"), pe_jax.Sum((T5, ROPE))
TABLE = util.noise(H, 32)
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
BERT, ROWS = {**LLAMA, "model_type": "bert"}, "embeddings.position_embeddings.weight"
LAYER = hf.LayerEncoding(ROPE, 64)
Calls = list[tuple]


class Unlisted(pe_jax.Encoding):
    """No line in ENCODINGS."""


def rows(table, distance):
    return jnp.take(table, jnp.clip(distance, 0, 3), axis=1)


def of_one_head(table, distance):
    return rows(table, distance)[0]


def numbers(_, q, k):
    return (q.index[:, :, None] + k.index[:, None]).astype(jnp.float32)


def columns(_, q, k):
    return q.index[:, :, None] >= 0


def attend(**options):
    return functools.partial(attention, **options)


SET_LENGTH = "encoding.at_length(total_length)"
NAMES = "num_heads attention_mask position_ids softmax_scale window_size rng training impl"


def terms(*own):
    return attend(terms=own)


def table(leaf, **more):
    return attend(encoding=T5, params=pe_jax.Params({"table": leaf, **more}, {}))


ATTENTION: Calls = [
    *((attend(**{name: 1}), f"{name}: attention has no such argument") for name in NAMES.split()),
    (attend(is_causal=True), TypeError, "is_causal: attention has no such argument; pass causal="),
    (attend(attn_mask=None), TypeError, "pass mask="),
    (attend(key_value_seq_lengths=3), TypeError, "pass k_lengths="),
    (attend(colour=3), TypeError, "colour: ", "see help(pe_jax.attention)"),
    (attend(q="q"), "q='q' is a str; pass an array"),
    (attend(q=Q > 0), "q has dtype bool"),
    (attend(q=Q[:, :, :0]), "q has shape (2, 5, 0, 8); pass at least one head"),
    (attend(k=K_[:, :, :0], v=V[:, :, :0]), "k has 0 heads"),
    (attend(q=Q[..., :0], k=K_[..., :0]), "q has shape (2, 5, 4, 0); pass at least"),
    (attend(q=Q[0, 0]), "q has shape (4, 8)", "[*B, length, heads, width]"),
    (attend(q=Q[..., :7], k=K_[..., :7], encoding=ROPE), "head_dim=7", "even"),
    (attend(encoding=pe_jax.make("rope", fraction=0.4)), "fraction=0.4", "even"),
    (attend(k=Q[:, :, :3], v=Q[:, :, :3]), "k has 3 heads", "[1, 2, 4]"),
    (attend(k=K_[:1], v=V[:1]), "(2, 5, 4, 8)", "(1, 5, 2, 8)", "batch"),
    (attend(v=V[:1]), "(2, 5, 2, 8)", "(1, 5, 2, 8)"),
    (attend(v=V[:, :1]), "(2, 1, 2, 8)"),
    (attend(k=K_[..., :4]), "same width"),
    (attend(v=V[..., :1], encoding=SHAW), "v has width 1", "8"),
    (attend(v=np.ones(V.shape, np.int32)), TypeError, "v has dtype int32", "float32"),
    (attend(dims=pe_jax.Dims(32, 8, 2, 4)), "4 heads of 8", "8 of 4"),
    (attend(mask="causal"), "mask='causal': pass an array of booleans, or a pe_jax.Mask"),
    (attend(mask=[masks.prefix(1)]), "mask=[Mask(", "pass an array of booleans"),
    (attend(mask=pe_jax.Mask), "mask=<class", "booleans"),
    (attend(mask=np.full((T, T), 2)), "mask holds 2: pass booleans"),
    (attend(mask=np.ones((T, T), bool), implementation="tiled"), "'tiled': mask= as an array"),
    (attend(mask=np.zeros((3, T), bool)), "mask=(3, 5): pass a shape that broadcasts to"),
    (attend(mask=np.ones((1, 1, 1, T, T), bool)), "mask=(1, 1, 1, 5, 5)", "broadcasts"),
    (attend(mask=np.ones((B, T, T), bool)), "mask=(2, 5, 5)", "broadcasts"),
    (attend(mask=pe_jax.Mask(numbers)), "mask: its function gives float32[1, 5, 5]", "bool"),
    (attend(mask=pe_jax.Mask(columns)), "mask: its function gives bool[1, 5, 1]", "5, 5"),
    (attend(mask=masks.prefix([1, 2, 3])), "mask=(3,)", "3 rows, q has 2"),
    (attend(mask=masks.tree([-1, 0])), "mask.length=2: k has 5 tokens"),
    (attend(bias="alibi"), "bias='alibi': pass an array of floats"),
    (attend(bias=np.ones((T, T), bool)), "bias has dtype bool", "booleans are a mask"),
    (attend(bias=np.ones((T, T), "c8")), "bias has dtype complex64"),
    (attend(bias=np.zeros((H, T, 3))), "bias=", "broadcasts"),
    (attend(bias=[[0.0], [0.0, 1.0]]), "bias=[[0.0], [0.0, 1.0]]"),
    *((attend(scale=x), f"scale={x!r}: pass a positive") for x in (0, -1, "1", True, np.inf, 1j)),
    *((attend(logit_cap=x), f"logit_cap={x!r}: pass a positive") for x in (False, -1, "1", np.nan)),
    *((attend(dropout_rate=x), f"dropout_rate={x!r}") for x in (-0.1, 1.0, 2, "0.1", None, np.nan)),
    *((attend(dropout_key=x), f"dropout_key={x!r}: pass one key") for x in (0, "k")),
    (attend(dropout_key=np.zeros(3)), "dropout_key=float64[3]"),
    (attend(dropout_rate=0.1, dropout_key=jax.random.split(KEY, 3)), "dropout_key=key<", "[3]"),
    (attend(q_positions=[[0, 1], [2]]), "q_positions=[[0, 1], [2]]", "lists of one length"),
    (attend(q_positions={"a": 1}), "q_positions has dtype object"),
    (attend(q_index="a"), "q_index has dtype <U1"),
    (attend(q_index=HERE + 0.5), "q_index has dtype float64"),
    (attend(encoding=ROPE, k=K_[:, :3], v=V[:, :3]), "5 tokens", "3", "q_positions"),
    (
        attend(k=K_[:, :3], v=V[:, :3], q_positions=HERE, k_positions=HERE[:3]),
        "5 tokens",
        "q_index",
    ),
    (attend(k_positions=HERE), "pass both"),
    (attend(k_segments=np.zeros((B, T), int)), "pass both"),
    (attend(encoding=T5, q_positions=HERE.astype("f")), TypeError, "dtype float32", "integers"),
    (attend(q_positions=jnp.zeros(T, jnp.bfloat16)), TypeError, "q_positions has dtype bfloat16"),
    (attend(q_positions=np.zeros(T, bool)), TypeError, "dtype bool"),
    (attend(encoding=ROPE, q_positions=np.float32([0, 1, np.nan, 3, 4])), "q_positions", "finite"),
    (attend(q_segments=np.zeros((B, T))), TypeError, "q_segments has dtype float"),
    (attend(q_segments=np.zeros(T, int)), "q_segments has shape [5]", "[2, 5]"),
    (attend(encoding=ROPE, q_positions=FAR), "16777216", "2**24"),
    (attend(encoding=T5, q_positions=FAR * 2**16), "2**31"),
    (attend(encoding=T5, q_positions=FAR * 65, k_positions=-FAR * 64), "q_positions", "2**30"),
    (attend(sinks=2), "sinks=2: pass a window"),
    (attend(window=2, sinks=-1), "sinks=-1", "at least 0"),
    (attend(encoding=T5, causal=False), "all later tokens look alike to T5;", "bidirectional=True"),
    (attend(encoding=BOTH, causal=False), "causal=False: all later tokens look alike to T5+RoPE"),
    (attend(encoding=pe_jax.make("xpos"), causal=False), "XPos is for causal attention alone"),
    (
        attend(encoding=pe_jax.make("rope_2d"), q_positions=np.zeros((T, 2), int)),
        "causal=None: RoPE2D has 2 axes; pass True, or False",
    ),
    (attend(encoding=NTK, q_positions=HERE), "RoPE depends on the length", SET_LENGTH),
    (attend(encoding=pe_jax.Sum((T5, NTK)), q_positions=HERE), "T5+RoPE depends on", SET_LENGTH),
    (
        attend(encoding=NTK, k=K_[:, :3], v=V[:, :3], q_positions=HERE, k_positions=HERE[:3]),
        "RoPE depends on the length",
        SET_LENGTH,
    ),
    (attend(encoding=NTK.at_length(3)), "q goes to position 4, RoPE is set for 3 tokens"),
    (
        attend(encoding=NTK.at_length(8), q_positions=HERE, k_positions=5 + HERE),
        "k_positions goes to position 9, RoPE is set for 8 tokens; pass encoding.at_length(10)",
    ),
    *(
        (attend(window=x), f"window={x!r}: pass an integer")
        for x in (0, -1, 1.5, True, "3", (3, 0))
    ),
    *((attend(window=3, sinks=x), f"sinks={x!r}") for x in (1.5, True, None, (1,))),
    (attend(window=3, sinks=[1]), "sinks=", "at least 0"),
    *((attend(causal=x), f"causal={x!r}: pass True or False") for x in (1, "causal")),
    *((attend(return_lse=x), f"return_lse={x!r}") for x in (1, "yes")),
    *((attend(encoding=x), "encoding=", "pass one layer's") for x in (rope, rope.RoPE, {}, ())),
    *((attend(implementation=x), f"implementation={x!r}") for x in ("flash", 3, ["dense"])),
    (attend(implementation="tield"), "'tield'", "'tiled'"),
    (attend(implementation="fused"), "'fused': it needs a GPU", "a CPU", "'tiled'"),
    (attend(implementation="tpu"), "'tpu': it needs a TPU", "a CPU", "'tiled'"),
    (attend(implementation=Tiled), "implementation=<class", "unknown"),
    *((attend(layout=x), f"layout={x!r}: pass one of pe_jax") for x in ("ring", None)),
    *((attend(dims=x), "dims=", "pe_jax.Dims(width") for x in (32, (32, 4, 2, 8))),
    (attend(heads_axis="model", dims=DIMS), "heads_axis='model': pass the name of a mesh axis"),
    (attend(heads_axis=1, dims=DIMS), "heads_axis=1"),
    (attend(encoding=FOX), "x=None: FoX reads", "pass x="),
    (attend(encoding=FOX, x=X[:, 1:]), "x has shape (2, 4, 32)", "[2, 5, 32]"),
    (attend(encoding=FOX, x=X[..., :24], dims=DIMS), "x has shape (2, 5, 24); pass [2, 5, 32]"),
    (
        attend(
            encoding=FOX,
            x=X,
            params=pe_jax.Params({}, {"bias": X[0, 0, :H], "weight": util.noise(24, H)}),
        ),
        "params.layer.weight has shape [24, 4]; FoX takes [32, 4] for Dims(width=32",
    ),
    (attend(encoding=FOX, x=X.tolist()), "x=[[[", "is a list; pass an array"),
    (attend(encoding=FOX, x="x"), "x='x' is a str"),
    (attend(encoding=FOX, x=np.ones(X.shape, int)), "x has dtype int64; pass floats"),
    (table("x"), "params.shared['table'] is of str; pass floats"),
    (table(TABLE.astype(int)), "params.shared['table'] is of int64"),
    (table(TABLE > 0), "params.shared['table'] is of bool"),
    (table(TABLE.astype("c8")), "params.shared['table'] is of complex64"),
    (table(TABLE[:, :16]), "table has shape [4, 16]; T5 takes [4, 32] for", "init(key, dims)"),
    (table(TABLE[:1]), "table has shape [1, 32]; T5 takes [4, 32] for", "heads=4"),
    (table(None), "params.shared has no table for T5"),
    (attend(encoding=T5, params=None), "T5", "encoding.init("),
    (attend(encoding=T5, params=()), TypeError, "params is a tuple", "pe_jax.Params"),
    (attend(encoding=BOTH, params=NONE), "params.shared has no 0.table for Sum"),
    (
        attend(encoding=BOTH, params=pe_jax.Params(({"table": np.zeros((8, 32))}, {}), {})),
        "params.shared.0.table has shape [8, 32]; T5+RoPE takes [4, 32]",
        "dims=",
    ),
    (table(TABLE, tabel=TABLE), "params.shared has tabel, not of T5"),
    (attend(encoding=ROPE, params=util.random_params(T5)), "params.shared has table, not of RoPE"),
    (attend(encoding=T5, params=pe_jax.Params({}, {"table": TABLE})), "params.shared has no table"),
    (attend(terms="rope"), "terms='rope': pass a tuple of terms"),
    (attend(terms=pe_jax.Sink(TABLE[:, 0])), "terms=Sink", "pass a tuple"),
    (attend(terms=[pe_jax.Sink(TABLE[:, 0])]), "terms=[Sink", "pass a tuple"),
    (attend(encoding="rope,nope"), "encoding='rope,nope': it has 2 layers; pass that of one"),
    (attend(encoding="rop"), "encoding 'rop' is unknown; did you mean 'rope'"),
    (attend(encoding="t5"), "params=None, but T5 has parameters"),
    (terms(pe_jax.Scale(1.0), pe_jax.Scale(2.0)), "2 terms set a scale"),
    (terms(ROPE), "terms=(RoPE"),
    (terms(pe_jax.Sink), "terms=(<class"),
    (terms(pe_jax.Input(learned.table_rows, TABLE)), "terms=(Input"),
    (terms(pe_jax.Sink(TABLE[0, :3])), "terms: Sink has shape [3]; pass [4]"),
    (terms(pe_jax.Sink(TABLE[:, :1])), "terms: Sink has shape [4, 1]"),
    (terms(pe_jax.Sink(0.0)), "terms: Sink=0.0 is a float; pass an array"),
    (terms(pe_jax.QueryBias(TABLE[:3, :E])), "terms: QueryBias has shape [3, 8]; pass [4, 8]"),
    (terms(pe_jax.KeyOffset((0, 8))), "KeyOffset.channels=(0, 8): pass a tuple of some of 0 to 7"),
    (terms(pe_jax.KeyOffset([0])), "KeyOffset.channels=[0]: pass a tuple"),  # pyright: ignore
    (terms(pe_jax.DistanceBias(rows, TABLE[:3])), "DistanceBias of 7 distances has shape [3, 7]"),
    (terms(pe_jax.DistanceBias(of_one_head, TABLE)), "has shape [7]; pass [4, 7] or [1, 7]"),
    (terms(pe_jax.RelativeKeys(rows, util.noise(H, 4, 3))), "RelativeKeys", "[4, 7, 3]; pass [4"),
    (lambda: pe_jax.DistanceBias(None, TABLE), "DistanceBias.fn=None: pass a function"),
    (lambda: pe_jax.DistanceBias(TABLE[:2, :2], TABLE), "DistanceBias.fn=array"),
    (lambda: pe_jax.Scale("a"), "scale='a': pass a positive number"),
    (lambda: pe_jax.Scale(-1.0), "scale=-1.0"),
]


def make(name, **fields):
    return lambda: pe_jax.make(name, **fields)


def parse(spec):
    return lambda: pe_jax.parse(spec)


def at_length(scaling, length):
    return lambda: pe_jax.make("rope", scaling=scaling).at_length(length)


LONG = rope_scaling.LongRoPE((1.0,), (1.0,), 4, factor=2.0)
NAMED: Calls = [
    (make("x" * 900), "encoding 'xxx", "is unknown"),
    (make("rope", **{"b" * 900: 1}), "has no field 'bbb"),
    (make("rope,nope"), "make takes a name; pe_jax.parse reads"),
    (parse("x" * 2000), "encoding 'xxx", "unknown"),
    (parse("rope*100000000"), "layers=100000000: repeat to at most 10000"),
    (parse("(rope*9999)*9999"), "layers=99980001"),
    (parse("+".join(["rope"] * 5000)), "not a valid expression"),
    (parse("(" * 300 + "rope" + ")" * 300), "not a valid expression"),
    (parse("()"), "layers=0: write at least one"),
    (parse("rope(scaling=rope(base=3))"), "scaling 'rope' is unknown"),
    (parse("rope(scaling=yarn(factor=4))"), "scaling 'yarn' needs original_length"),
    (parse(b"rope"), "encoding=b'rope': pass a string"),
    *(
        (lambda x=x: pe_jax.spec(x), "encoding=", "pass one encoding")
        for x in (None, "rope", NTK.scaling)
    ),
    (lambda: pe_jax.spec(pe_jax.parse("rope,nope")), "encoding=(RoPE", "pass one encoding"),
    (lambda: pe_jax.spec(Unlisted()), "encoding=Unlisted()", "pe_jax.ENCODINGS"),
    (lambda: pe_jax.Sum(ROPE), "parts=RoPE", "pass a tuple of encodings"),
    (lambda: pe_jax.Dims(32, 4, 3, 8), "kv_heads=3: it must divide heads=4"),
    *((lambda x=x: pe_jax.Dims(32, x, 2, 8), f"heads={x!r}") for x in (0, -4, "4", True, 4.0)),
    (lambda: T5.init(KEY, (32, 4, 2, 8)), "dims=(32, 4, 2, 8): pass pe_jax.Dims"),
    (lambda: T5.init(KEY, {"heads": 4}), "dims={'heads': 4}"),
    *((lambda x=x: T5.init(x, DIMS), f"key={x!r}: pass one key") for x in (0, None, "a")),
    *((at_length(NTK.scaling, x), f"length={x!r}") for x in (0, 2.5, "8", None, True)),
    *((at_length(LONG, x), f"length={x!r}") for x in (-1, None)),
    (lambda: rope_scaling.LongRoPE((), (1.0,), 4, factor=2.0), "short_factor=()"),
    (lambda: rope_scaling.to_hf("rope", head_dim=8), "rope='rope': pass a RoPE"),
    (lambda: rope_scaling.to_hf(pe_jax.make("rope_pp"), head_dim=8), "rope=RoPEPP(", "pass a RoPE"),
    (lambda: rope_scaling.to_hf(ROPE, head_dim="a"), "head_dim='a'"),
]


def embed(x=X, places=HERE, params=None, encoding=LEARNED):
    params = util.random_params(encoding) if params is None else params
    return lambda: encoding.embed(params, x, places)


SINES = pe_jax.make("sinusoidal")
EMBED: Calls = [
    (embed(params=()), "params is a tuple; pass encoding.init(key, dims)"),
    (embed(params=X), "params is a ndarray"),
    (embed(params=NONE), "params.shared={}: not those of Learned"),
    (embed(params=NONE, encoding=pe_jax.parse("learned+rope")[0]), "not those of Sum"),
    (embed(X.tolist()), "x=[[[", "is a list; pass an array"),
    (embed(np.zeros(X.shape, int)), "x has dtype int64; pass floats"),
    (embed(X[0, 0], encoding=SINES), "x=(32,): pass at least 2 axes"),
    (embed(X[..., :30]), "width=30: the parameters are for width 32"),
    (embed(places=HERE[:3]), "positions has shape [3]; pass positions [5] or [1, 5] or [2, 5]"),
    (embed(places=HERE[:1], encoding=SINES), "positions has shape [1]"),
    (embed(places=np.zeros((B, 1), int)), "positions has shape [2, 1]"),
    (embed(places=np.zeros((B, T, 1), int), encoding=SINES), "positions has shape [2, 5, 1]"),
    (embed(places=None), "positions has shape []"),
    (embed(places="abc"), "positions has shape []"),
    (embed(encoding=pe_jax.make("bipe")), "BiPE has 2 axes: pass positions [5, 2]"),
    (embed(encoding=pe_jax.make("sinusoidal_2d")), "Sinusoidal2D has 2 axes"),
]


def empty(encoding=ROPE, batch=B, capacity=8, dims=DIMS, **options):
    return lambda: cache.empty(encoding, batch, capacity, dims, **options)


def extend(past=None, q=Q, k=K_, v=V, encoding=ROPE, params=NONE, dims=DIMS, **options):
    past = cache.empty(ROPE, B, 8, DIMS) if past is None else past
    own = {"encoding": encoding, "params": params, "dims": dims, **options}
    return lambda: cache.extend(past, q, k, v, **own)


def extend_five(**options):
    return functools.partial(attention_calls.extend, **options)


OTHER = pe_jax.Dims(64, 8, 2, 8)
CACHE: Calls = [
    *((empty(batch=x), f"batch={x!r}: pass an integer") for x in (-1, 2.5, "8", None, True)),
    *((empty(dims=x), "dims=", "pass pe_jax.Dims(") for x in (None, (32, 4, 2, 8))),
    *((empty(x), "encoding=", "pass one layer's") for x in (rope, pe_jax.parse("rope,nope"))),
    *((empty(dtype=x), "dtype=", "jnp.float32") for x in (jnp.int32, "float33")),
    (empty(T5, params=()), "params is a tuple; pass pe_jax.Params"),
    (empty(T5, params=util.random_params(T5, OTHER)), "params.shared.table has shape [8, 32]"),
    (empty(dims=pe_jax.Dims(28, 4, 2, 7)), "head_dim=7"),
    (extend({}), "cache is a dict; pass what pe_jax.cache.empty gives"),
    (extend(cache.empty(FOX, B, 8, DIMS)), "another encoding than RoPE(", "empty was given"),
    (extend(encoding=FOX, params=util.random_params(FOX), x=X), "another encoding than FoX("),
    (extend(cache.empty(ROPE, B, 8, pe_jax.Dims(32, 4, 4, 8))), "cache.k=(2, 4, 8, 8)"),
    (extend(encoding="rope,t5"), "encoding='rope,t5': it has 2 layers"),
    (extend(q=Q.tolist()), "q=[[[", "is a list; pass an array"),
    (extend(q=np.ones(Q.shape, int)), "q has dtype int64"),
    (extend(q=Q[0], k=K_[0], v=V[0]), "q has shape (5, 4, 8); pass [B, length, heads, width]"),
    (extend(terms=(pe_jax.Sink(TABLE[0, :3]),)), "terms: Sink has shape [3]; pass [4]"),
    (extend(terms=(masks.prefix(3),)), "terms='Mask'", "as part of an encoding"),
    (extend(implementation="flash"), "implementation='flash' is unknown"),
    (extend_five(capacity=4), "0 of 4", "5 more", "capacity >= 5"),
    (extend_five(capacity=0), "capacity=0", "at least 1"),
    (extend_five(q=Q[:1], k=K_[:1], v=V[:1]), "k has shape (1, 5"),
    (extend_five(k=K_[:, :, :1]), "(2, 5, 1, 8)", "(2, 5, 2, 8)"),
    (extend_five(v=V[..., :3]), "v has shape (2, 5, 2, 3)"),
    (extend_five(v=V[:, :4]), "v (2, 4, 2, 8) do not fit"),
    (extend_five(k=K_[:, :4]), "q (2, 5", "k (2, 4"),
    (extend_five(positions=HERE[:4]), "positions has shape [4]", "[5]"),
    (extend_five(positions=np.zeros((1, 1), int)), "shape [1, 1]"),
    (extend_five(positions=np.zeros((1, T), "f"), encoding=T5), TypeError, "float32", "integers"),
    (extend_five(encoding=LEARNED), "embedded=False: Learned adds to the input"),
    (extend_five(encoding=NTK), SET_LENGTH),
    (extend_five(encoding=NTK.at_length(3)), "capacity=8: RoPE is set for 3", "at_length(8)"),
    (extend_five(encoding=NTK.at_length(8), positions=5 + HERE), "position 9, RoPE is set for 8"),
    (
        extend_five(encoding=T5, params=pe_jax.Params({"table": np.zeros((1, 32))}, {})),
        "params.shared.table has shape [1, 32]; T5 takes [4, 32]",
    ),
    (extend_five(encoding=FOX), "x=None: FoX reads"),
    (extend_five(encoding=FOX, x=X[..., :24]), "x has shape (2, 5, 24); pass [2, 5, 32]"),
]


def own_attention(q=Q, causal=False, positions=(None, None), **options):
    given = dict(zip(("positions", "q_positions"), positions, strict=True))
    return functools.partial(
        lambda **options: adapters.attention_fn(ROPE, causal=causal, **given)(q, K_, V, **options),
        **options,
    )


def adapt(encoding=ROPE, *params, causal=False, **options):
    return functools.partial(adapters.attention_fn, encoding, *params, causal=causal, **options)


def of_einsums():
    einsums = dict.fromkeys(EINSUMS, lambda: jnp.einsum)
    return of_linen(adapters.attention_fn(ROPE, causal=False), **einsums).init(KEY, X)


EINSUMS = "qk_attn_weights_einsum_cls", "attn_weights_value_einsum_cls"


MASKS: Calls = [
    *((lambda x=x: masks.prefix(x), "lengths=", "integers") for x in (-1, [-2])),
    *((lambda x=x: masks.prefix(x), "lengths has dtype") for x in (2.5, "3", None, True, {})),
    (lambda: masks.prefix(np.zeros((2, 2), int)), "lengths=(2, 2): pass integers [B]"),
    *((lambda x=x: masks.chunks(x), f"size={x!r}") for x in (-1, 2.5, "3", None, True)),
    *((lambda x=x: masks.tree(x), "parents=", "integers") for x in ("ab", 3, [-1, 0.5], [True])),
    *(
        (own_attention(dropout_rate=x, dropout_rng=KEY), f"dropout_rate={x!r}")
        for x in (1, 2.0, -0.5)
    ),
    (own_attention(dropout_rate="0.1"), "dropout_rate='0.1'"),
    (own_attention(dropout_rate=0.1), "dropout_rng=None: pass a key, or no dropout_rate"),
    (own_attention(precision=3), "precision=3: pass None, a jax.lax.Precision or its name"),
    (own_attention(mask=np.full((T, T), -1e9)), "mask holds -1000000000.0: pass booleans"),
    (own_attention(mask=np.ones((B, 3, T, T), bool)), "mask=(2, 3, 5, 5)", "(2, 4, 5, 5)"),
    (own_attention(Q[:, :3]), "q has 3 tokens and k has 5: pass positions and q_positions"),
    (
        own_attention(Q[:, :3], True, (HERE, HERE[:3])),
        "causal=True: the queries are other tokens than the keys: pass a mask",
    ),
    (of_einsums, "qk_attn_weights_einsum=", "scores are not one einsum here: leave it out"),
    (adapt(pe_jax.make), TypeError, "encoding=<function make at", "pass one layer's encoding"),
    (adapt("rope,alibi"), "encoding='rope,alibi': it has 2 layers; pass that of one"),
    (adapt("t5", causal=True), "params=None, but T5 has", "parse(name)[0] is the encoding of"),
    (
        lambda: adapters.attention_fn(T5, causal=True)(Q, K_, V),
        "params=None, but T5 has parameters",
    ),
    (adapt(ROPE, ()), TypeError, "params is a tuple; pass pe_jax.Params"),
    (adapt(window=0), "window=0: pass an integer"),
    (adapt(sinks=1), "sinks=1: pass a window too"),
    (adapt(causal="no"), "causal='no': pass True"),
    (
        adapt(pe_jax.parse("sinusoidal+rope")[0]),
        "adds to the input of the first layer",
        "x = encoding.embed(params, x, positions)",
    ),
    (adapt(FOX, causal=True), "reads the layer's input", "pe_jax.attention(q, k, v, x=x"),
    (own_attention(is_causal="no"), "is_causal='no': pass True or False"),
    (lambda: adapters.attention_fn(T5, util.random_params(T5), dims=(32, 4, 2, 8)), "dims=(32"),
]


def read(**keys):
    return lambda: hf.encodings({**LLAMA, **keys})


def params(state, config=BERT):
    return lambda: hf.params(config, state)


TWO_TYPES = {"type": "linear", "rope_type": "yarn", "factor": 2.0}
HUGGING_FACE: Calls = [
    *((lambda x=x: hf.encodings(x), "config=", "its dict") for x in (None, "llama", [LLAMA], b"")),
    *((read(hidden_size=x), "hidden_size=") for x in (0, "64", 6.4, True)),
    (read(num_hidden_layers=10**9), "num_hidden_layers=1000000000: pass at most 10000"),
    *((read(rope_theta=x), "rope_theta=") for x in (0, 1, "1e4", np.nan, np.inf, [1e4])),
    *((read(partial_rotary_factor=x), "partial_rotary_factor=") for x in (-0.5, 1.5, "0.5", [1])),
    (read(rope_scaling=TWO_TYPES), "rope_type='yarn': type='linear' is another; keep one"),
    (read(rope_scaling={"type": "linear", "factor": "2"}), "factor='2': pass a number above 0"),
    (read(rope_parameters={"partial_rotary_factor": 2}), "partial_rotary_factor=2"),
    *((read(**{x: True}), f"{x}=True: not understood") for x in ("use_alibi", "rope_interleaved")),
    (read(rope_ratio=2.0), "rope_ratio=2.0: not understood"),
    *((params(x), "state=", "arrays by name") for x in (None, [1], {1: 2})),
    (params(None, LLAMA), "state=None"),
    *((params({ROWS: x}), f"{ROWS}={x!r}", "pass an array") for x in ("abc", None)),
    (params({ROWS: np.zeros((2, 64), int)}), "has dtype int64"),
    *(
        (functools.partial(hf.pattern, x), "layers=", "pass what pe_jax.hf.encodings gives")
        for x in (None, "rope", [ROPE], LAYER, [None], 3)
    ),
    (lambda: hf.with_scaling(LLAMA, "yarn"), "scaling='yarn': pass a scaling of rope_scaling"),
    (lambda: hf.pattern([hf.LayerEncoding("rope", 64)]), "encoding='rope': pass one encoding"),
]
THETA, ROWS_OF_X = rope.frequencies(E), Q[0]


def rotate(x=ROWS_OF_X, places=HERE, theta=THETA, *more):
    return lambda: rope.rotate(x, places, theta, *more)


POSES = np.eye(4)[None]
FUNCTIONS: Calls = [
    (rotate(Q[0].tolist()), "x=[[[", "is a list; pass an array"),
    (rotate(np.ones(Q[0].shape, int)), "x has dtype int64; pass floats"),
    (rotate(Q[0].astype("c8")), "x has dtype complex64"),
    (rotate(Q[0, 0]), "x=(4, 8): pass at least 3 axes"),
    (rotate(places=None), "has dtype object"),
    (rotate(theta="a"), "frequencies='a' is a str"),
    (rotate(theta=8), "frequencies=8 is a int"),
    (rotate(HERE, ROWS_OF_X), "x has dtype int64"),
    (rotate(theta=np.ones((T, 4), "c8")), "frequencies has dtype complex64"),
    (rotate(theta=np.ones((T, 4), "f")), "positions of shape ()"),
    *((rotate(ROWS_OF_X, HERE, THETA, "half", x), "attention_factor=") for x in ("2", np.nan)),
    (lambda: rope.frequencies(8, scaling=rope_scaling.YaRN), "scaling=<class"),
    (lambda: mrope.frequencies(8, (2, 1, 1), scaling="yarn"), "scaling='yarn'"),
    (lambda: mrope.frequencies(8, (2, 1, 1), interleaved="no"), "interleaved='no'"),
    (lambda: rope_inner.frequencies(2, 8, base=-1.0), "base=-1.0: pass a finite number above 1"),
    (lambda: rope_inner.frequencies(2, 8, (20.0, 0)), "sizes=(20.0, 0): pass a tuple of positive"),
    (lambda: rope_2d.frequencies((3, 3), spectrum="alternating"), "channels=(3, 3): pass an even"),
    (lambda: rope_2d.frequencies((4, 4), normalized="no"), "normalized='no'"),
    (lambda: t5.bucket(HERE, bidirectional=1), "bidirectional=1: pass True or False"),
    (lambda: buckets.bucket(HERE, (0, 1), "no"), "directional='no'"),
    (lambda: learned.lookup([[1.0]], HERE), "table=[[1.0]] is a list"),
    (lambda: learned.lookup(TABLE[0], HERE), "table=(32,): pass [L, D]"),
    (lambda: learned.lookup(HERE, TABLE), "has dtype"),
    (lambda: shaw.relative([[1.0]], HERE), "table=[[1.0]] is a list"),
    (lambda: shaw.relative(TABLE[0], HERE), "table=(32,)"),
    (lambda: swin.lookup(TABLE, np.zeros((3, 2), int), "2", 2), "height='2'"),
    (lambda: swin.lookup(TABLE[0], np.zeros((3, 2), int), 2, 2), "table=(32,)"),
    *((lambda x=x: positions.contiguous(x), f"length={x!r}") for x in (-1, "3", None, True, [3])),
    *((lambda x=x: positions.contiguous(3, x), "offset has dtype") for x in ("a", 1.5)),
    *((lambda x=x: positions.randomized(x, 3, 9), f"key={x!r}") for x in (0, "a", None)),
    (lambda: positions.randomized(KEY, 3, 9, np.zeros(4, int)), "segments=(4,): pass ids [3]"),
    (lambda: positions.random_floats(KEY, 3, 9.0, np.zeros(4, int)), "segments=(4,): pass ids [3]"),
    (lambda: positions.shifted(0, HERE, 3), "key=0: pass one key"),
    (lambda: positions.evenly_spaced(np.array([2**40, 2**41]), 3, 9.0), "does not fit int32"),
    (lambda: positions.evenly_spaced(np.array(3), 3, 9.0), "pass ids [*B, T]"),
    *((lambda x=x: positions.per_segment(x), "segments has dtype") for x in ("a", None, [0.0])),
    (lambda: positions.per_segment(3), "segments=(): pass ids [*B, T]"),
    (lambda: positions.bilevel(HERE, (1,), segments=np.zeros(3, int)), "segments=(3,)"),
    *((lambda x=x: positions.grid(3, 3, prefix=x), f"prefix={x!r}") for x in (-1, 2.5, True)),
    (lambda: positions.grid(0, 3), "height, width=(0, 3)"),
    (lambda: positions.grid(2, 2.5), "at least 1"),
    (lambda: positions.grid(3, 3, normalized="no"), "normalized='no'"),
    *((lambda x=x: positions.resized(2, 2, x), f"to={x!r}: pass ") for x in (3, None, [3], (2, 0))),
    (lambda: positions.multimodal([3, (2, 1, 1)], 0), "interval=0: pass a number above 0"),
    (lambda: positions.multimodal([3], "2"), "interval='2'"),
    (lambda: positions.multimodal([3, (2, 1, 1)], [1, 2]), "one for each of 1 videos"),
    (lambda: positions.multimodal([3, (0, 2)]), "spans=(0, 2)"),
    (lambda: positions.multimodal([(1, 2, 3, 4)]), "pass n, (height, width)"),
    *((lambda x=x: positions.multimodal(x), f"spans={x!r}: pass a list") for x in (3, "abc")),
    (lambda: positions.multimodal([3, (2, 2)], centred=1), "centred=1: pass True or False"),
    *((lambda x=x: positions.v2pe([3, (2, 2)], x), f"step={x}: pass a") for x in (0, 1.5, np.nan)),
    (lambda: positions.v2pe([3, (0, 2)], 1), "spans=(0, 2)"),
    (lambda: positions.circle([3, (2, 2, 2)]), "spans=(2, 2, 2): pass images"),
    (lambda: positions.circle([(2, 2)], radius=0), "radius=0: pass a number above 0"),
    (lambda: positions.circle([(2, 2)], alpha=1.5), "alpha=1.5: pass a number in [0, 1]"),
    (lambda: positions.cameras(np.eye(3), 2, 3), "poses.shape=(3, 3): pass [*B, C, 3, 4]"),
    (lambda: positions.cameras(POSES, 2, 0), "height, width=(2, 0)"),
    (lambda: positions.cameras(POSES + np.eye(4)[3], 2, 3), "poses: last row", "transpose"),
    (lambda: positions.cameras(POSES, 2, 3, None, (4, 4)), "image=(4, 4): pass intrinsics with it"),
    (lambda: positions.cameras(POSES, 2, 3, np.eye(3)), "shape=(3, 3): pass [1, 3, 3]"),
    (lambda: positions.cameras(POSES, 2, 3, np.eye(3)[None]), "image=None: pass (height, width)"),
    (lambda: positions.rays(POSES, 2, 3, np.ones((1, 5)), 1), "near.shape=(1, 5): pass [1, 6] or"),
    (lambda: positions.rays(POSES, 2, 3, 1, 1, rays=4), "rays=4: pass 1, 2 or 3"),
    (lambda: positions.rays(POSES, 2, 3, 1, 1, rays=[1]), "rays=[1]: pass 1, 2 or 3"),
    (lambda: naive.attention("rope", Q, K_, V), "pass those of one row"),
]
TABLES = (ATTENTION, NAMED, EMBED, CACHE, MASKS, HUGGING_FACE, FUNCTIONS)
GRID = [call for calls in TABLES for call in calls]


@pytest.mark.parametrize(("call", "words"), [(call, words) for call, *words in GRID])
def test_a_wrong_call_is_one_line_with_the_field_and_the_fix(call, words):
    """A TypeError where the table says so."""
    kind, *words = words if words[0] is TypeError else ((ValueError, TypeError), *words)
    with pytest.raises(kind) as info:
        call()
    said = str(info.value)
    assert "\n" not in said and len(said) < 500
    for word in words:
        assert word in said, said
