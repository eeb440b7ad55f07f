"""Files of released models: what transformers reads in them, or had before they were converted."""

import json
import pathlib
import re

import numpy as np
import pytest

from pe_jax import hf
from tests.oracles.tiny_models import drawn

pytestmark = pytest.mark.oracles
pytest.importorskip("gguf", reason="gguf is missing: install the extra `checkpoints`")

from pe_jax.released import files, load  # noqa: E402
from pe_jax.training.step import last_losses  # noqa: E402
from tests.released import gguf_writing  # noqa: E402

SIZES = {"layers": 4, "width": 48, "hidden": 64, "heads": 6, "length": 128}
RMS, LAYER = {"rms": 1e-5}, {"norm": 1e-5}
GROUPS = {**SIZES, **RMS, "kv_heads": 2, "base": 1e5}
WIDE = {**GROUPS, "head_dim": 16}
KINDS = {  # sizes, what the model's config says besides them, keys of the file besides them
    "llama": ({**WIDE, "rope_dims": 16}, {}, None),
    "mistral": ({**WIDE, "window": 5}, {"sliding_window": 5}, None),
    "smollm3": ({**GROUPS, "layers": 8}, {"pad_token_id": 0}, None),
    "qwen2": (GROUPS, {}, None),
    "qwen3": (WIDE, {}, None),
    "gemma": (WIDE, {}, None),
    "gemma2": (
        {**WIDE, "window": 5},
        {"query_pre_attn_scalar": 16},
        lambda w: (w.add_attn_logit_softcapping(50.0), w.add_final_logit_softcapping(30.0)),
    ),
    "gemma3_text": (
        {**WIDE, "layers": 12, "window": 5, "base": 1e6},
        {"query_pre_attn_scalar": 16},
        None,
    ),
    "olmo2": (GROUPS, {}, None),
    "phi3": (
        {**GROUPS, "rope_dims": 6},
        {"partial_rotary_factor": 0.75, "pad_token_id": 0},
        lambda w: w.add_pad_token_id(0),
    ),
    "stablelm": (
        {**SIZES, **LAYER, "kv_heads": 2, "base": 1e4, "rope_dims": 4},
        {"partial_rotary_factor": 0.5, "use_qkv_bias": True, "qk_layernorm": True},
        lambda w: w.add_parallel_residual(False),
    ),
    "starcoder2": ({**SIZES, **LAYER, "kv_heads": 2, "base": 1e5}, {}, None),
    "gpt2": ({**SIZES, **LAYER, "hidden": 192, "length": 1024}, {}, None),
    "gpt_neox": (
        {**SIZES, **LAYER, "rope_dims": 2},
        {"rotary_pct": 0.25},
        lambda w: w.add_parallel_residual(True),
    ),
    "bloom": ({**SIZES, **LAYER, "hidden": 192}, {}, None),
    "falcon": (
        {**SIZES, **LAYER, "kv_heads": 2},
        {"new_decoder_architecture": True, "alibi": False, "bias": False},
        lambda w: w.add_tensor_data_layout("jploski"),
    ),
    "falcon 7b": ({**SIZES, **LAYER, "kv_heads": 1}, {"alibi": False, "bias": False}, None),
    "mpt": (
        {**SIZES, **LAYER, "hidden": 192},
        {"attn_config": {"alibi_bias_max": 8}},
        lambda w: w.add_max_alibi_bias(8.0),
    ),
}
# Of the others transformers has no reader, or not of these sizes.
READ_BY_BOTH = "llama qwen2 gemma2 gemma3_text phi3 starcoder2 gpt2 bloom".split()


def model_of(kind):
    """A tiny model of transformers with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes, settings, _ = KINDS[kind]
    kind = kind.split()[0]
    default = AutoConfig.for_model(kind)
    known = set(default.to_dict()) | set(default.attribute_map)
    names = {
        "num_hidden_layers": sizes["layers"],
        "hidden_size": sizes["width"],
        "num_attention_heads": sizes["heads"],
        "max_position_embeddings": sizes["length"],
        "max_seq_len": sizes["length"],
        "num_key_value_heads": sizes.get("kv_heads", sizes["heads"]),
        "num_kv_heads": sizes.get("kv_heads", sizes["heads"]),
        "intermediate_size": sizes["hidden"],
        "ffn_hidden_size": sizes["hidden"],
        "n_inner": sizes["hidden"],
        "expansion_ratio": sizes["hidden"] // sizes["width"],
        "head_dim": sizes.get("head_dim"),
        "sliding_window": sizes.get("window"),
        "rms_norm_eps": 1e-5,
        "layer_norm_eps": 1e-5,
        "layer_norm_epsilon": 1e-5,
        "norm_epsilon": 1e-5,
        "vocab_size": 40,
        "rope_theta": sizes.get("base", 1e4),
    }
    given = {name: x for name, x in names.items() if name in known and x is not None}
    if "rope_parameters" in known and kind != "gemma3_text":
        given["rope_theta"] = sizes.get("base", 1e4)
    return drawn(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **given | settings)))


def state_of(model):
    """Its weights, once each: those that a file of the Hub has."""
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    return {name: x.numpy() for name, x in model.state_dict().items() if name not in tied}


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_is_read_as_it_was(oracles, tmp_path, kind):
    sizes, _, more = KINDS[kind]
    model = model_of(kind)
    state = state_of(model)
    path = gguf_writing.write(tmp_path / "model.gguf", kind.split()[0], sizes, state, more)
    checkpoint = files.read(path)
    assert checkpoint.tensors.shapes == {name: x.shape for name, x in state.items()}
    for name, x in state.items():
        np.testing.assert_allclose(checkpoint.tensors[name], x, rtol=0, atol=2e-7, err_msg=name)
    config = json.loads(model.config.to_json_string(use_diff=False))
    assert hf.encodings(checkpoint.config) == hf.encodings(config)
    assert_means_the_same(checkpoint.config, model.config)


def assert_means_the_same(ours, theirs):
    """Every key that was read is what the model's config has."""
    apart = {"rope_theta", "rope_local_base_freq", "rope_scaling"}
    apart |= {"rotary_pct", "partial_rotary_factor"}  # in rope_parameters; the encodings say it
    for name, value in ours.items():
        if name == "attn_config":
            assert {key: getattr(theirs.attn_config, key) for key in value} == value
        elif name not in apart and hasattr(theirs, name):
            assert getattr(theirs, name) == value, name


@pytest.mark.parametrize("kind", READ_BY_BOTH)
def test_transformers_reads_the_same_file_alike(oracles, tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers needs accelerate to read GGUF files")
    sizes, _, more = KINDS[kind]
    path = tmp_path / "model.gguf"
    gguf_writing.write(path, kind, sizes, state_of(model_of(kind)), more)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    checkpoint = files.read(path)
    state = state_of(theirs)
    assert state.keys() == checkpoint.tensors.keys()
    for name, x in state.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], x, err_msg=name)


TEXT = """Zażółć gęślą jaźń, naïve café, Ünïcödé ñandú; it's I'LL don't DON'T we'RE
12 345 6,789.01 1999's 3.14e-5 0x1F #42 a1b2c3 ½ ² Ⅷ ٣٤
def f(x: int) -> dict[str, float]:\n    return {"a": x ** 2, "b": [x_1 != y]}  # comment
\t\ttabs\r\nwindows\n\n\n\nlines   three     five spaces <b>bold</b> </td> &amp;
日本語の文章です。中文文本，标点！ 한국어 문장 العربية עברית हिन्दी ไทย
😀👩‍👩‍👧 🇩🇪 ✊🏽 e\u0301 \u00a0nbsp\u200bzero \ufeff
"""


@pytest.mark.parametrize("name", files.PACKAGES)
def test_embedded_models_are_read_as_transformers_reads_them(oracles, name):
    import torch

    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers needs accelerate to read GGUF files")
    try:
        checkpoint = files.read(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    place = {"gguf_file": checkpoint.path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.path.parent, **place)
    code = pathlib.Path(hf.__file__).read_text()
    text = TEXT + code + TEXT[::-1] + " " * 2 + code[::2]
    if name == "smollm2":  # whose split of digits transformers 5.23 does not know: test_gguf.py
        text = re.sub(r"\s+(?=[0-9])", " ", re.sub(r"[½²Ⅷ٣٤]", "", text))
    assert len(text) > 15_000
    for part in (text, " leading", "  two", "", "\n", "\n\n  x", "x " * 7):
        ids = checkpoint.tokenizer.encode(part).ids
        assert ids == tokenizer(part)["input_ids"], part[:20]
        assert checkpoint.tokenizer.decode(ids) == part
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint.path.parent, **place, dtype="float32"
    )
    state = state_of(theirs)
    assert state.keys() == checkpoint.tensors.keys()
    for tensor, x in state.items():
        np.testing.assert_array_equal(checkpoint.tensors[tensor], x, err_msg=tensor)
    row = np.asarray(checkpoint.tokenizer.encode(code).ids[:601])[None]
    with torch.no_grad():
        logits = theirs(torch.tensor(row[:, :-1])).logits
    expected = torch.nn.functional.cross_entropy(
        logits[0], torch.tensor(row[0, 1:]), reduction="none"
    )
    losses = last_losses(load.model(checkpoint), row, 600)[0]
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
