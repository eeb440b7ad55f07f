"""A function borrowed into plain JAX attention takes under ten lines and is exactly ours."""

import ast
import functools
import inspect
import math
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from examples import functions
from tests.util import assert_close, noise

HEADS = 4
Q, K, V = noise(3, 2, 200, HEADS, 8)  # long enough to leave T5's last bucket
TABLE = jnp.asarray(noise(HEADS, 32))
BORROWED = {
    "rope": (functions.with_rope, {"base": 5e5}, {"base": 5e5}),
    "alibi": (functions.with_alibi, {}, {}),
    "t5": (functions.with_t5, {"table": TABLE}, {}),
}


@pytest.mark.parametrize("name", BORROWED)
def test_a_borrowed_function_is_the_scheme_itself(name):
    borrow, given, fields = BORROWED[name]
    table = {"table": TABLE} if name == "t5" else {}
    params = pe_jax.Params(table, {})
    encoding = pe_jax.make(name, **fields)
    want = pe_jax.attention(Q, K, V, encoding=encoding, params=params)
    assert_close(jax.jit(functools.partial(borrow, **given))(Q, K, V), want)
    bare = pe_jax.attention(Q, K, V)
    assert np.abs(want - bare).max() > 0.1  # the encoding matters here


@pytest.mark.parametrize("name", BORROWED)
def test_borrowing_takes_under_ten_lines(name):
    assert len(inspect.getsource(BORROWED[name][0]).splitlines()) < 10


def test_the_borrower_imports_jax_and_the_encodings_alone():
    tree = ast.parse(inspect.getsource(functions))
    found = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    found |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert found == {"jax", "jax.numpy", "pe_jax.encodings"}


PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "borrow.md").read_text("utf-8")


def run_block(line: str) -> dict[str, Any]:
    """The names of the page's one block that has this line."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (block,) = (block for block in blocks if line in block)
    names = {}
    exec(block, names)
    return names


def test_a_block_of_the_page_is_the_papers_yarn():
    """Frequencies and attention factor: arXiv 2309.00071, §3.2 and §3.4, in float64."""
    names = run_block("yarn = ")
    i, theta = np.arange(32), 5e5 ** (-np.arange(32) / 32)
    low, high = (64 * math.log(2048 / (r * 2 * math.pi)) / (2 * math.log(5e5)) for r in (32, 1))
    ramp = np.clip((i - math.floor(low)) / (math.ceil(high) - math.floor(low)), 0, 1)
    angle = np.arange(16)[:, None, None] * ((1 - ramp) * theta + ramp * theta / 4)
    q = np.asarray(names["q"], np.float64)
    a, b, cos, sin = q[..., :32], q[..., 32:], np.cos(angle), np.sin(angle)
    turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    assert_close(names["rotated"], (0.1 * math.log(4) + 1) * turned)


def test_two_calls_are_streaming_llm():
    """arXiv 2309.17453, §3.2, in float64: keys that a token sees stand at 0, 1, … in the cache."""
    names = run_block("outside = ")
    q, k, v = (np.asarray(names[name], np.float64)[0] for name in "qkv")
    window, sinks, theta = names["window"], names["sinks"], 1e4 ** (-np.arange(4) / 4)

    def turned(x, place):
        angle = np.multiply.outer(place, theta)[..., None, :]
        a, b, cos, sin = x[..., :4], x[..., 4:], np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    for t in range(len(q)):
        seen = [j for j in range(t + 1) if j < sinks or j > t - window]
        query, keys = turned(q[t], len(seen) - 1), turned(k[seen], np.arange(len(seen)))
        weights = np.exp(np.einsum("he,she->hs", query, keys) / np.sqrt(8))
        want = np.einsum("hs,she->he", weights / weights.sum(-1, keepdims=True), v[seen])
        np.testing.assert_allclose(names["out"][0, t], want, atol=1e-5)


def test_a_scan_over_layers_has_parameters_of_each_and_decodes_with_stacked_caches():
    names = run_block("nn.scan(")
    layers, weights = names["scan"](), names["weights"]
    assert jax.tree.map(np.shape, weights["params"]["Position_0"]["layer"]) == {
        "a": (3, 4),
        "p": (3, 4),
    }
    x = noise(2, 5, 32)
    whole, _ = layers.apply(weights, x, None)
    cache = pe_jax.cache.empty(pe_jax.make("kerple"), 2, 8, names["dims"])
    caches, outs = jax.tree.map(lambda *a: jnp.stack(a), *[cache] * 3), []
    for t in range(5):
        out, caches = layers.apply(weights, x[:, t : t + 1], caches)
        outs.append(out)
    assert_close(jnp.concatenate(outs, axis=1), whole)


# What others compute, in float64: rows of the page's table, by the name there.
AT, THETA = np.arange(40)[:, None, None], 1e4 ** (-np.arange(4) / 4)


def halves(x, angle):
    """Channel i and i + 4 turned by an angle."""
    a, b, cos, sin = x[..., :4], x[..., 4:], np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def pairs(x, angle):
    """Channel 2i and 2i + 1 turned by an angle."""
    turned = halves(np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1), angle)
    return np.stack([turned[..., :4], turned[..., 4:]], axis=-1).reshape(x.shape)


def llama3(theta):
    """MaxText `_apply_scaling_factor`."""
    smooth = np.clip((8192 * theta / (2 * np.pi) - 1) / (4 - 1), 0, 1)
    return (1 - smooth) * theta / 8 + smooth * theta


def yarn(theta):
    """MaxText `freqs_cis`: pairs below `low` keep their frequency, above `high` have a 40th."""
    low, high = (8 * math.log(4096 / (n * 2 * math.pi)) / (2 * math.log(1e4)) for n in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), 7)
    ramp = np.clip((np.arange(4) - low) / (high - low), 0, 1)
    return theta / 40 * ramp + theta * (1 - ramp)


ELSEWHERE = {
    "nnx.RoPE": lambda x: halves(x, AT * THETA),
    "LLaMARotaryEmbedding": lambda x: pairs(x, AT * llama3(5e5 ** (-np.arange(4) / 4))),
    "YarnRotaryEmbedding": lambda x: pairs(x, AT * yarn(THETA)),
    "scale_factor": lambda x: halves(x, AT * THETA / 8),
    "rope_proportion": lambda x: halves(x, AT * np.where(np.arange(4) < 1, THETA, 0)),
}
TABLE_OF_NAMES = PAGE.partition("## What others call it\n")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| ([^|]*`[^|]*) \| `([^`]+)`", TABLE_OF_NAMES, re.MULTILINE))


def spec_of(name: str) -> str:
    """What the page's table says a name elsewhere is here."""
    (spec,) = (spec for row, spec in ROWS.items() if f"`{name}" in row)
    return spec


@pytest.mark.parametrize("row", ROWS)
def test_what_others_call_it_is_here(row):
    assert pe_jax.parse(ROWS[row])


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_rotation_of_others_is_ours_in_numbers(name):
    x = noise(1, 40, 2, 8)
    got, _ = pe_jax.rotate(spec_of(name), x, x, np.arange(40))
    assert_close(got, ELSEWHERE[name](np.asarray(x, np.float64)), 1e-5)


def test_half_truncated_rope_is_ours_in_numbers():
    x = noise(1, 40, 2, 128)
    got, _ = pe_jax.rotate(spec_of("Rotary`"), x, x, -np.arange(40))
    theta = np.concatenate([(1 / 1024) ** np.linspace(0, 1, 32), np.zeros(32)])
    a, b = np.split(np.asarray(x, np.float64), 2, axis=-1)
    cos, sin = np.cos(AT * theta), np.sin(AT * theta)
    assert_close(got, np.concatenate([a * cos + b * sin, b * cos - a * sin], axis=-1), 1e-5)


def test_each_wave_of_rope_id_turns_within_the_trained_length():
    (encoding,) = pe_jax.parse(spec_of("RoPE-ID"))
    turns = 4096 * np.asarray(encoding.frequencies(128)) / (2 * np.pi)
    assert len(turns) == 32 and 1 <= turns.min() < 1.01


def test_larope_compares_shares_of_the_lengths():
    q, k = noise(1, 12, 2, 8), noise(1, 5, 2, 8, seed=1)
    at = [10 * np.arange(n, dtype=np.float32) / n for n in (12, 5)]
    places = {"q_positions": at[0], "k_positions": at[1]}
    out = pe_jax.attention(q, k, k, encoding=spec_of("LARoPE"), causal=False, **places)
    turned = [halves(x, p[:, None, None] * THETA) for x, p in ((q, at[0]), (k, at[1]))]
    scores = np.einsum("bthe,bshe->bhts", *turned) / 8**0.5
    assert_close(out, np.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), k), 1e-5)


def test_queries_of_esm_are_divided_before_the_rotation():
    q = noise(1, 12, 2, 8)
    given = {"encoding": spec_of("EsmSelfAttention"), "causal": False}
    ours = pe_jax.attention(q / 8**0.5, q, q, scale=1.0, **given)
    assert_close(ours, pe_jax.attention(q, q, q, **given), 1e-5)


def test_a_bias_of_haliax_is_ours_but_for_what_softmax_does_not_see():
    dims = pe_jax.Dims(32, 4, 4, 8)
    bias = pe_jax.bias(spec_of("alibi_attention_bias"), np.arange(9), np.arange(9), dims=dims)
    theirs = 2.0 ** -np.arange(2, 9, 2)[:, None, None] * np.arange(9)
    gap = np.tril(np.asarray(bias)[0] - theirs)  # of later keys there is no score
    assert_close(gap, np.tril(gap[..., :1] * np.ones(9)), 1e-6)
