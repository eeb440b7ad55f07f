"""Our side of every comparison, and the one function that compares; needs no torch.

A `Record` holds what an oracle was given and what it answered. `live` makes records by running
the oracle, `load` reads one from a golden file; `compare` treats both alike.
B batch, T queries, S keys, H heads, E head width, D model width.
"""

import functools
import json
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import positions
from pe_jax.encodings import (
    deberta,
    learned,
    learned_grid,
    mla,
    rope,
    rope_mixed,
    rope_scaling,
    sinusoidal,
    sinusoidal_2d,
    swin,
    t5,
)
from pe_jax.hf import weights as hf_weights
from tests import util

GOLDEN = pathlib.Path(__file__).parent / "golden"
TOLERANCE = 1e-5  # float32, outputs of order 1, positions below 256


class Record(NamedTuple):
    """One run of an oracle: settings are JSON, inputs and outputs NumPy arrays by name."""

    case: str
    settings: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    versions: dict[str, str]


def save(record: Record, path: pathlib.Path) -> None:
    """Writes a golden file; the same record gives the same bytes."""
    about = {"case": record.case, "settings": record.settings, "versions": record.versions}
    arrays = {f"in.{name}": x for name, x in record.inputs.items()}
    arrays |= {f"out.{name}": x for name, x in record.outputs.items()}
    np.savez_compressed(path, about=np.array(json.dumps(about, sort_keys=True)), **arrays)


def load(path: pathlib.Path) -> Record:
    """Reads a golden file (plain arrays: nothing in it can run)."""
    with np.load(path, allow_pickle=False) as file:
        about = json.loads(str(file["about"]))
        arrays = {name: file[name] for name in file.files if name != "about"}
    inputs, outputs = (
        {name.removeprefix(kind): x for name, x in arrays.items() if name.startswith(kind)}
        for kind in ("in.", "out.")
    )
    return Record(about["case"], about["settings"], inputs, outputs, about["versions"])


def compare(record: Record, implementation: str = "dense") -> dict[str, float]:
    """The largest error of each output; fails above `TOLERANCE`, or where an integer differs."""
    ours = OURS[record.case](record.settings, record.inputs, implementation)
    assert ours.keys() == record.outputs.keys()
    errors = {}
    for name, want in record.outputs.items():
        got = np.asarray(ours[name])
        assert got.shape == want.shape, f"{record.case} {name}: {got.shape}, oracle {want.shape}"
        gap = np.abs(got.astype(np.float64) - want.astype(np.float64))
        errors[name] = float(gap.max(initial=0))
        allowed = 0 if np.issubdtype(want.dtype, np.integer) else TOLERANCE
        assert errors[name] <= allowed, (  # NaN fails too
            f"{record.case} {name}: off by {errors[name]:.3g} at {np.argwhere(gap > allowed)[:3]}"
            f" with {record.settings}"
        )
    return errors


@functools.partial(jax.jit, static_argnames=("encoding", "causal", "implementation"))
def _attention(q, k, v, x, positions, encoding, params, causal, implementation):
    queries, keys = positions
    return pe_jax.attention(
        *(q, k, v),
        encoding=encoding,
        params=params,
        x=x,
        q_positions=queries,
        k_positions=keys,
        q_index=queries,
        k_index=keys,
        causal=causal,
        implementation=implementation,
    )


@functools.partial(jax.jit, static_argnames=("encoding", "implementation"))
def _anywhere(q, k, v, at, encoding, params, implementation):
    given = {"encoding": encoding, "params": params, "implementation": implementation}
    return pe_jax.attention(q, k, v, q_positions=at, causal=False, **given)


def attend(inputs, encoding, implementation, *, params=((), ()), causal=False, v=None, at=None):
    """Our attention on an oracle's q, k, v [B, T or S, H, E]; the queries are the last tokens.

    `at` are the positions of all tokens, where they are not 0, 1, 2, …; then no token is hidden.
    """
    q, k, v = inputs["q"], inputs["k"], inputs["v"] if v is None else v
    params = pe_jax.Params(*jax.tree.map(jnp.asarray, tuple(params)))
    if at is not None:
        return _anywhere(q, k, v, at, encoding, params, implementation)
    keys = np.arange(k.shape[1])
    places = keys[keys.size - q.shape[1] :], keys
    return _attention(q, k, v, inputs.get("x"), places, encoding, params, causal, implementation)


def weights(inputs, encoding, implementation, **options):
    """The attention weights [B, H, T, S]: the output where the values are unit vectors."""
    batch, keys, heads = inputs["k"].shape[:3]
    unit = np.broadcast_to(np.eye(keys, dtype=np.float32)[:, None], (batch, keys, heads, keys))
    return attend(inputs, encoding, implementation, v=unit, **options).transpose(0, 2, 1, 3)


def both(inputs, encoding, implementation, **options):
    """Weights and output."""
    return {
        "weights": weights(inputs, encoding, implementation, **options),
        "output": attend(inputs, encoding, implementation, **options),
    }


def nope(settings, inputs, implementation):
    return {"output": attend(inputs, pe_jax.Encoding(), implementation, causal=settings["causal"])}


def sinusoid(settings, inputs, implementation):
    layout = settings["layout"]
    return {"table": sinusoidal.sinusoid(inputs["positions"], settings["dim"], layout=layout)}


def lookup(settings, inputs, implementation):
    return {"rows": learned.lookup(jnp.asarray(inputs["table"]), inputs["positions"])}


def shaw_key(settings, inputs, implementation):
    """Theirs clips key - query to [-left, right]; ours, distance = query - key, to ±clip."""
    left, right = settings["left"], settings["right"]
    clip = max(left, right)
    params = {}, {"keys": hf_weights.mirrored(inputs["keys"], left=left, right=right)}
    return both(inputs, pe_jax.make("shaw", clip=clip, values=False), implementation, params=params)


def shaw_key_value(settings, inputs, implementation):
    """Theirs is a table over key - query: the mirror image of ours."""
    clip = settings["window"]
    layer = {"keys": inputs["keys"][:, ::-1], "values": inputs["values"][:, ::-1]}
    shaw, keys = (pe_jax.make("shaw", clip=clip, values=values) for values in (True, False))
    alone = {"keys": layer["keys"]}
    return {
        "weights": weights(inputs, keys, implementation, params=({}, alone)),
        "output": attend(inputs, shaw, implementation, params=({}, layer)),
    }


def transformer_xl(settings, inputs, implementation):
    layer = {"u": inputs["u"], "v": inputs["v_bias"], "w_r": hf_weights.swapped(inputs["w_r"])}
    options = {"params": ({}, layer), "causal": settings["causal"]}
    return both(inputs, pe_jax.make("transformer_xl"), implementation, **options)


def t5_bucket(settings, inputs, implementation):
    return {"buckets": t5.bucket(inputs["distance"], **settings)}


def t5_attention(settings, inputs, implementation):
    fields = {name: settings[name] for name in ("num_buckets", "max_distance", "bidirectional")}
    encoding, params = pe_jax.make("t5", **fields), ({"table": inputs["table"].T}, {})
    causal = not settings["bidirectional"]
    place = np.arange(inputs["q"].shape[1])
    heads = inputs["q"].shape[2]
    dims = pe_jax.Dims(heads, heads, heads, 1)
    found = jax.tree.map(jnp.asarray, pe_jax.Params(*params))
    bias = util.distance_bias(encoding, found, place[:, None] - place[None], dims)
    return {"bias": bias} | both(inputs, encoding, implementation, params=params, causal=causal)


def deberta_bucket(settings, inputs, implementation):
    return {"rows": deberta.bucket(inputs["distance"], **settings)}


def deberta_attention(settings, inputs, implementation):
    """The biases of their projections of positions are zero, and left out here."""
    fields = {name: settings[name] for name in ("buckets", "max_distance")}
    names, head_dim = ("w_k", "w_q"), inputs["q"].shape[-1]
    layer = {name: hf_weights.by_head(inputs[name], head_dim=head_dim)[:, :-1] for name in names}
    options = {"params": ({"table": inputs["table"]}, layer), "causal": settings["causal"]}
    return both(inputs, pe_jax.make("deberta", **fields), implementation, **options)


def rotary(settings, inputs, implementation):
    encoding = pe_jax.make("rope", **settings)
    none = pe_jax.Params({}, {})
    return {
        "q": util.rotate(encoding, "q", none, jnp.asarray(inputs["q"]), inputs["positions"]),
        "k": util.rotate(encoding, "k", none, jnp.asarray(inputs["k"]), inputs["positions"]),
    }


def rotary_function(settings, inputs, implementation):
    dim = inputs["q"].shape[-1]
    turn = functools.partial(rope.rotate, frequencies=rope.frequencies(dim), **settings)
    places = inputs["positions"]
    return {name: turn(jnp.asarray(inputs[name]), places) for name in ("q", "k")}


@functools.partial(jax.jit, static_argnames=("settings", "implementation"))
def _latent(inputs, settings, implementation):
    """Attention weights and output of latent attention."""
    content, interleave = settings
    parts = (inputs[f"{side}_{part}"] for side in "qk" for part in ("content", "rotary"))
    q, k = mla.join(*parts)
    encoding = mla.scheme(content, 6, layout="interleaved" if interleave else "half")
    places, index = inputs["positions"], np.arange(q.shape[1])
    unit = jnp.eye(q.shape[1])[None, :, None] * jnp.ones((len(q), 1, q.shape[2], 1))
    given = {"encoding": encoding, "q_positions": places, "q_index": index, "k_index": index}
    run = functools.partial(pe_jax.attention, q, k, implementation=implementation, **given)
    return {"weights": run(unit).transpose(0, 2, 1, 3), "output": run(inputs["v"])}


def latent(settings, inputs, implementation):
    inputs = jax.tree.map(jnp.asarray, inputs)
    return _latent(inputs, (settings["content"], settings["interleave"]), implementation)


@functools.partial(jax.jit, static_argnames=("window", "implementation"))
def _rotated_values(q, k, sinks, window, implementation):
    """Theirs rotates the last channels of a head, ours the first."""
    fields = "fraction=0.5,layout='interleaved'"
    encoding = pe_jax.parse(f"rope({fields})+rotated_values({fields})")[0]
    turned = q.shape[-1] // 2
    q, k = (jnp.roll(x, turned, axis=-1) for x in (q, k))
    options = {"terms": (pe_jax.Sink(sinks),), "window": window, "implementation": implementation}
    out = pe_jax.attention(q, k, k, encoding=encoding, **options)
    unit = jnp.eye(q.shape[1])[None, :, None] * jnp.ones((len(q), 1, 1, 1))
    weights = pe_jax.attention(q, k, unit, encoding=encoding.parts[0], **options)
    return {"weights": weights.transpose(0, 2, 1, 3), "output": jnp.roll(out, -turned, axis=-1)}


def rotated_values(settings, inputs, implementation):
    arrays = (jnp.asarray(inputs[name]) for name in ("q", "k", "sinks"))
    return _rotated_values(*arrays, settings["window"], implementation)


def learned_frequencies(settings, inputs, implementation):
    """Theirs puts the first channels of all pairs before the second ones."""
    found = rope_scaling.from_hf(settings["parameters"], head_dim=inputs["q"].shape[-1])
    fields = {"base": found.base, "scaling": found.scaling, "layout": "interleaved"}
    encoding = pe_jax.make("lerope", **fields)
    params = pe_jax.Params({"alpha": jnp.asarray(inputs["alpha"])}, {})
    turned = (
        util.rotate(encoding, name, params, inputs[name], inputs["positions"]) for name in "qk"
    )
    apart = (jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1) for x in turned)
    return dict(zip("qk", apart, strict=True))


def log_length(settings, inputs, implementation):
    layer = {name: jnp.asarray(inputs[name]) for name in ("scale", "bias")}
    params, encoding = pe_jax.Params({}, layer), pe_jax.make("log_length")
    return {"q": util.rotate(encoding, "q", params, inputs["q"], inputs["positions"])}


def polar(settings, inputs, implementation):
    encoding = pe_jax.make("pope", **settings)
    params = pe_jax.Params({}, {"phase": jnp.asarray(inputs["phase"])})
    q, k = (util.rotate(encoding, n, params, inputs[n], inputs["positions"]) for n in "qk")
    return {"scores": jnp.einsum("bthe,bshe->bhts", q, k)}


def wall(settings, inputs, implementation):
    """The weight copies x, the logits of all gates, into their places."""
    heads, width = inputs["q"].shape[2:]
    weight = np.eye(heads * width, dtype=np.float32).reshape(-1, heads, width)
    layer = {"weight": weight, "bias": np.zeros((heads, width), np.float32)}
    options = {"params": ({}, layer), "causal": True}
    return {"output": attend(inputs, pe_jax.make("wall"), implementation, **options)}


def _log(theta) -> np.ndarray:
    return np.log(np.asarray(theta, np.float64) + 1e-30)


def rope_scaled(settings, inputs, implementation):
    head_dim, longest = settings["head_dim"], settings["longest"]
    found = rope_scaling.from_hf(
        settings["parameters"], head_dim=head_dim, max_position_embeddings=longest
    ).at_length(settings["target"])
    none, places = pe_jax.Params({}, {}), inputs["positions"]
    return {
        "log_theta": _log(found.frequencies(head_dim)),
        "attention_factor": np.float32(found.attention_factor),
        "q": util.rotate(found, "q", none, jnp.asarray(inputs["q"]), places),
        "k": util.rotate(found, "k", none, jnp.asarray(inputs["k"]), places),
    }


def rope_hunyuan(settings, inputs, implementation):
    theta = rope.frequencies(settings["head_dim"], 1e4, rope_scaling.NTK(settings["alpha"]))
    parameters = {"type": "dynamic", "factor": 1.0, "alpha": settings["alpha"], "beta_fast": 32}
    read = rope_scaling.from_hf(parameters, head_dim=settings["head_dim"])
    np.testing.assert_array_equal(read.frequencies(settings["head_dim"]), theta)
    return {"log_theta": _log(theta)}


def rope_gemma3(settings, inputs, implementation):
    factor = settings["factor"]
    scaling = f", scaling=linear(factor={factor})" if factor else ""
    pattern = pe_jax.parse(f"rope(base=1e4)*5,rope(base=1e6{scaling})")
    none, places = pe_jax.Params({}, {}), inputs["positions"]
    q, k = (jnp.asarray(inputs[name]) for name in "qk")
    outputs = {f"q{i}": util.rotate(enc, "q", none, q, places) for i, enc in enumerate(pattern)}
    return outputs | {
        f"k{i}": util.rotate(enc, "k", none, k, places) for i, enc in enumerate(pattern)
    }


def smollm3(settings, inputs, implementation):
    pattern = pe_jax.parse("rope*3,nope")
    return both(inputs, pattern[settings["layer"] % 4], implementation, causal=True)


def llama4(settings, inputs, implementation):
    scales = f"attn_scale={settings['attn_scale']}, floor_scale={settings['floor_scale']}"
    pattern = pe_jax.parse(f"rope(layout='interleaved')*3,temperature({scales})")
    return both(inputs, pattern[settings["layer"] % 4], implementation, causal=True)


def ministral3(settings, inputs, implementation):
    scales = f"attn_scale={settings['beta']}, floor_scale={settings['original']}, offset=0"
    encoding = pe_jax.parse(f"rope+temperature({scales})")[0]
    return both(inputs, encoding, implementation, causal=True, params=((), ()))


def alibi(settings, inputs, implementation):
    return both(inputs, pe_jax.make("alibi"), implementation, causal=True)


def wavlm(settings, inputs, implementation):
    fields = {name: settings[name] for name in ("num_buckets", "max_distance")}
    layer = {name: inputs[name] for name in ("weight", "bias", "scale")}
    encoding, params = pe_jax.make("wavlm", **fields), ({"table": inputs["table"].T}, layer)
    place = np.arange(inputs["q"].shape[1])
    found = jax.tree.map(jnp.asarray, pe_jax.Params(*params))
    (term,) = encoding.terms(found, util.DIMS)
    return {
        "bias": term.at(place[:, None] - place[None])[..., 0],
        "output": attend(inputs, encoding, implementation, params=params),
    }


def _profiles(inputs):
    """The projection of r by head, and the profiles."""
    heads, width = inputs["q"].shape[2], inputs["x"].shape[-1]
    rows = inputs["weight"].reshape(heads, -1, width)
    return {"weight": rows.transpose(2, 0, 1), "profiles": inputs["profiles"]}


def inkling(settings, inputs, implementation):
    """Its q and k are normalised: the scale is 1/E, of which q has one half."""
    fields = {"extent": settings["extent"], "width": settings["states"]}
    encoding = pe_jax.make("inkling", **fields, floor=settings["floor"])
    inputs = inputs | {"q": inputs["q"] * inputs["q"].shape[-1] ** -0.5}
    params = ({}, _profiles(inputs))
    return both(inputs, encoding, implementation, causal=True, params=params)


def inkling_2(settings, inputs, implementation):
    names = ("extent", "floor", "clip_states", "clip_qk")
    fields = {name: settings[name] for name in names} | {"width": settings["states"]}
    sink = {"logit": np.zeros(inputs["q"].shape[2], np.float32), "weight": inputs["sink"].T}
    parts = pe_jax.make("inkling", **fields), pe_jax.make("sink", from_input=True)
    params = ({}, {}), (_profiles(inputs), sink)
    return both(inputs, pe_jax.Sum(parts), implementation, causal=True, params=params)


def sink(settings, inputs, implementation):
    params = ({}, {"logit": inputs["sinks"]})
    return both(inputs, pe_jax.make("sink"), implementation, causal=True, params=params)


def forgetting(settings, inputs, implementation):
    layer = {name: inputs[name] for name in ("weight", "bias")}
    options = {"params": ({}, layer), "causal": settings.get("causal", True)}
    found = both(inputs, pe_jax.make("fox"), implementation, **options)
    return found if "causal" in settings else {"output": found["output"]}


def xpos(settings, inputs, implementation):
    return both(inputs, pe_jax.make("xpos", **settings), implementation, causal=True)


def sandwich(settings, inputs, implementation):
    encoding = pe_jax.make("sandwich", width=settings["width"])
    return both(inputs, encoding, implementation, causal=settings["causal"])


def axial_sinusoid(settings, inputs, implementation):
    grid = positions.grid(settings["height"], settings["width"])
    return {"table": sinusoidal_2d.sinusoid_2d(grid, settings["dim"])}


def learned_2d(settings, inputs, implementation):
    size = settings["height"], settings["width"]
    encoding = pe_jax.make("learned_2d", height=size[0], width=size[1])
    params = pe_jax.Params({name: jnp.asarray(x) for name, x in inputs.items()}, {})
    places = {"table": positions.grid(*size), "resized": positions.resized(*settings["to"], size)}
    return {n: encoding.embed(params, jnp.zeros((len(p), 8)), p) for n, p in places.items()}


def resized_grid(settings, inputs, implementation):
    how = {name: x for name, x in settings.items() if name not in ("size", "to")}
    return {"resized": learned_grid.resize(inputs["table"], *settings["to"], **how)}


def rotary_2d(settings, inputs, implementation):
    fields = {name: settings[name] for name in ("base", "spectrum")}
    return _rotated(pe_jax.make("rope_2d", **fields), inputs, inputs["positions"])


def rotary_pixels(settings, inputs, implementation):
    size, prefix = (settings["height"], settings["width"]), settings.get("prefix", 0)
    grid = positions.grid(*size, normalized=True, prefix=prefix)
    encoding = pe_jax.make("rope_2d", base=settings["base"], normalized=True)
    return _rotated(encoding, inputs, grid)


def rotary_mixed(settings, inputs, implementation):
    """Theirs has the column's frequencies first, then the row's."""
    grid = positions.grid(settings["height"], settings["width"])
    frequencies = jnp.asarray(inputs["frequencies"][::-1])
    return {n: rope_mixed.rotate(jnp.asarray(inputs[n]), grid, frequencies) for n in ("q", "k")}


def rotary_nd(settings, inputs, implementation):
    encoding = pe_jax.make("rope_nd", base=settings["base"])
    return _rotated(encoding, inputs, inputs["positions"])


def rotary_3d(settings, inputs, implementation):
    return _rotated(pe_jax.make("mrope", **settings), inputs, inputs["positions"])


def _rotated(encoding, inputs, places):
    none = pe_jax.Params({}, {})
    return {side: util.rotate(encoding, side, none, inputs[side], places) for side in "qk"}


def multimodal(settings, inputs, implementation):
    spans = [span[0] if len(span) == 1 else tuple(span) for span in settings["spans"]]
    return {"positions": positions.multimodal(spans)}


def swin_bias(settings, inputs, implementation):
    """Theirs is the same table, a column a head."""
    size = settings["height"], settings["width"]
    grid = positions.grid(*size)
    return {"bias": swin.lookup(inputs["table"].T, grid[:, None] - grid[None], *size)}


def swin_class(settings, inputs, implementation):
    """Theirs is the same table, a column a head, resized in each call."""
    side, (height, width) = settings["side"], settings["to"]
    table = swin.resize(inputs["table"].T, (side, side), (height, width))
    places = positions.grid(height, width, prefix=1, numbered=True)
    return {"bias": swin.class_lookup(table, places, places, height, width)}


def cpb(settings, inputs, implementation):
    height, width = settings["trained"]
    encoding = pe_jax.make("cpb", height=height, width=width, hidden=len(inputs["b1"]))
    layer = {name: inputs[name] for name in ("w1", "b1", "w2")}
    options = {"params": ({}, layer), "at": positions.grid(*settings["window"])}
    return {"weights": weights(inputs, encoding, implementation, **options)}


def layoutlmv3(settings, inputs, implementation):
    tables = {name: inputs[name] for name in ("index", "x", "y")}
    options = {"params": (tables, {}), "at": inputs["positions"]}
    return both(inputs, pe_jax.make("layoutlmv3", **settings), implementation, **options)


def path(settings, inputs, implementation):
    """Dense alone."""
    layer = {name: inputs[name] for name in ("directions", "weight", "bias")}
    options = {"params": ({}, layer), "causal": True}
    return {"output": attend(inputs, pe_jax.make("path"), "dense", **options)}


def cope(settings, inputs, implementation):
    encoding = pe_jax.make("cope", positions=settings["positions"])
    options = {"params": ({}, {"vectors": inputs["vectors"]}), "causal": True}
    return both(inputs, encoding, implementation, **options)


def stick_breaking(settings, inputs, implementation):
    """What is left is what values of 1 lack."""
    encoding = pe_jax.make("stick_breaking", attend_current=settings["attend_current"])
    ones = np.ones_like(inputs["v"])
    taken = attend(inputs, encoding, implementation, causal=True, v=ones)
    out = attend(inputs, encoding, implementation, causal=True)
    return {"output": out, "left": 1 - taken[..., 0]}


OURS = {
    "nope_sdpa": nope,
    "sinusoidal_marian": sinusoid,
    "sinusoidal_fsmt": sinusoid,
    "learned_torch": lookup,
    "shaw_wav2vec2_bert": shaw_key,
    "shaw_vits": shaw_key_value,
    "transformer_xl_xlnet": transformer_xl,
    "t5_bucket": t5_bucket,
    "t5_attention": t5_attention,
    "deberta_bucket": deberta_bucket,
    "deberta_attention": deberta_attention,
    "rope_llama": rotary,
    "rope_gpt_neox_partial": rotary,
    "rope_gptj": rotary_function,
    "rope_roformer": rotary_function,
    "rope_mla_deepseek_v3": latent,
    "rotated_values_deepseek_v4": rotated_values,
    "lerope_mistral_large4": learned_frequencies,
    "log_length_mistral_large4": log_length,
    "pope_x_transformers": polar,
    "pope_pytorch": polar,
    "wall_fla": wall,
    "rope_linear": rope_scaled,
    "rope_dynamic": rope_scaled,
    "rope_yarn": rope_scaled,
    "rope_llama3": rope_scaled,
    "rope_longrope": rope_scaled,
    "rope_proportional": rope_scaled,
    "rope_hunyuan": rope_hunyuan,
    "rope_gemma3": rope_gemma3,
    "nope_smollm3": smollm3,
    "temperature_llama4": llama4,
    "temperature_ministral3": ministral3,
    "alibi_bloom": alibi,
    "alibi_mpt": alibi,
    "wavlm_attention": wavlm,
    "inkling_attention": inkling,
    "inkling_2": inkling_2,
    "sink_gpt_oss": sink,
    "fox_x_transformers": forgetting,
    "xpos_x_transformers": xpos,
    "sandwich_attn_gym": sandwich,
    "sinusoidal_2d_mae": axial_sinusoid,
    "learned_2d_interpolate": learned_2d,
    "learned_grid_interpolate": resized_grid,
    "rope_2d_qwen2_vl": rotary_2d,
    "rope_2d_pixtral": rotary_2d,
    "rope_2d_dinov3": rotary_pixels,
    "rope_2d_timm": rotary_pixels,
    "rope_mixed_timm": rotary_mixed,
    "rope_nd_minimax_m3": rotary_nd,
    "mrope_qwen2_vl": rotary_3d,
    "mrope_qwen3_vl": rotary_3d,
    "mrope_positions": multimodal,
    "swin_bias": swin_bias,
    "swin_beit": swin_class,
    "cpb_swinv2": cpb,
    "cpb_timm": cpb,
    "cpb_x_transformers": cpb,
    "layoutlmv3_attention": layoutlmv3,
    "fox_fla": forgetting,
    "cope_x_transformers": cope,
    "path_fla": path,
    "stick_breaking_fla": stick_breaking,
}
