"""The public face as a newcomer gets it wrong: one line that says what, and never a number.

What other files of this folder try (fields of schemes, shapes, positions) is not repeated here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import adapters, cache, hf, masks, naive, positions
from pe_jax.encodings import buckets, learned, mrope, rope, rope_2d, rope_scaling, shaw, swin, t5
from pe_jax.engines.tiled import Tiled
from tests import util
from tests.util import DIMS, B, E, H

T, HERE = 5, np.arange(5)
Q, K_, V = util.inputs(T)
X, KEY, NONE = util.noise(B, T, DIMS.width), jax.random.key(0), pe_jax.Params({}, {})
ROPE, T5, FOX, LEARNED = (pe_jax.make(name) for name in ("rope", "t5", "fox", "learned"))
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
    return functools.partial(pe_jax.attention, *(options.pop(n, x) for n, x in QKV), **options)


QKV = (("q", Q), ("k", K_), ("v", V))
NAMES = "num_heads attention_mask position_ids softmax_scale window_size rng training impl"


def with_params(encoding, **options):
    return attend(encoding=encoding, params=util.random_params(encoding), **options)


def terms(*own):
    return attend(terms=own)


def table(leaf, **more):
    return attend(encoding=T5, params=pe_jax.Params({"table": leaf, **more}, {}))


ATTENTION: Calls = [
    *((attend(**{name: 1}), f"{name}: attention has no such argument") for name in NAMES.split()),
    (attend(q="q"), "q='q' is a str; pass an array"),
    (attend(q=Q > 0), "q has dtype bool"),
    (attend(q=Q[:, :, :0]), "q has shape (2, 5, 0, 8); pass at least one head"),
    (attend(k=K_[:, :, :0], v=V[:, :, :0]), "k has 0 heads"),
    (attend(q=Q[..., :0], k=K_[..., :0]), "q has shape (2, 5, 4, 0); pass at least"),
    (attend(mask="causal"), "mask='causal': pass an array of booleans, or a pe_jax.Mask"),
    (attend(mask=[masks.prefix(1)]), "mask=[Mask(", "pass an array of booleans"),
    (attend(mask=pe_jax.Mask), "mask=<class", "booleans"),
    (attend(mask=np.ones((T, T), int)), "mask has dtype int64; pass booleans"),
    (attend(mask=np.ones((1, 1, 1, T, T), bool)), "mask=(1, 1, 1, 5, 5)", "broadcasts"),
    (attend(mask=np.ones((B, T, T), bool)), "mask=(2, 5, 5)", "broadcasts"),
    (attend(mask=pe_jax.Mask(numbers)), "mask: its function gives float32[1, 5, 5]", "bool"),
    (attend(mask=pe_jax.Mask(columns)), "mask: its function gives bool[1, 5, 1]", "5, 5"),
    (attend(mask=masks.prefix([1, 2, 3])), "mask=(3,)", "3 rows, q has 2"),
    (attend(mask=masks.tree([-1, 0])), "mask.length=2: k has 5 tokens"),
    (attend(bias="alibi"), "bias='alibi': pass an array of floats"),
    (attend(bias=np.ones((T, T), bool)), "bias has dtype bool", "booleans are a mask"),
    (attend(bias=np.ones((T, T), "c8")), "bias has dtype complex64"),
    (attend(bias=[[0.0], [0.0, 1.0]]), "bias=[[0.0], [0.0, 1.0]]"),
    *((attend(scale=x), f"scale={x!r}: pass a positive") for x in (-1, "1", True, np.inf, 1j)),
    *((attend(logit_cap=x), f"logit_cap={x!r}: pass a positive") for x in (0, "1", np.nan)),
    *((attend(dropout_rate=x), f"dropout_rate={x!r}") for x in (-0.1, 2, "0.1", None, np.nan)),
    *((attend(dropout_key=x), f"dropout_key={x!r}: pass one key") for x in (0, "k")),
    (attend(dropout_key=np.zeros(3)), "dropout_key=float64[3]"),
    (attend(dropout_rate=0.1, dropout_key=jax.random.split(KEY, 3)), "dropout_key=key<", "[3]"),
    (attend(q_positions=[[0, 1], [2]]), "q_positions=[[0, 1], [2]]", "lists of one length"),
    (attend(q_positions={"a": 1}), "q_positions has dtype object"),
    (attend(q_index="a"), "q_index has dtype <U1"),
    (attend(q_index=HERE + 0.5), "q_index has dtype float64"),
    *((attend(window=x), f"window={x!r}: pass an integer") for x in (-1, "3", (3, 0), np.nan)),
    *((attend(window=3, sinks=x), f"sinks={x!r}") for x in (1.5, True, None, [1])),
    *((attend(causal=x), f"causal={x!r}: pass True or False") for x in (1, "causal")),
    *((attend(return_lse=x), f"return_lse={x!r}") for x in (1, "yes")),
    *((attend(encoding=x), "encoding=", "pass one layer's") for x in (rope, rope.RoPE, {}, ())),
    *((attend(implementation=x), f"implementation={x!r}") for x in ("flash", 3, ["dense"])),
    (attend(implementation=Tiled), "implementation=<class", "unknown"),
    *((attend(layout=x), f"layout={x!r}: pass one of pe_jax") for x in ("ring", None)),
    *((attend(dims=x), "dims=", "pe_jax.Dims(width") for x in (32, (32, 4, 2, 8))),
    (attend(heads_axis="model", dims=DIMS), "heads_axis='model': pass the name of a mesh axis"),
    (attend(heads_axis=1, dims=DIMS), "heads_axis=1"),
    (with_params(FOX, x=X.tolist()), "x=[[[", "is a list; pass an array"),
    (with_params(FOX, x="x"), "x='x' is a str"),
    (with_params(FOX, x=np.ones(X.shape, int)), "x has dtype int64; pass floats"),
    (table("x"), "params.shared['table'] is of str; pass floats"),
    (table(TABLE.astype(int)), "params.shared['table'] is of int64"),
    (table(TABLE > 0), "params.shared['table'] is of bool"),
    (table(TABLE.astype("c8")), "params.shared['table'] is of complex64"),
    (table(None), "params.shared has no table for T5"),
    (table(TABLE, tabel=TABLE), "params.shared has tabel, not of T5"),
    (attend(encoding=ROPE, params=util.random_params(T5)), "params.shared has table, not of RoPE"),
    (attend(encoding=T5, params=pe_jax.Params({}, {"table": TABLE})), "params.shared has no table"),
    (attend(terms="rope"), "terms='rope': pass a tuple of terms"),
    (attend(terms=pe_jax.Sink(TABLE[:, 0])), "terms=Sink", "pass a tuple"),
    (attend(terms=[pe_jax.Sink(TABLE[:, 0])]), "terms=[Sink", "pass a tuple"),
    (terms(ROPE), "terms=(RoPE"),
    (terms(pe_jax.Sink), "terms=(<class"),
    (terms(pe_jax.Input(learned.table_rows, TABLE)), "terms=(Input"),
    (terms(pe_jax.Sink(TABLE[0, :3])), "terms: Sink has shape [3]; pass [4]"),
    (terms(pe_jax.Sink(TABLE[:, :1])), "terms: Sink has shape [4, 1]"),
    (terms(pe_jax.Sink(0.0)), "terms: Sink=0.0 is a float; pass an array"),
    (terms(pe_jax.QueryBias(TABLE[:3, :E])), "terms: QueryBias has shape [3, 8]; pass [4, 8]"),
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


NTK = rope_scaling.DynamicNTK(4.0, 2)
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
    *((lambda x=x: pe_jax.spec(x), "encoding=", "pass one encoding") for x in (None, "rope", NTK)),
    (lambda: pe_jax.spec(pe_jax.parse("rope,nope")), "encoding=(RoPE", "pass one encoding"),
    (lambda: pe_jax.spec(Unlisted()), "encoding=Unlisted()", "pe_jax.ENCODINGS"),
    (lambda: pe_jax.Sum(ROPE), "parts=RoPE", "pass a tuple of encodings"),
    (lambda: pe_jax.Dims(32, 4, 3, 8), "kv_heads=3: it must divide heads=4"),
    *((lambda x=x: pe_jax.Dims(32, x, 2, 8), f"heads={x!r}") for x in (0, -4, "4", True, 4.0)),
    (lambda: T5.init(KEY, (32, 4, 2, 8)), "dims=(32, 4, 2, 8): pass pe_jax.Dims"),
    (lambda: T5.init(KEY, {"heads": 4}), "dims={'heads': 4}"),
    *((lambda x=x: T5.init(x, DIMS), f"key={x!r}: pass one key") for x in (0, None, "a")),
    *((at_length(NTK, x), f"length={x!r}") for x in (0, 2.5, "8", None, True)),
    *((at_length(LONG, x), f"length={x!r}") for x in (-1, None)),
    (lambda: rope_scaling.LongRoPE((), (1.0,), 4, factor=2.0), "short_factor=()"),
    (lambda: rope_scaling.to_hf("rope", head_dim=8), "rope='rope': pass a RoPE"),
    (lambda: rope_scaling.to_hf(ROPE, head_dim="a"), "head_dim='a'"),
]


def embed(x=X, places=HERE, params=None, encoding=LEARNED):
    params = util.random_params(encoding) if params is None else params
    return lambda: encoding.embed(params, x, places)


SINES = pe_jax.make("sinusoidal")
EMBED: Calls = [
    (embed(params={}), "params is a dict; pass encoding.init(key, dims)"),
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


OTHER = pe_jax.Dims(64, 8, 2, 8)
CACHE: Calls = [
    *((empty(batch=x), f"batch={x!r}: pass an integer") for x in (-1, 2.5, "8", None, True)),
    *((empty(dims=x), "dims=", "pass pe_jax.Dims(") for x in (None, (32, 4, 2, 8))),
    *((empty(x), "encoding=", "pass one layer's") for x in (rope, pe_jax.parse("rope,nope"))),
    *((empty(dtype=x), "dtype=", "jnp.float32") for x in (jnp.int32, "float33")),
    (empty(T5, params={}), "params is a dict; pass pe_jax.Params"),
    (empty(T5, params=util.random_params(T5, OTHER)), "params.shared.table has shape [8, 32]"),
    (empty(dims=pe_jax.Dims(28, 4, 2, 7)), "head_dim=7"),
    (extend({}), "cache is a dict; pass what pe_jax.cache.empty gives"),
    (extend(cache.empty(FOX, B, 8, DIMS)), "cache.states=", "RoPE needs", "empty was given"),
    (extend(encoding=FOX, params=util.random_params(FOX), x=X), "cache.states=", "FoX needs"),
    (extend(cache.empty(ROPE, B, 8, pe_jax.Dims(32, 4, 4, 8))), "cache.k=(2, 4, 8, 8)"),
    (extend(dims=None), "dims=None: pass pe_jax.Dims("),
    (extend(encoding="rope,t5"), "encoding='rope,t5': it has 2 layers"),
    (extend(q=Q.tolist()), "q=[[[", "is a list; pass an array"),
    (extend(q=np.ones(Q.shape, int)), "q has dtype int64"),
    (extend(q=Q[0], k=K_[0], v=V[0]), "q has shape (5, 4, 8); pass [B, length, heads, width]"),
    (extend(terms=(pe_jax.Sink(TABLE[0, :3]),)), "terms: Sink has shape [3]; pass [4]"),
    (extend(terms=(masks.prefix(3),)), "terms='Mask'", "as part of an encoding"),
    (extend(implementation="flash"), "implementation='flash' is unknown"),
]


def own_attention(**options):
    return functools.partial(adapters.attention_fn(ROPE), Q, K_, V, **options)


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
    (lambda: positions.grid(3, 3, normalized="no"), "normalized='no'"),
    *((lambda x=x: positions.resized(2, 2, x), f"to={x!r}: pass (height") for x in (3, None, [3])),
    *((lambda x=x: positions.multimodal(x), f"spans={x!r}: pass a list") for x in (3, "abc")),
    (lambda: naive.attention("rope", Q, K_, V), "pass those of one row"),
]
TABLES = (ATTENTION, NAMED, EMBED, CACHE, MASKS, HUGGING_FACE, FUNCTIONS)
GRID = [call for calls in TABLES for call in calls]


@pytest.mark.parametrize(("call", "words"), [(call, words) for call, *words in GRID])
def test_a_wrong_call_is_one_line_with_the_field_and_the_fix(call, words):
    with pytest.raises((ValueError, TypeError)) as info:
        call()
    said = str(info.value)
    assert "\n" not in said and len(said) < 500
    for word in words:
        assert word in said, said
