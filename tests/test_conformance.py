"""The conformance kit finds faults that are planted in a small decoder, and accuses no right one.

B batch, T tokens, S keys, H heads, E head width, D model width, L layers, F frequencies.
"""

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import conformance
from pe_jax.encodings import rope

VOCAB, D, H, E, LAYERS = 96, 64, 4, 16, 2
NONE = -1e9


class Settings(NamedTuple):
    """What a model computes, as arrays: all variants and faults share compiled programs.

    Frequencies [L, F]; per layer the window, chunk, first tokens and a sink's logit [L]; `sharpen`,
    the a of a temperature that begins at 16 tokens; `ahead`, how many later tokens are seen;
    flags: positions in bfloat16, documents that see each other, padding that is seen.
    """

    theta: Any
    window: Any = np.full(LAYERS, 10**6)
    chunk: Any = np.full(LAYERS, 10**6)
    first: Any = np.zeros(LAYERS)
    sink: Any = np.full(LAYERS, NONE)
    sharpen: Any = 0.0
    ahead: Any = 0
    rounded: Any = False
    leaks: Any = False
    padded: Any = False


@functools.cache
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return np.float32(rng.normal(size=shape) * shape[-2] ** -0.5)

    square = {name: drawn(LAYERS, D, D) for name in "qkvo"}
    wide = {"up": drawn(LAYERS, D, 2 * D), "down": drawn(LAYERS, 2 * D, D)}
    return {**square, **wide, "in": 10 * drawn(VOCAB, D), "out": drawn(D, VOCAB)}


@jax.jit
def run(settings, tokens, positions, index, documents, past):
    """Logits, states [L + 1, B, T, D] and the new past; a token of document -1 is padding.

    `past` are keys, values [L, B, S, H, E], positions and documents [B, S], zeros not yet written.
    """
    w = weights()
    x, states = jnp.asarray(w["in"])[tokens], []
    keys, values, k_positions, k_documents = past
    begin = index[0, 0]

    def written(old, new):
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), begin, 1)

    k_positions = written(k_positions, positions)
    k_documents, k_index = written(k_documents, documents), jnp.arange(k_positions.shape[1])
    exact = positions, k_positions
    halves = [p.astype(jnp.bfloat16).astype(jnp.float32) for p in exact]
    q_at, k_at = (jnp.where(settings.rounded, a, b) for a, b in zip(halves, exact, strict=True))
    distance = index[:, :, None] - k_index
    alike = documents[:, :, None] == k_documents[:, None]
    alike |= settings.leaks & (documents[:, :, None] >= 0) & (k_documents[:, None] >= 0)
    alike |= settings.padded
    firsts = [
        jnp.argmax(k_documents[:, None] == x[..., None], -1) for x in (documents, k_documents)
    ]
    places, k_places = index - firsts[0], k_index - firsts[1]  # in the document
    new = []
    for i in range(LAYERS):
        states.append(x)
        h = normed(x)
        q, k, v = (jnp.reshape(h @ w[n][i], (*h.shape[:-1], H, E)) for n in "qkv")
        k, v = written(keys[i], k), written(values[i], v)
        new.append((k, v))
        window, chunk = settings.window[i], settings.chunk[i]
        mask = (
            alike
            & (distance >= -settings.ahead)
            & ((distance < window) | (k_places[:, None] < settings.first[i]))
        )
        mask &= places[:, :, None] // chunk == k_places[:, None] // chunk
        q = q * (1 + settings.sharpen * jnp.log1p(positions // 16))[..., None, None]
        q, k = (rope.rotate(x, at, settings.theta[i]) for x, at in ((q, q_at), (k, k_at)))
        sink = pe_jax.Sink(jnp.full(H, settings.sink[i]))
        options = {"terms": (sink,), "causal": False, "implementation": "dense"}
        options |= {"q_positions": index, "k_positions": k_index}
        out = pe_jax.attention(q, k, v, mask=mask[:, None], **options)
        x += out.reshape(x.shape) @ w["o"][i]
        x += jax.nn.gelu(normed(x) @ w["up"][i]) @ w["down"][i]
    keys, values = map(jnp.stack, zip(*new, strict=True))
    past = keys, values, k_positions, k_documents
    return normed(x) @ w["out"], jnp.stack([*states, x]), past


def normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


class Model:
    """The decoder of a spec string with one layer's encoding each; faults are settings or names."""

    def __init__(self, spec: str, fault: str = "", **settings: Any):
        self.claims, self.fault = pe_jax.parse(spec) * LAYERS, fault
        self.claims = self.claims[:LAYERS]
        own = [x if hasattr(x, "window") else pe_jax.encodings.Windowed(x) for x in self.claims]
        parts = [getattr(x.encoding, "parts", (x.encoding,)) for x in own]
        base = {
            "theta": np.stack([padded(p[0]) for p in parts]),
            "window": np.array([x.window or 10**6 for x in own]),
            "chunk": np.array([x.chunk or 10**6 for x in own]),
            "first": np.array([x.sinks for x in own]),
            "sink": np.array([1.0 if "SinkLogit" in str(p) else NONE for p in parts]),
            "sharpen": 0.1 if "Temperature" in str(parts) else 0.0,
        }
        own = Settings(**base)._replace(**settings)._asdict()
        kinds = {
            "first": np.int32,
            "window": np.int32,
            "chunk": np.int32,
            "ahead": np.int32,
            "rounded": bool,
        }
        kinds |= {"leaks": bool, "padded": bool}
        self.settings = Settings(
            **{k: np.asarray(v, kinds.get(k, np.float32)) for k, v in own.items()}
        )
        self.written = 0

    def logits(self, tokens, positions=None, mask=None, segments=None):
        return self.whole(tokens, positions, mask, segments)[0]

    def hidden(self, tokens):
        return list(self.whole(tokens)[1])

    def whole(self, tokens, positions=None, mask=None, segments=None):
        index = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        documents = index * 0 if segments is None else segments
        documents = documents if mask is None else np.where(mask > 0, documents, -1)
        ignored = positions is None or self.fault == "positions ignored"
        positions = index if ignored else positions
        past = self.start(*tokens.shape)
        return run(self.settings, tokens, positions, index, documents, past)

    def start(self, batch, capacity):
        self.written = self.calls = 0
        row = np.zeros((LAYERS, batch, capacity, H, E), np.float32)
        places = np.zeros((batch, capacity), np.int32)
        return row, row, places, places - 2  # a document that no token is of

    def step(self, cache, tokens, mask=None):
        first, self.written = self.written, self.written + tokens.shape[1]
        index = np.broadcast_to(np.arange(first, self.written, dtype=np.int32), tokens.shape)
        positions, documents = index, index * 0
        if mask is not None:
            documents = mask[:, first:] - 1
            if not (self.fault == "padding counted" and first):
                positions = np.maximum(mask.cumsum(1) - 1, 0)[:, first:]
        positions = {
            "restart": index - first,
            "one too high": index + (first > 0),
            "one too low": index - (first > 0),
            "calls": 0 * index + self.calls,
        }.get(self.fault, positions)
        self.calls += 1
        y, _, cache = run(
            self.settings, tokens, positions.astype(np.int32), index, documents, cache
        )
        return y, cache

    def check(self, **options):
        own = {"vocab": (5, VOCAB), "start": self.start, "step": self.step, "head_dim": E}
        return conformance.check(self.logits, **{"config": self.claims} | own | options)


def padded(encoding) -> np.ndarray:
    """Frequencies [E / 2]: channels that do not rotate have frequency 0."""
    if not hasattr(encoding, "base"):
        return np.zeros(E // 2, np.float32)
    size = encoding.rotary_dim(E)
    theta = np.asarray(rope.frequencies(size, encoding.base, encoding.scaling))
    return np.pad(theta, (0, (E - size) // 2))


RIGHT = [
    "rope",
    "rope@window=7,rope",
    "rope@window=7",
    "rope@chunk=10,rope",
    "rope@window=7@sinks=2",
    "rope(scaling=yarn(factor=4,original_length=512))",
    "rope(base=500000,fraction=0.5)",
    "rope(base=500000),rope(base=10000)@window=9",
    "rope+sink",
    "rope+temperature(floor_scale=16,offset=0)",
    "nope",
    "rope,nope",
]


def frequencies(spec):
    return Model(spec).settings.theta


WINDOWS = "rope@window=7"
FAULTS = {  # what is claimed, the fault, what the report says, in which row
    "base": ("rope(base=500000)", {"theta": frequencies("rope")}, "frequencies", "base 10000 "),
    "base nearby": (
        "rope",
        {"theta": frequencies("rope(base=9000)")},
        "frequencies",
        r"base (899|900)\d ",
    ),
    "fraction": (
        "rope(fraction=0.5)",
        {"theta": frequencies("rope")},
        "frequencies",
        "16 channels rotate",
    ),
    "fraction of a fraction": (
        "rope(fraction=0.5)",
        {"theta": frequencies("rope(fraction=0.25)")},
        "frequencies",
        "4 channels rotate",
    ),
    "scaling ignored": (
        "rope(scaling=yarn(factor=4,original_length=512))",
        {"theta": frequencies("rope")},
        "frequencies",
        "scaling is not applied",
    ),
    "rounded": ("rope", {"rounded": True}, "shift 65536", "are the same: half precision"),
    "restart": ("rope", "restart", "decode one by one", "positions restart at each call"),
    "one too high": ("rope", "one too high", "decode after a prompt", "are one too high"),
    "one too low": ("rope", "one too low", "decode in chunks", "are one too low"),
    "calls": ("rope", "calls", "decode in chunks", "positions are the numbers of calls"),
    "ignored": ("rope", "positions ignored", "positions are read", "they change nothing"),
    "a rotation that nobody declared": (
        "nope",
        {"theta": frequencies("rope")},
        "positions are read",
        "they change logits; declared is none",
    ),
    "padding counted": (
        "rope",
        "padding counted",
        "decode padded",
        "^padding is counted from the second call",
    ),
    "padding seen": ("rope", {"padded": True}, "left padding", "padding is seen"),
    "window one more": (WINDOWS, {"window": [8, 8]}, "window", "reads windows of 8; declared 7"),
    "window one less": (WINDOWS, {"window": [6, 6]}, "window", "reads windows of 6; declared 7"),
    "window everywhere": (
        "rope@window=7,rope",
        {"window": [7, 7]},
        "window",
        "reads a window of 7 in every layer; declared 7, none",
    ),
    "no window": (WINDOWS, {"window": [99, 99]}, "window", "reads no window; declared 7"),
    "first tokens": (
        "rope@window=7@sinks=2",
        {"first": [0, 0]},
        "window",
        "reads 0 first tokens seen; declared 7 and 2 first tokens",
    ),
    "chunk": ("rope@chunk=10", {"chunk": [9, 9]}, "window", "reads chunks of 9; declared 10"),
    "causal": ("rope", {"ahead": 1}, "causal", "sees up to 2 tokens ahead"),
    "packed": ("rope", {"leaks": True}, "packed", "documents see each other"),
    "temperature": (
        "rope+temperature(floor_scale=16,offset=0)",
        {"sharpen": 0.0},
        "temperature",
        "late queries have no factor",
    ),
    "sink": ("rope+sink", {"sink": [NONE, NONE]}, "sink", "no sink"),
}


@pytest.mark.parametrize("spec", RIGHT)
def test_no_right_model_is_accused(spec):
    report = Model(spec).check()
    assert report.ok, report
    blind = {row.probe for row in report.rows if row.verdict == "blind"}
    assert blind <= {"window"}  # of a layer that a full one follows
    if spec != "nope":
        assert report["shift 7" if "temperature" not in spec else "temperature"].verdict == "held"
        assert report["frequencies"].verdict == "held"


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_named(name):
    spec, fault, probe, words = FAULTS[name]
    model = Model(spec, fault) if isinstance(fault, str) else Model(spec, **fault)
    report = model.check()
    assert report[probe].verdict == "broken" and re.search(words, report[probe].cause), report


def test_a_window_before_a_full_layer_shows_in_hidden_states_alone():
    model = Model("rope@window=7,rope", window=[8, 99])
    assert model.check()["window"].verdict == "blind"
    row = model.check(hidden=model.hidden)["window"]
    assert row.verdict == "broken" and row.first == "layer 0"
    assert "reads windows of 8; declared 7, none" in row.cause


def test_without_a_config_it_tells_what_can_be_told():
    report = Model("rope(base=500000)@window=7").check(config=None, text=np.arange(5, 45))
    assert report.ok and "reads base 5e+05, 16 channels" in report["frequencies"].cause
    assert report["window"].cause == "sees 12 back"
    assert report["absolute or relative"].cause == "relative, or none"
    losses = [float(x.split()[0]) for x in report["loss by offset"].cause.split(", ")]
    assert len(losses) == 4 and np.ptp(losses) < 1e-3
    far = (
        Model("rope", rounded=True)
        .check(config=None, text=np.arange(5, 45))["loss by offset"]
        .cause
    )
    assert np.ptp([float(x.split()[0]) for x in far.split(", ")]) > 0.01


def test_dropout_is_named():
    rng, model = np.random.default_rng(0), Model("rope")

    def logits(tokens):
        return model.logits(tokens) + rng.normal(size=(*tokens.shape, VOCAB))

    (row,) = conformance.check(logits, vocab=VOCAB).broken
    assert row.probe == "repeatable"


def test_the_helper_shows_the_table():
    model = Model("rope", "restart")
    assert conformance.pytest(Model("rope").logits, "rope,rope", vocab=VOCAB, head_dim=E).ok
    with pytest.raises(AssertionError, match="decode in chunks +broken .* restart at each call"):
        conformance.pytest(
            model.logits, "rope", vocab=VOCAB, head_dim=E, start=model.start, step=model.step
        )


def test_what_a_function_does_not_take_is_skipped():
    model = Model("rope")
    report = conformance.check(lambda tokens: model.logits(tokens), vocab=VOCAB)
    skipped = {row.probe for row in report.rows if row.verdict == "skipped"}
    assert report.ok and skipped == {"shift", "padding", "packed", "decode", "frequencies"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vocab": None}, "vocab=None: pass the number of tokens"),
        ({"vocab": 1}, "vocab=1: pass an integer of at least 2"),
        ({"length": 8}, "length=8: pass an integer of at least 24"),
        ({"head_dim": None}, "head_dim=None: encodings do not say it"),
        ({"step": None}, "pass start and step, or neither"),
        ({"hidden": lambda tokens: [tokens[..., None]] * 2}, "after 1 layers: the config has 2"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Model("rope").check(**options)
    with pytest.raises(ValueError, match=r"gives \[2, 48\], finite, for tokens \[2, 48\]"):
        conformance.check(lambda tokens: np.ones(tokens.shape), vocab=VOCAB)
