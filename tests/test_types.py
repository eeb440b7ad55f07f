"""Type checkers see the public face (`py.typed`): what is right passes, what is wrong does not."""

import json
import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[1]
RIGHT = """
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import pe_jax
from pe_jax import Encoding, Params, adapters, cache, hf, masks
from pe_jax.encodings import alibi, rope, t5

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=4, head_dim=8)


def attend(encoding: Encoding, params: Params, q: jax.Array) -> jax.Array:
    mask = masks.prefix(jnp.array([3]))
    out, lse = pe_jax.attention(q, q, q, encoding=encoding, params=params, return_lse=True)
    out = out * jnp.exp(lse)[..., None]
    own = pe_jax.attention(q, q, q, encoding=encoding, params=params, mask=mask, causal=False)
    return out + own


def step(
    encoding: Encoding, params: Params, past: cache.Cache, q: jax.Array
) -> tuple[jax.Array, cache.Cache]:
    return cache.extend(past, q, q, q, encoding=encoding, params=params, dims=DIMS)


def begin(encoding: Encoding, params: Params) -> cache.Cache:
    return cache.empty(encoding, 1, 16, DIMS, params=params)


def function(q: jax.Array) -> jax.Array:
    slopes: jax.Array = alibi.slopes(8)
    bucket: jax.Array = t5.bucket(jnp.arange(8))
    return rope.rotate(q, jnp.arange(16), rope.frequencies(8, base=5e5)) + slopes[0] + bucket[0]


def layers(config: dict[str, Any]) -> list[Encoding]:
    return [layer.encoding for layer in hf.encodings(config) if layer.encoding is not None]


def model(encoding: Encoding, rngs: nnx.Rngs) -> nnx.MultiHeadAttention:
    fn = adapters.attention_fn(encoding, causal=True, window=4)
    return nnx.MultiHeadAttention(4, 32, attention_fn=fn, decode=False, rngs=rngs)


def schemes() -> tuple[Encoding, ...]:
    (t5_rope,) = pe_jax.parse("t5+rope")
    text: str = pe_jax.spec(t5_rope)
    made: Encoding = pe_jax.make("rope", base=5e5)
    params: Params = made.init(jax.random.key(0), DIMS)
    longer: Encoding = made.at_length(4096)
    return *pe_jax.parse(text), longer.__class__(), made if params else longer


def by_name(q: jax.Array) -> jax.Array:
    fn = adapters.attention_fn("rope", causal=True)
    return pe_jax.attention(q, q, q, encoding="rope") + fn(q, q, q)


def parts(q: jax.Array, table: nnx.Param[jax.Array]) -> jax.Array:
    at, params = jnp.arange(4), {"table": table}
    q, k = pe_jax.rotate("t5+rope", q, q, at)
    bias = pe_jax.bias("t5", at, at, params, dims=DIMS)
    scale = pe_jax.decompose("t5", DIMS).scale
    return jax.nn.dot_product_attention(q, k, q, bias=bias, scale=scale)


def own_terms(q: jax.Array, logits: jax.Array) -> jax.Array:
    return pe_jax.attention(q, q, q, terms=(pe_jax.Sink(logits),), logit_cap=30.0)
"""
BEFORE = """
import jax
import pe_jax
from pe_jax import adapters, cache, hf
q = jax.numpy.ones((1, 4, 2, 8))
encoding = pe_jax.make("rope")
"""
WRONG = """
pe_jax.attention(q, q, q, causal="yes")
pe_jax.attention(q, q, q, encoding=3)
pe_jax.attention(q, q, q, params=())
pe_jax.attention(q, q, q, window=2.5)
pe_jax.attention(q, q)
pe_jax.make(3)
pe_jax.parse(encoding)
pe_jax.Dims(512, 8)
adapters.attention_fn(3)
adapters.attention_fn(encoding, window="4")
cache.empty(encoding, 1, 16)
cache.extend(q, q, q, q, encoding=encoding)
hf.params({}, {}, layer="0")
pe_jax.attention(q, q, q, return_lse=True).shape
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The lines at which pyright finds an error, by file."""
    folder = tmp_path_factory.mktemp("borrower")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(BEFORE + WRONG)
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    quiet = ("reportUnusedCallResult", "reportUnknownMemberType", "reportPrivateImportUsage")
    settings |= dict.fromkeys(quiet, False)
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    ran = subprocess.run([*command, "."], cwd=folder, capture_output=True, text=True)
    found: dict[str, dict[int, str]] = {"right.py": {}, "wrong.py": {}}
    for error in json.loads(ran.stdout)["generalDiagnostics"]:
        name = pathlib.Path(error["file"]).name
        found[name][error["range"]["start"]["line"]] = error["message"]
    return found


def test_what_a_borrower_writes_is_accepted(errors):
    assert not errors["right.py"]


def test_each_wrong_call_is_refused(errors):
    first = len(BEFORE.splitlines()) + 1
    calls = textwrap.dedent(WRONG).strip().splitlines()
    missed = [call for n, call in enumerate(calls, first) if n not in errors["wrong.py"]]
    assert not missed and len(errors["wrong.py"]) == len(calls)
