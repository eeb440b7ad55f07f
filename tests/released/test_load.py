"""Released decoders have the logits of transformers, whole, cached, padded and written back."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pe_jax import hf
from pe_jax.encodings.rope_scaling import YaRN
from pe_jax.released import families, files, load
from pe_jax.released.checkpoint import Checkpoint
from pe_jax.training import sharding
from pe_jax.training.config import MeshConfig
from tests.released import recorded
from tests.released.recorded import CASES, LENGTH, ROWS

TOLERANCE = 1e-5
TOKENIZER = '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
CACHED = ("llama", "gemma3", "gpt2", "bloom")  # a rotation, windows, a learned table, biases


@functools.cache
def loaded(case: str):
    """The checkpoint of a case, and the model of it."""
    checkpoint = recorded.checkpoint(recorded.load()[case])
    return checkpoint, load.model(checkpoint)


def run(model, *arguments, **options):
    """The model's results, compiled."""
    graph, state = nnx.split(model)
    return jax.jit(lambda state, *a, **o: nnx.merge(graph, state)(*a, **o))(
        state, *arguments, **options
    )


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case):
    theirs, (_, model) = recorded.load()[case]["logits"], loaded(case)
    np.testing.assert_allclose(run(model, recorded.tokens()), theirs, rtol=0, atol=TOLERANCE)
    assert theirs.std() > 0.3


@pytest.mark.parametrize("case", CASES)
def test_the_table_gives_back_what_it_took(case):
    checkpoint, model = loaded(case)
    written = load.tensors(model, checkpoint.config)
    assert written.keys() == checkpoint.tensors.keys()
    for name, array in checkpoint.tensors.items():
        first = 2 if name.endswith("embed_positions.weight") else 0  # rows of no position
        np.testing.assert_array_equal(written[name][first:], array[first:], name)
        assert not written[name][:first].any()


def padded():
    """The rows of tokens with padding on the left, of unequal length, and where they begin."""
    starts, width = (3, 1), LENGTH + 3
    tokens, ids = np.zeros((ROWS, width), int), np.full((ROWS, width), -1)
    for row, (start, own) in enumerate(zip(starts, recorded.tokens(), strict=True)):
        tokens[row, start : start + LENGTH], ids[row, start : start + LENGTH] = own, 0
    return tokens, ids, starts


@pytest.mark.parametrize("case", CACHED)
def test_padding_on_the_left_changes_nothing_with_a_cache_or_without(case):
    theirs, (_, model) = recorded.load()[case]["logits"], loaded(case)
    tokens, ids, starts = padded()
    whole = run(model, tokens, segments=ids)
    cache, pieces = model.init_cache(ROWS, tokens.shape[1], padded=True), []
    graph, state = nnx.split(model)
    step = jax.jit(lambda s, t, i, c: nnx.merge(graph, s)(t, segments=i, cache=c))
    for some, own in zip(np.split(tokens, 3, 1), np.split(ids, 3, 1), strict=True):
        logits, cache = step(state, some, own, cache)
        pieces.append(logits)
    for ours in (whole, np.concatenate(pieces, axis=1)):
        for row, start in enumerate(starts):
            own = ours[row, start : start + LENGTH]
            np.testing.assert_allclose(own, theirs[row], rtol=0, atol=TOLERANCE)


def test_a_cache_of_windows_alone_refuses_padding():
    tokens, ids, _ = padded()
    model = loaded("gemma3")[1]
    with pytest.raises(ValueError, match="segments: this cache keeps the last tokens of a window"):
        model(tokens[:, :1], segments=ids[:, :1], cache=model.init_cache(ROWS, tokens.shape[1]))


def test_types_and_devices_are_those_that_are_asked_for():
    checkpoint, plain = loaded("llama")
    half = load.model(checkpoint, jnp.bfloat16)
    leaves = jax.tree.leaves(nnx.as_pure(nnx.state(half, nnx.Param)))
    assert {x.dtype for x in leaves} == {jnp.dtype("bfloat16")} and half.config.dtype == "bfloat16"
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, model=2), jax.devices()[:8])
    model = load.model(checkpoint, mesh=mesh)
    params, whole = (nnx.as_pure(nnx.state(m, nnx.Param)) for m in (model, plain))
    places = sharding.parameter_shardings(params, mesh, model.config)
    assert not places["blocks"][0]["mlp"]["up"]["kernel"].is_fully_replicated
    jax.tree.map(lambda x, place: x.sharding == place or pytest.fail(str(x)), params, places)
    jax.tree.map(np.testing.assert_array_equal, params, whole)


def test_another_encoding_takes_the_place_of_the_configs():
    """With patterns of other lengths, that is, weights stacked otherwise."""
    theirs, checkpoint = recorded.load()["gpt2"]["logits"], loaded("gpt2")[0]
    tokens = recorded.tokens()
    same = load.model(checkpoint, encoding="learned(length=30),learned(length=30)")
    np.testing.assert_allclose(run(same, tokens), theirs, rtol=0, atol=TOLERANCE)
    other = load.model(checkpoint, encoding="learned(length=30),t5,nope@window=3,t5")
    params = [nnx.as_pure(nnx.state(m, nnx.Param)) for m in (loaded("gpt2")[1], other)]
    np.testing.assert_array_equal(*(p["shared"][0]["table"] for p in params))
    assert params[1]["shared"][1]["table"].std() > 0
    assert np.abs(run(other, tokens) - theirs).max() > 0.01
    with pytest.raises(ValueError, match="model.layers=4: must be a multiple"):
        load.model(checkpoint, encoding="nope,nope,rope")
    with pytest.raises(ValueError, match="no family here has weights of a recurrent layer"):
        load.model(checkpoint, encoding="gated_delta,rope")


def renamed(case: str, rename, **config) -> Checkpoint:
    """The checkpoint of a case with other names of tensors."""
    own = recorded.load()[case]
    weights = {rename(name): x for name, x in recorded.drawn(own["shapes"]).items()}
    return recorded.of(weights, {**own["config"], **config})


def same(model, case: str) -> None:
    """Whether the model has the parameters of a case."""
    params = (nnx.as_pure(nnx.state(m, nnx.Param)) for m in (model, loaded(case)[1]))
    jax.tree.map(np.testing.assert_array_equal, *params)


def test_names_and_tensors_of_other_versions_are_understood():
    gpt2 = renamed("gpt2", lambda name: name.removeprefix("transformer."))
    mask = {"h.0.attn.bias": np.ones((1, 1, 30, 30)), "h.3.attn.masked_bias": np.zeros(())}
    weights = {**gpt2.tensors, **mask, "lm_head.weight": gpt2.tensors["wte.weight"]}
    same(load.model(recorded.of(weights, gpt2.config)), "gpt2")
    neox = renamed("gpt_neox", lambda name: name.replace("embed_out", "lm_head"))
    weights = {**neox.tensors, "gpt_neox.layers.1.attention.rotary_emb.inv_freq": np.ones(1)}
    same(load.model(recorded.of(weights, neox.config)), "gpt_neox")
    embed, head = "model.embed_tokens.weight", "lm_head.weight"  # one tensor, by either name
    tied = renamed("llama tied", lambda name: head if name == embed else name)
    same(load.model(tied), "llama tied")


@pytest.mark.parametrize("case, parent", [("gemma3", "gemma3"), ("llama", "llava")])
@pytest.mark.parametrize(
    "prefix", ["language_model.model.", "model.language_model.", "model.text_model."]
)
def test_of_a_model_with_images_the_text_is_loaded_and_written(case, parent, prefix):
    text = renamed(case, lambda name: name.replace("model.", prefix, 1))
    vision = {f"{x}.0.weight": np.ones((2, 2)) for x in ("vision_tower", "model.connector")}
    config = {"model_type": parent, "text_config": text.config, "vision_config": {"depth": 2}}
    model = load.model(recorded.of({**text.tensors, **vision}, config))
    same(model, case)
    assert load.tensors(model, families.text(config)).keys() == loaded(case)[0].tensors.keys()


def without(case: str, name: str) -> Checkpoint:
    checkpoint = loaded(case)[0]
    return recorded.of(
        {n: x for n, x in checkpoint.tensors.items() if n != name}, checkpoint.config
    )


def with_tensor(case: str, name: str, **config) -> Checkpoint:
    checkpoint = recorded.checkpoint(recorded.load()[case], **config)
    weights = {**checkpoint.tensors, name: np.ones((31, 36), np.float32)}
    return recorded.of(weights, checkpoint.config)


@pytest.mark.parametrize(
    "checkpoint, message",
    [
        (
            lambda: with_tensor("llama", "model.layers.0.mlp.router.weight"),
            "tensor model.layers.0.mlp.router.weight [31, 36]: no entry of family 'llama' takes it",
        ),
        (
            lambda: without("llama", "model.layers.3.mlp.up_proj.weight"),
            "tensor model.layers.3.mlp.up_proj.weight [22, 36] is missing",
        ),
        (lambda: without("opt", "lm_head.weight"), None),  # tied: it need not be there
        (
            lambda: without("gpt_neox", "gpt_neox.layers.0.attention.query_key_value.bias"),
            "tensor gpt_neox.layers.0.attention.query_key_value.bias [96] is missing",
        ),
        (
            lambda: with_tensor("gpt2", "transformer.h.1.attn.c_attn.weight"),
            "tensor transformer.h.1.attn.c_attn.weight has shape [31, 36], where the config says"
            " [36, 108]",
        ),
        (
            lambda: with_tensor("gpt2", "transformer.wpe.weight"),
            "tensors ['transformer.wpe.weight'] of positions have shape [31, 36], where the config"
            " says [30, 36]",
        ),
        (
            lambda: with_tensor("gemma", "lm_head.weight"),
            "tensors lm_head.weight and model.embed_tokens.weight differ: tie_word_embeddings says",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(checkpoint, message):
    if message is None:
        load.model(checkpoint())
        return
    with pytest.raises(ValueError) as info:
        load.model(checkpoint())
    assert str(info.value).startswith(message)


@pytest.mark.parametrize("number", [np.nan, -np.inf])
@pytest.mark.parametrize(
    "case, name",
    [
        ("llama", "model.layers.3.mlp.up_proj.weight"),
        ("llama", "model.norm.weight"),
        ("gpt2", "transformer.wpe.weight"),
    ],
)
def test_a_tensor_that_is_not_finite_is_named(case, name, number):
    checkpoint = recorded.checkpoint(recorded.load()[case])
    damaged = np.array(checkpoint.tensors[name])
    damaged.flat[-1] = number
    checkpoint = recorded.of({**checkpoint.tensors, name: damaged}, checkpoint.config)
    with pytest.raises(ValueError, match=f"^tensor {name} has numbers that are not finite as flo"):
        load.model(checkpoint)


WRONG_KEYS = {  # a case, keys of its config, the words of the error
    "llama": [
        ({"hidden_act": "relu2"}, "hidden_act='relu2': not known; choose of gelu"),
        ({"mlp_bias": 1}, "mlp_bias=1: not supported for 'llama', but false, true"),
        ({"residual_multiplier": 0.2}, "residual_multiplier=0.2: not understood for 'llama'"),
        ({"logits_scaling": 8.0}, "logits_scaling=8.0: not understood"),
        ({"routed_scaling_factor": 2.5}, "routed_scaling_factor=2.5: not understood"),
        ({"num_local_experts": 4}, "num_local_experts=4: not understood"),
        ({"clip_qkv": 8.0}, "clip_qkv=8.0: "),
        ({"intermediate_size": None}, "intermediate_size is missing: 'llama' needs it"),
        ({"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4}: not understood"),
        ({"num_key_value_heads": 4}, "model.kv_heads=4: must divide heads"),
        ({"model_type": "mamba"}, "model_type='mamba': such weights are not loaded, but those of"),
    ],
    "gpt2": [
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale of layer 1=0.2041241452319315: layer 0 has None: all layers must have the same",
        ),
        ({"add_cross_attention": True}, "add_cross_attention=True: not supported"),
    ],
    "opt": [
        ({"do_layer_norm_before": False}, "do_layer_norm_before=False: not supported"),
        ({"word_embed_proj_dim": 20}, "word_embed_proj_dim=20: such embeddings are projected"),
    ],
    "stablelm": [({"qk_layernorm": True}, "qk_layernorm=True: not supported")],
    "mpt": [({"attn_config": {"qk_ln": True}}, "attn_config.qk_ln=True: not understood for 'mpt'")],
    "falcon": [
        ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn=2: without the new architecture"),
        (
            {"new_decoder_architecture": True, "parallel_attn": False},
            "parallel_attn=False: the new architecture is in parallel",
        ),
    ],
}


@pytest.mark.parametrize(
    "case, keys, words", [(case, *row) for case, rows in WRONG_KEYS.items() for row in rows]
)
def test_a_key_that_is_not_understood_is_named(case, keys, words):
    with pytest.raises(ValueError) as info:
        load.model(recorded.checkpoint(recorded.load()[case], **keys))
    assert str(info.value).startswith(words)


UNREAD = {  # keys of configs on the Hub that change nothing here
    "llama": {"pretraining_tp": 1, "rope_interleaved": False, "transformers.js_config": {"a": 1}},
    "gpt2": {"n_ctx": 30, "summary_use_proj": True, "summary_activation": "tanh"},
    "opt": {"activation_dropout": 0.1, "learned_embeddings": True, "scale_embeddings": False},
    "bloom": {"bias_dropout_fusion": True, "skip_bias_add": True, "offset_alibi": 100}
    | {"attention_softmax_in_fp32": True, "masked_softmax_fusion": True, "n_inner": None},
    "mpt": {
        "embedding_fraction": 1.0,
        "init_config": {"emb_init_std": 0.1},
        "learned_pos_emb": True,
    },
    "falcon": {"apply_residual_connection_post_layernorm": False, "auto_map": {"AutoConfig": "x"}},
    "phi3": {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False},
    "gemma2": {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh"},
}


@pytest.mark.parametrize("case", UNREAD)
def test_keys_without_effect_are_passed_over(case):
    config = recorded.load()[case]["config"]
    assert families.read({**config, **UNREAD[case]}) == families.read(config)


def test_a_dtype_that_is_not_a_models_is_refused():
    with pytest.raises(ValueError, match="dtype='float16': choose of float32, bfloat16"):
        load.model(loaded("llama")[0], jnp.float16)


def from_folder(tmp_path, case="llama", **config) -> Checkpoint:
    """The checkpoint of a case as if it were a folder with a tokenizer."""
    folder = tmp_path / "released"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(TOKENIZER)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "…"}')
    (folder / "pytorch_model.bin").write_text("")
    own = recorded.checkpoint(recorded.load()[case], **config)
    return dataclasses.replace(own, path=folder)


def test_a_folder_is_written_whole(tmp_path):
    pytest.importorskip("safetensors")
    types = {"torch_dtype": "bfloat16", "dtype": "bfloat16"}
    checkpoint, model = from_folder(tmp_path, **types), loaded("llama")[1]
    target = tmp_path / "new" / "model"
    load.write(model, target, like=checkpoint)
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in target.iterdir()} == names
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert (target / "tokenizer_config.json").read_text() == '{"chat_template": "…"}'
    again = dataclasses.replace(files.read(target), tokenizer=None)
    assert again.config == {**checkpoint.config, **dict.fromkeys(types, "float32")}
    same(load.model(again), "llama")
    with pytest.raises(FileExistsError, match="it exists; choose another folder"):
        load.write(model, target, like=checkpoint)


def test_a_tokenizer_that_is_no_folders_is_written_too(tmp_path):
    pytest.importorskip("safetensors")
    tokenizers = pytest.importorskip("tokenizers")
    file = tmp_path / "model.gguf"
    file.write_text("")
    extra = {"chat_template": "…", "bos_token": "<s>", "stop": [2]}
    tokenizer = tokenizers.Tokenizer.from_str(TOKENIZER)
    like = dataclasses.replace(loaded("qwen3")[0], path=file, tokenizer=tokenizer, extra=extra)
    load.write(loaded("qwen3")[1], tmp_path / "model", like=like)
    again = files.read(tmp_path / "model")
    assert again.tokenizer.get_vocab() == {"a": 0}
    assert again.extra["chat_template"] == "…" and again.extra["bos_token"] == "<s>"
    assert again.config["dtype"] == "float32"


def test_a_scaling_is_written_in_the_keys_of_the_family(tmp_path):
    pytest.importorskip("safetensors")
    scaling = YaRN(factor=4.0, original_length=16)
    checkpoint, model = from_folder(tmp_path), loaded("llama")[1]
    extended = load.model(
        dataclasses.replace(checkpoint, config=hf.with_scaling(checkpoint.config, scaling))
    )
    load.write(extended, tmp_path / "extended", like=checkpoint, scaling=scaling)
    config = json.loads((tmp_path / "extended" / "config.json").read_text())
    assert config["rope_parameters"]["rope_type"] == "yarn"
    assert hf.pattern(list(hf.encodings(config))) == extended.config.encoding
    with pytest.raises(
        ValueError,
        match=r"layer 0 has rope: the config says rope\(scaling=yarn.*, and only a scaling",
    ):
        load.write(model, tmp_path / "other", like=checkpoint, scaling=scaling)
    other = recorded.checkpoint(recorded.load()["mistral"])
    with pytest.raises(ValueError, match=r"model.norm_epsilon=0.001: the config .* says 1e-06"):
        load.write(model, tmp_path / "other", like=other)
    assert {path.name for path in tmp_path.iterdir()} == {"released", "extended"}


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    safetensors = pytest.importorskip("safetensors.numpy")
    monkeypatch.setattr(safetensors, "save_file", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load.write(loaded("llama")[1], tmp_path / "model", like=loaded("llama")[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.oracles
@pytest.mark.parametrize("case", CASES)
def test_transformers_answers_what_is_recorded_and_loads_what_is_written(oracles, case, tmp_path):
    from transformers import AutoModelForCausalLM

    stored, fresh = recorded.load()[case], recorded.run(case)
    assert stored["shapes"] == fresh["shapes"] and stored["config"] == fresh["config"]
    np.testing.assert_allclose(fresh["logits"], stored["logits"], rtol=0, atol=1e-6)
    checkpoint, model = loaded(case)
    load.write(model, tmp_path / "model", like=checkpoint)
    attention = "sdpa" if case == "falcon alibi" else "eager"
    theirs, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", attn_implementation=attention, output_loading_info=True
    )
    assert not any(report.values()), report
    np.testing.assert_array_equal(recorded.logits(theirs.eval()), fresh["logits"])


@pytest.mark.oracles
@pytest.mark.parametrize("case", ["llama", "gpt_neox", "falcon"])
def test_transformers_reads_a_scaling_that_is_written(oracles, case, tmp_path):
    from transformers import AutoModelForCausalLM

    scaling = YaRN(factor=4.0, original_length=16)
    checkpoint = loaded(case)[0]
    config = hf.with_scaling(checkpoint.config, scaling)
    model = load.model(dataclasses.replace(checkpoint, config=config))
    load.write(model, tmp_path / "model", like=checkpoint, scaling=scaling)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    ours = run(model, recorded.tokens())
    np.testing.assert_allclose(ours, recorded.logits(theirs.eval()), rtol=0, atol=TOLERANCE)
    assert np.abs(ours - recorded.load()[case]["logits"]).max() > 0.01
