"""Attention alone, q, k, v → out: each property is read, and what differs from the claim is named.

B batch, T tokens, H heads, E head width, F frequencies.
"""

import functools
import pathlib
import re

import numpy as np
import pytest

from pe_jax import conformance
from pe_jax.encodings import alibi, rope, rope_scaling

H, E, T = 2, 16, 40
BASE = np.asarray(rope.frequencies(E, 5e5))
YARN = rope_scaling.YaRN(4.0, 64)


def attend(
    q, k, v, theta=BASE, layout="half", scale=E**-0.5, factor=1.0, decay=1.0,
    window=10**6, cap=np.inf, sharpen=0.0, slopes=0.0, sink=None, causal=True, sign=1,
):  # fmt: skip
    """NumPy's attention [B, T, H, E] with RoPE, ALiBi's slopes [H], a sink."""
    at = np.arange(q.shape[1])
    q, k = (turned(np.asarray(x, np.float64), sign * at, theta, layout, factor) for x in (q, k))
    q = q * (1 + sharpen * np.log1p(at // 16))[:, None, None]
    distance = at[:, None] - at
    scores = scale * np.einsum("bqhe,bkhe->bhqk", q, k) * decay**distance
    scores = scores if cap == np.inf else cap * np.tanh(scores / cap)
    scores = scores - np.reshape(slopes, (-1, 1, 1)) * np.abs(distance)
    scores = np.where(
        (np.abs(distance) < window) & ((distance >= 0) | (not causal)), scores, -np.inf
    )
    weights = np.exp(scores)
    total = weights.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink))
    return np.einsum("bhqk,bkhe->bqhe", weights / total, v)


def turned(x, positions, theta, layout, factor):
    n = len(theta)
    angle = positions[:, None, None] * theta
    half = layout == "half"
    a, b = (x[..., :n], x[..., n : 2 * n]) if half else (x[..., : 2 * n : 2], x[..., 1 : 2 * n : 2])
    cos, sin = factor * np.cos(angle), factor * np.sin(angle)
    pair = a * cos - b * sin, b * cos + a * sin
    pair = np.concatenate(pair, -1) if half else np.stack(pair, -1).reshape(*x.shape[:-1], 2 * n)
    return np.concatenate([pair, x[..., 2 * n :]], -1)


ROPE = "rope(base=500000.0)"
RIGHT = {
    ROPE: {},
    "rope(base=500000.0,layout='interleaved')": {"layout": "interleaved"},
    "rope(base=500000.0,fraction=0.5)@window=12": {
        "theta": np.asarray(rope.frequencies(E // 2, 5e5)),
        "window": 12,
    },
    "rope(base=500000.0,scaling=yarn(factor=4.0,original_length=64))": {
        "theta": np.asarray(rope.frequencies(E, 5e5, YARN)),
        "factor": YARN.attention_factor,
    },
    "rope(base=500000.0)+temperature(attn_scale=0.4,floor_scale=16,offset=0)": {"sharpen": 0.4},
    "alibi": {"theta": np.zeros(0), "slopes": np.asarray(alibi.slopes(H))},
    "nope": {"theta": np.zeros(0)},
    "rope(base=500000.0)+sink": {"sink": 0.0},
}


def check(spec, **options):
    def model(q, k, v):
        return attend(q, k, v, **options)

    return conformance.check(model, spec, heads=H, head_dim=E)


@pytest.mark.parametrize("spec", RIGHT)
def test_right_attention_is_not_accused(spec):
    report = check(spec, **RIGHT[spec])
    assert report.ok, report


FAULTS = {
    "layout": ({"layout": "interleaved"}, "reads interleaved; declared half"),
    "direction": ({"sign": -1}, "reads mirrored; declared usual"),
    "rotated": ({"theta": BASE[:4]}, "reads 8; declared 16"),
    "base": (
        {"theta": np.asarray(rope.frequencies(E, 4.5e5))},
        "reads 450000.0; declared 500000.0",
    ),
    "scale": ({"scale": 1.0}, "reads 1.0; declared 0.25"),
    "decay": ({"decay": 0.9}, "declared 1.0"),
    "temperature": ({"sharpen": 0.4}, "declared 1.0"),
    "logit_cap": ({"cap": 5.0}, "reads True; declared False"),
    "window": ({"window": 13}, "reads 13; declared none"),
    "bias": ({"slopes": np.full(H, 0.1)}, "declared none"),
    "sink": ({"sink": 0.0}, "declared none"),
    "causal": ({"causal": False}, "reads False; declared True"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name):
    options, words = FAULTS[name]
    row = check(ROPE, **options)[name]
    assert row.verdict == "broken" and words in row.cause


def test_numbers_are_read():
    read = functools.partial(conformance.read_attention, heads=H, head_dim=E)
    found = read(lambda q, k, v: attend(q, k, v, sink=0.7, slopes=np.array([0.1, 0.3])))
    np.testing.assert_allclose(found["frequencies"][:5], BASE[:5], rtol=2e-3)
    np.testing.assert_allclose(found["sink"], 0.7, atol=1e-3)
    np.testing.assert_allclose(found["bias"], -np.outer([0.1, 0.3], np.arange(24)), atol=1e-3)
    yarn = rope_scaling.YaRN(4.0, 64)
    theta = np.asarray(rope.frequencies(E, 1e4, yarn))
    found = read(lambda q, k, v: attend(q, k, v, theta=theta, factor=yarn.attention_factor))
    assert not found["geometric"]
    assert found["scale"] == pytest.approx(yarn.attention_factor**2 / 4, rel=1e-3)


def test_attention_needs_heads_and_a_config():
    with pytest.raises(ValueError, match="attention needs heads and a config"):
        conformance.check(lambda q, k, v: attend(q, k, v), "nope", head_dim=E)
    with pytest.raises(ValueError, match="pass that of one layer"):
        conformance.check(lambda q, k, v: attend(q, k, v), "nope,rope", heads=H, head_dim=E)


def test_the_page_runs(capsys):
    page = pathlib.Path(__file__).parents[1] / "docs" / "conformance.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    exec(block, {})
    assert re.search(r"rotated +held +0\n", (text := capsys.readouterr().out))
    assert text.endswith("0.3536\n")
