"""A function borrowed into plain JAX attention takes under ten lines and is exactly ours."""

import ast
import functools
import inspect
import math
import pathlib
import re

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


def test_the_first_block_of_the_page_is_the_papers_yarn():
    """Frequencies and attention factor: arXiv 2309.00071, §3.2 and §3.4, in float64."""
    page = pathlib.Path(__file__).parents[1] / "docs" / "borrow.md"
    block = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)[0]
    names = {}
    exec(block, names)
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
    page = pathlib.Path(__file__).parents[1] / "docs" / "borrow.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "outside = " in block)
    names = {}
    exec(block, names)
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
