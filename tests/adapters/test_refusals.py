"""What cannot work says why, on one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.models import adapters
from tests.adapters.common import MASK, ROPE, X, heads, of_linen
from tests.util import T


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: adapters.attention_fn(pe_jax.make, causal=False),
            TypeError,
            "encoding=<function make at .*>: pass one layer's encoding, such as 'rope', ",
        ),
        (
            lambda: adapters.attention_fn("rope,alibi", causal=True),
            ValueError,
            "encoding='rope,alibi': it has 2 layers; pass that of one",
        ),
        (
            lambda: adapters.attention_fn("t5", causal=True),
            ValueError,
            r"params=None, but T5 has parameters; pass encoding.init\(key, dims\) "
            r"\(pe_jax.parse\(name\)\[0\] is the encoding of a name\)",
        ),
        (
            lambda: adapters.attention_fn(ROPE, {}, causal=False),
            TypeError,
            "params is a dict; pass pe_jax.Params",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False, window=0),
            ValueError,
            "window=0: pass an integer",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False, sinks=1),
            ValueError,
            "sinks=1: pass a window too",
        ),
        (lambda: adapters.attention_fn(ROPE, causal="no"), ValueError, "causal='no': pass True"),
        (
            lambda: adapters.attention_fn(pe_jax.parse("sinusoidal+rope")[0], causal=False),
            ValueError,
            r"adds to the input of the first layer.*x = encoding.embed\(params, x, positions\)",
        ),
        (
            lambda: adapters.attention_fn(pe_jax.make("fox"), causal=True),
            ValueError,
            r"reads the layer's input.*pe_jax.attention\(q, k, v, x=x",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(
                *heads(), mask=np.where(MASK, 0, -1e9)
            ),
            ValueError,
            "mask holds -1000000000.0: pass booleans; an additive mask is a bias",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(*heads(), mask=MASK[:, :3]),
            ValueError,
            r"mask=\(2, 3, 13, 13\): pass a shape that broadcasts to \(2, 4, 13, 13\)",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(heads()[0][:, :3], *heads()[1:]),
            ValueError,
            "q has 3 tokens and k has 13: pass positions and q_positions",
        ),
        (
            lambda: adapters.attention_fn(
                ROPE, causal=True, positions=np.arange(T), q_positions=np.arange(3)
            )(heads()[0][:, :3], *heads()[1:]),
            ValueError,
            "causal=True: the queries are other tokens than the keys: pass a mask",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(*heads(), dropout_rate=0.1),
            ValueError,
            "dropout_rng=None: pass a key, or no dropout_rate",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(*heads(), precision=3),
            ValueError,
            "precision=3: pass None, a jax.lax.Precision or its name",
        ),
        (
            lambda: of_linen(
                adapters.attention_fn(ROPE, causal=False),
                qk_attn_weights_einsum_cls=lambda: jnp.einsum,
                attn_weights_value_einsum_cls=lambda: jnp.einsum,
            ).init(jax.random.key(0), X),
            ValueError,
            "qk_attn_weights_einsum=.*scores are not one einsum here: leave it out",
        ),
        (
            lambda: adapters.attention_fn(pe_jax.make("t5"), causal=True)(*heads()),
            ValueError,
            "params=None, but T5 has parameters",
        ),
    ],
)
def test_what_cannot_work_says_why(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
