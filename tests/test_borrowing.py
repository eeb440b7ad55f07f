"""A function borrowed into plain JAX attention takes under ten lines and is exactly ours."""

import ast
import functools
import inspect

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
