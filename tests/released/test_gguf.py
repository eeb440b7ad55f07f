"""GGUF files: names, changed weights, quantizations, keys, tokenizers, and damaged files."""

import itertools
import json
import pathlib
import struct
import sys

import numpy as np
import pytest

from pe_jax import hf
from pe_jax.encodings.rope import frequencies
from pe_jax.encodings.rope_scaling import Llama3
from pe_jax.released import files, gguf_config, gguf_files, tokenizer_files
from pe_jax.validation import ConfigError

gguf = pytest.importorskip("gguf", reason="gguf is missing: install the extra `checkpoints`")
tokenizers = pytest.importorskip("tokenizers")

from tests.released import gguf_writing  # noqa: E402

SIZES = {"layers": 1, "width": 8, "hidden": 12, "heads": 4, "kv_heads": 2, "length": 64}
LLAMA = {**SIZES, "rms": 1e-5, "base": 5e5, "head_dim": 2, "rope_dims": 2}
STATE = {
    "model.embed_tokens.weight": (6, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
    "model.norm.weight": (8,),
}


def drawn(shapes):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def llama(path, config=LLAMA, kind="llama", shapes=STATE, **options):
    return gguf_writing.write(path / "model.gguf", kind, config, drawn(shapes), **options)


def test_a_llama_is_read_as_it_was(tmp_path):
    checkpoint = files.read(llama(tmp_path))
    assert checkpoint.config == {
        "model_type": "llama",
        "vocab_size": 6,
        "tie_word_embeddings": True,
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,  # not 9.99999974e-06, its float32
        "rope_theta": 5e5,
        "head_dim": 2,
    }
    assert checkpoint.tensors.shapes == STATE
    for name, x in drawn(STATE).items():
        np.testing.assert_array_equal(checkpoint.tensors[name], x, err_msg=name)


@pytest.mark.parametrize("name", gguf_config.ARCHITECTURES)
def test_tensors_have_the_names_that_the_package_gives_them(name):
    ours = gguf_config.ARCHITECTURES[name]
    arch = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    theirs = gguf.get_tensor_name_map(arch, 3)
    for place, full in ours.outside.items():
        bare = full.replace("transformer.", "") if name == "bloom" else full
        unused = place == "output" and name in ("gemma", "gemma2")  # always tied
        assert theirs.get_name(bare) == (None if unused else place)
    layers = [ours.layer, gguf_config.FALCON_NORMS if name == "falcon" else {}]
    for place, full in itertools.chain(*(names.items() for names in layers)):
        full = f"{ours.layers}.2.{full.removesuffix('.norms')}"
        bare = full.replace("transformer.", "") if name == "bloom" else full
        assert theirs.get_name(bare) == f"blk.2.{place}", full
    tensors = {gguf.TENSOR_NAMES[x].partition("{bid}.")[2] for x in gguf.MODEL_TENSORS[arch]}
    assert {*ours.changed} <= {*ours.layer, *ours.outside, *gguf_config.GEMMA_NORMS}
    unread = {"", "attn_rot_embd", "ffn_gate_inp", "ffn", "position_embd"}
    unread |= {x for x in tensors if x.endswith("_exps")}  # of experts
    if name in ("phi3", "mpt"):
        unread |= {f"attn_{x}" for x in ("q", "k", "v", "q_norm", "k_norm")}  # of some files
    assert tensors - unread <= {*ours.layer}


H, K, E = 4, 2, 6  # heads, key heads, head width
CHANGES = {  # kind: what makes rows of a layer's weight, their number, and the weight
    "llama": ("self_attn.q_proj", H * E),
    "mistral": ("self_attn.k_proj", K * E),
    "smollm3": ("self_attn.k_proj", K * E),
    "gemma3_text": ("post_feedforward_layernorm", None),
    "gpt2": ("attn.c_attn", 3 * H * E),
    "gpt_neox": ("attention.query_key_value", 3 * H * E),
    "bloom": ("self_attention.query_key_value", 3 * H * E),
    "falcon": ("self_attention.query_key_value", (H + 2 * K) * E),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_llama_cpp_changes_in_weights_is_undone(kind):
    name, rows = CHANGES[kind]
    arch = gguf_config.ARCHITECTURES[gguf_writing.ARCH.get(kind, kind)]
    weight = np.random.default_rng(1).normal(size=(rows, 5) if rows else 5).astype(np.float32)
    stored = gguf_writing.changed(kind, f"{arch.layers}.0.{name}.weight", weight, H, K)
    assert stored.shape != weight.shape or not np.array_equal(stored, weight)
    (place,) = (place for place, full in arch.layer.items() if full == name)
    kv_heads = K if kind in ("llama", "mistral", "smollm3", "falcon") else H
    back = arch.changed[place](stored, gguf_config.Sizes(H, kv_heads))
    np.testing.assert_allclose(back, weight, rtol=0, atol=3e-7)


def packed():
    """Quantizations that the package packs and unpacks."""
    for kind in gguf.GGMLQuantizationType:
        try:
            elements, _ = gguf.GGML_QUANT_SIZES[kind]
            gguf.quantize(np.zeros((1, elements), np.float32), kind)
        except (NotImplementedError, KeyError):
            continue
        yield kind


@pytest.mark.parametrize("kind", list(packed()), ids=lambda kind: kind.name)
def test_quantized_tensors_are_unpacked(tmp_path, kind):
    x = np.random.default_rng(2).normal(size=(3, 512)).astype(np.float32)
    raw = gguf.quantize(x, kind)
    path = llama(tmp_path, tensors={"extra.weight": (raw, kind)})
    stored = gguf_files.header(path)[1]["extra.weight"]
    assert stored.shape == (3, 512) and stored.kind == kind.name
    np.testing.assert_array_equal(stored.load(), gguf.dequantize(raw, kind))
    if kind.name == "Q8_0":
        np.testing.assert_allclose(stored.load(), x, rtol=0, atol=0.02)


def read_scaled(path, more, factors=None):
    tensors = {} if factors is None else {"rope_freqs.weight": (factors.astype(np.float32), None)}
    config = {**LLAMA, "head_dim": 16, "rope_dims": 16}
    config = files.read(llama(path, config=config, more=more, tensors=tensors)).config
    return hf.encodings({**config, "head_dim": 16})[0].encoding.scaling, config.get("rope_scaling")


def linear(writer):
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


def test_scalings_of_rope_are_read(tmp_path):
    def yarn(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)
        writer.add_rope_scaling_yarn_beta_fast(16.0)

    scaling, keys = read_scaled(tmp_path, yarn)
    assert (scaling.factor, scaling.original_length, scaling.beta_fast) == (4.0, 16, 16.0)
    assert "attention_factor" not in keys  # llama.cpp's 1 is YaRN's own
    scaling, _ = read_scaled(tmp_path, lambda w: (yarn(w), w.add_rope_scaling_attn_factors(0.5)))
    assert scaling.attention_factor == pytest.approx(0.5 * (0.1 * np.log(4.0) + 1))
    scaling, _ = read_scaled(tmp_path, linear)
    assert scaling.factor == 8.0
    theta = np.asarray(frequencies(16, 5e5), np.float64)
    factors = theta / Llama3(32.0)(theta)
    assert 1 < len(set(factors.round(3))) < 8
    scaling, _ = read_scaled(tmp_path, None, factors)
    assert scaling == Llama3(32.0)
    other = np.linspace(1, 3, 8)
    scaling, keys = read_scaled(tmp_path, None, other)
    assert keys["rope_type"] == "longrope"
    np.testing.assert_allclose(scaling(theta), theta / other, rtol=1e-6)


NORM = {"model.embed_tokens.weight": (6, 8), "model.norm.weight": (8,)}


def gemma(path, more=None, layers=6):
    sizes = {**LLAMA, "layers": layers, "head_dim": 4, "rope_dims": 4, "base": 1e6, "window": 5}
    return files.read(llama(path, sizes, "gemma3_text", NORM, more=more))


def test_gemma_3_has_two_bases_windows_and_a_scale(tmp_path):
    checkpoint = gemma(tmp_path)
    layers = hf.encodings(checkpoint.config)
    assert hf.pattern(layers) == "rope@window=5*5,rope(base=1000000.0)"
    assert {layer.scale for layer in layers} == {None}  # that of the width of its heads
    norm = checkpoint.tensors["model.norm.weight"]
    np.testing.assert_allclose(norm, drawn(NORM)["model.norm.weight"], rtol=0, atol=2e-7)
    scaled = gemma(tmp_path, linear)
    scalings = [layer.encoding.scaling for layer in hf.encodings(scaled.config)]
    assert scalings[:5] == [None] * 5 and scalings[5].factor == 8.0
    pattern = [True, False] * 3
    others = gemma(tmp_path, lambda w: w.add_sliding_window_pattern(pattern))
    windows = [layer.window for layer in hf.encodings(others.config)]
    assert windows == [5, None] * 3
    layers = hf.encodings(gemma(tmp_path, layers=62).config)
    assert {layer.scale for layer in layers} == {2**-0.5}  # of the 27B: width / heads


# Tokenizers

TEXT = (
    "The naïve café — Zoë's 12 345 tests; it's 日本語 and 😀😀!\n\n  def f(x):\n\treturn x ** 2\r\n"
)
TEXT = TEXT * 3 + "   leading   1999 and 2,000.5 of I'LL \u0065\u0301 end  "
PRE = [pre for pre in tokenizer_files.SPLITS if pre not in ("llama3", "llama-v3")]


NO_FILE = pathlib.Path("no such tokenizer.json")


def keys_of(tokens, **more):
    return {"tokenizer.ggml.tokens": tokens} | {f"tokenizer.ggml.{k}": v for k, v in more.items()}


def trained(pre):
    """A BPE whose pieces are those of a pre-tokenizer, as the models' tokenizer.json has it."""
    split = tokenizers.pre_tokenizers
    whole, *options = tokenizer_files.SPLITS[pre]
    byte = split.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("smollm", "starcoder"):
        parts = [split.Digits(individual_digits=True), byte]
    elif pre == "falcon":
        three = split.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")
        parts = [split.Punctuation("contiguous"), byte, split.Digits(False), three]
    elif whole == "gpt2":
        parts = [byte]
    else:
        only_bytes = split.ByteLevel(add_prefix_space=False, use_regex=False)
        parts = [split.Split(tokenizers.Regex(whole), "isolated"), only_bytes]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = split.Sequence(parts)
    if "NFC" in options:
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    alphabet = split.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, show_progress=False, initial_alphabet=alphabet, special_tokens=["<|end|>"]
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


@pytest.mark.parametrize("pre", PRE)
def test_bpe_of_bytes_gives_the_same_tokens_as_the_tokenizer_it_was_made_of(pre):
    model = trained(pre)
    vocab = model.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = [" ".join(pair) for pair in json.loads(model.to_str())["model"]["merges"]]
    types = [3 if token == "<|end|>" else 1 for token in tokens]
    keys = keys_of(tokens, model="gpt2", pre=pre, merges=merges, token_type=types)
    keys |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.chat_template": "{{ x }}"}
    ours, extra = tokenizer_files.from_gguf(keys, NO_FILE)
    text = f"{TEXT}<|end|>{TEXT}"
    ids = ours.encode(text).ids
    begins = pre == "llama-bpe"
    assert ids == [0] * begins + model.encode(text).ids
    assert ids.count(0) == 1 + begins
    plain = ours.decode(ids, skip_special_tokens=True)
    composed = "\u00e9" in plain and "\u0065\u0301" not in plain
    assert composed == ("NFC" in tokenizer_files.SPLITS[pre])
    assert extra == {"chat_template": "{{ x }}", "bos_token": "<|end|>"}


def test_digits_are_split_before_spaces_are():
    """transformers 5.23 does not know SmolLM2's pre-tokenizer: it has a token for each space."""
    tokens = ["Ġ", "ĠĠ", "1", "2", "a"]
    keys = keys_of(tokens, model="gpt2", pre="smollm", merges=["Ġ Ġ"])
    assert tokenizer_files.from_gguf(keys, NO_FILE)[0].encode("a  12").ids == [4, 1, 2, 3]
    keys["tokenizer.ggml.pre"] = "gpt-2"
    assert tokenizer_files.from_gguf(keys, NO_FILE)[0].encode("a  12").ids == [4, 0, 0, 2, 3]


def test_llama_3_takes_a_word_that_is_a_token_as_it_is():
    keys = keys_of(["a", "b", "c", "ab", "bc", "abc"], model="gpt2", merges=["b c", "a b"])
    for pre, ids in {"llama-bpe": [5], "gpt-2": [0, 4]}.items():
        keys["tokenizer.ggml.pre"] = pre
        assert tokenizer_files.from_gguf(keys, NO_FILE)[0].encode("abc").ids == ids


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\n", "  "]
PIECES += ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁▁b", "ca", "cab"]
TYPES = [2, 3, 3, *[6] * 256, 4, 4, *[1] * 11]
SCORES = [*[0.0] * 259, -1000.0, -1000.0, -10.0, -11.0, -12.0, -13.0, -4.0, -1.0, -3.0, -2.0]
SCORES += [-5.0, -6.0, -0.5]


def greedy(text):
    """SentencePiece's BPE: of all neighbours those whose union has the best score are joined."""
    pieces, best = list(text.replace(" ", "▁")), dict(zip(PIECES, SCORES, strict=True))
    best["▁▁"] = 0.0  # user-defined: never cut
    while True:
        unions = ["".join(pair) for pair in itertools.pairwise(pieces)]
        scored = [(best[x], -at) for at, x in enumerate(unions) if x in best]
        if not scored:
            return pieces
        at = -max(scored)[1]
        pieces[at : at + 2] = [unions[at]]


def test_scores_are_merged_as_sentencepiece_does():
    keys = keys_of(PIECES, model="llama", scores=SCORES, token_type=TYPES, bos_token_id=1)
    keys |= {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.eos_token_id": 2}
    tokenizer, extra = tokenizer_files.from_gguf(keys, NO_FILE)
    assert extra == {"bos_token": "<s>", "eos_token": "</s>", "stop": [2]}
    rng = np.random.default_rng(3)
    for _ in range(200):
        text = "".join(rng.choice(list("abc "), 12))
        encoded = tokenizer.encode(text)
        assert encoded.tokens == ["<s>", *greedy(text)], text
        assert tokenizer.decode(encoded.ids) == text
    assert tokenizer.encode("é\n").ids == [1, 3 + 0xC3, 3 + 0xA9, 259]  # bytes; a user's token
    assert tokenizer.encode("</s>", add_special_tokens=False).ids == [2]
    keys["tokenizer.ggml.add_bos_token"] = False
    del keys["tokenizer.ggml.add_space_prefix"]
    keys["tokenizer.ggml.add_eos_token"] = True
    tokenizer, _ = tokenizer_files.from_gguf(keys, NO_FILE)
    assert tokenizer.encode("a").tokens == ["▁a", "</s>"] and tokenizer.decode([267]) == "a"


def test_an_unknown_tokenizer_is_read_from_the_file_beside(tmp_path):
    tokens = [chr(97 + i) for i in range(20)]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[])
    )
    beside = tmp_path / "tokenizer.json"
    keys = keys_of(tokens, model="gpt2", pre="tomorrow")
    with pytest.raises(ConfigError, match="pre='tomorrow' is not known.*tokenizer.json beside"):
        tokenizer_files.from_gguf(keys, beside)
    tokenizer.save(str(beside))
    assert tokenizer_files.from_gguf(keys, beside)[0].encode("cab").ids == [2, 0, 1]
    with pytest.raises(ConfigError, match="20 of 20 tokens are not those"):
        tokenizer_files.from_gguf({**keys, "tokenizer.ggml.tokens": tokens[::-1]}, beside)


# What is not read

REFUSED = {  # keys that a writer adds, and what the line says
    "experts": (lambda w: w.add_expert_count(8), "llama.expert_count=8: it is not understood"),
    "scale": (lambda w: w.add_attention_scale(0.5), "llama.attention.scale=0.5"),
    "scaling": (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
        "rope.scaling.type='longrope': read are none, linear, yarn",
    ),
    "extrapolation": (
        lambda w: (
            w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            w.add_rope_scaling_orig_ctx_len(16),
            w.add_rope_scaling_yarn_ext_factor(0.5),
        ),
        "yarn_ext_factor",
    ),
    "window": (lambda w: w.add_sliding_window_pattern(2), "llama.attention.sliding_window_pattern"),
    "parts": (lambda w: w.add_uint16("split.count", 3), "llama-gguf-split --merge"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_that_is_not_understood_is_an_error(tmp_path, case):
    more, text = REFUSED[case]
    path = llama(tmp_path, more=more)
    with pytest.raises(ConfigError) as error:
        files.read(path)
    assert str(path) in str(error.value) and text in str(error.value)


def test_a_tensor_that_is_not_understood_is_an_error(tmp_path):
    extra = {"blk.0.attn_sinks.weight": (np.zeros(4, np.float32), None)}
    with pytest.raises(ConfigError, match="tensor blk.0.attn_sinks.weight is not one of llama"):
        files.read(llama(tmp_path, tensors=extra))


def test_one_of_two_lists_of_factors_is_an_error(tmp_path):
    extra = {"rope_factors_long.weight": (np.ones(1, np.float32), None)}
    with pytest.raises(ConfigError, match="rope_factors_short.weight=None: the file has one"):
        files.read(llama(tmp_path, tensors=extra))


def test_a_window_that_an_architecture_does_not_have_is_an_error(tmp_path):
    config = {**{key: x for key, x in LLAMA.items() if key != "head_dim"}, "window": 5}
    assert files.read(llama(tmp_path, config)).config["model_type"] == "mistral"
    with pytest.raises(ConfigError, match="qwen2.attention.sliding_window=5: it is not understood"):
        files.read(llama(tmp_path, config, "qwen2"))


def test_heads_of_which_a_part_rotates_must_be_said(tmp_path):
    with pytest.raises(ConfigError, match="rope.dimension_count=1: must be 2"):
        files.read(llama(tmp_path, {**LLAMA, "rope_dims": 1}))


@pytest.fixture
def whole(tmp_path):
    return llama(tmp_path)


def test_an_unknown_architecture_is_named(whole):
    raw = whole.read_bytes().replace(b"llama", b"lamma")
    whole.write_bytes(raw)
    with pytest.raises(ConfigError, match="general.architecture='lamma' is not read; read are"):
        files.read(whole)


def test_a_file_that_is_cut_off_anywhere_is_refused(whole):
    raw = whole.read_bytes()
    for size in {*range(8, len(raw) - 32, 97), len(raw) - 32}:
        whole.write_bytes(raw[:size])
        with pytest.raises(ConfigError) as error:
            files.read(whole)
        text = str(error.value)
        assert "cut off" in text and str(whole) in text and text.endswith("copy the file again")


@pytest.mark.parametrize(
    "offset, value, text",
    [
        (4, struct.pack("<I", 1), "of version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 2**60), "cut off"),
        (16, struct.pack("<Q", 2**60), "cut off"),
        (24, struct.pack("<Q", 2**62), "cut off"),
        (32, b"\xff\xfe", "is not UTF-8"),
        (24 + 8 + len("general.architecture"), struct.pack("<I", 77), "a value of type 77"),
    ],
)
def test_a_damaged_header_is_refused(whole, offset, value, text):
    raw = bytearray(whole.read_bytes())
    raw[offset : offset + len(value)] = value
    whole.write_bytes(raw)
    with pytest.raises(ConfigError, match=text):
        files.read(whole)


@pytest.mark.parametrize("kind, name", [(250, "250"), (9, "Q8_1")])
def test_an_unknown_quantization_is_named(whole, kind, name):
    raw = whole.read_bytes()
    at = raw.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    whole.write_bytes(raw[:at] + struct.pack("<I", kind) + raw[at + 4 :])
    with pytest.raises(ConfigError, match=f"output_norm.weight is quantized as {name}, which"):
        files.read(whole)


def test_a_missing_library_names_the_extra(whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"needs gguf; pip install 'pe_jax\[checkpoints\]'"):
        files.read(whole)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"merges": ["a"]}, "tokenizer.ggml.merges"),
        ({"merges": []}, "tokenizer.ggml.merges"),
        ({"token_type": [1]}, r"len\(tokenizer.ggml.token_type\)=1: must be 3"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"model": "bert"}, "tokenizer.ggml.model='bert'"),
        ({"model": "llama"}, "tokenizer.ggml.scores"),
        ({"pre": None}, "pre=None is not known"),
    ],
)
def test_lists_of_a_tokenizer_that_do_not_fit_are_refused(change, text):
    own = {"tokens": ["a", "b", "ab"], "model": "gpt2", "pre": "gpt-2", "merges": ["a b"]} | change
    with pytest.raises(ConfigError, match=text):
        tokenizer_files.from_gguf(keys_of(own.pop("tokens"), **own), NO_FILE)


def test_architectures_are_all_read_by_hf():
    for architecture in gguf_config.ARCHITECTURES.values():
        assert architecture.model_type in hf.FAMILIES
