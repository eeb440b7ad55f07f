"""experiments.inspect and experiments.generate on a tiny checkpoint."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest

from experiments import generate
from experiments.measuring import passages
from experiments.programs import inspect
from pe_jax.models.generate import generate as generated
from pe_jax.released import files, load, tokenizer_files
from pe_jax.training import tokenizer
from pe_jax.training.step import last_losses, token_losses
from pe_jax.validation import ConfigError
from tests.command_lines import start, status

safetensors = pytest.importorskip(
    "safetensors.numpy", reason="safetensors is missing: install the extra `checkpoints`"
)
SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 24, "vocab_size": 300}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 96, "sliding_window": 24}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|answer|>{% endif %}"
TEXT = "One fox, two foxes; ten dogs at 12:30 o'clock.\n" * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Mistral of two layers with drawn weights and a tokenizer of bytes."""
    path = tmp_path_factory.mktemp("model")
    config = {"model_type": "mistral", "tie_word_embeddings": True, **SIZES}
    (path / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": (300, 16), "model.norm": (16,)}
    for layer in (f"model.layers.{n}" for n in range(2)):
        shapes |= {f"{layer}.self_attn.{x}_proj": (16, 16) for x in "qkvo"}
        shapes |= {f"{layer}.mlp.{x}_proj": (24, 16) for x in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (16, 24)}
        shapes |= {f"{layer}.{x}_layernorm": (16,) for x in ("input", "post_attention")}
    rng = np.random.default_rng(0)
    weights = {f"{n}.weight": rng.normal(size=x).astype(np.float32) for n, x in shapes.items()}
    safetensors.save_file(weights, path / "model.safetensors")
    tokenizer.train_bpe([TEXT.encode()], str(path / "tokenizer.json"), vocab=300)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture
def small(monkeypatch):
    """Probes of lengths that the tiny model allows."""
    monkeypatch.setattr(inspect, "PASSAGE", 32)
    monkeypatch.setattr(inspect, "OFFSETS", (0, 1000, 50_000))
    monkeypatch.setattr(inspect, "TARGETS", 24)
    monkeypatch.setattr(inspect, "LENGTHS", (32, 64, 96, 192))


def run(program, *argv):
    return status(functools.partial(start, program, None), *argv)


def test_a_checkpoint_is_described_and_probed(folder, small, tmp_path, capsys):
    (tmp_path / "text").write_text(TEXT)
    assert run("inspect", f"--checkpoint={folder}", f"--text={tmp_path / 'text'}") is None
    shown = capsys.readouterr().out
    head, at, of = re.split(r"\nThe loss.*\n.*nats per token\n", shown)
    lines = dict(line.split(maxsplit=1) for line in head.splitlines() if "trained" not in line)
    assert lines["model"] == "mistral: 2 layers, width 16, heads of 8"
    assert lines["parameters"] == "9,232: 9,232 in F32"
    assert lines["positions"] == "rope@window=24"
    assert lines["windows"] == "2 of 2 layers see 24"
    assert lines["tokenizer"].endswith("texts begin with no token; a template for chats")
    assert "trained to   96 tokens" in head
    at, of = (
        {int(a.replace(",", "")): float(b) for a, b in map(str.split, filter(None, x.split("\n")))}
        for x in (at, of)
    )
    assert {*at} == {0, 1000, 50_000} and np.ptp([*at.values()]) < 2e-3
    assert [*of] == [32, 64, 96]  # not beyond what it was trained to
    tokens = files.read(folder).tokenizer.encode(TEXT).ids[:97]
    logits = load.model(files.read(folder))(np.asarray(tokens[:-1])[None])
    expected = token_losses(logits, np.asarray(tokens[1:])[None])[0, -24:].mean()
    assert of[96] == pytest.approx(float(expected), abs=1e-3)


def test_learned_positions_end_the_probe_where_their_table_does(folder, small, monkeypatch):
    model = load.model(files.read(folder))
    monkeypatch.setattr(type(model.config), "limit", 1040)
    probed = dict(inspect.by_offset(model, [], [*range(40)]))
    assert probed[50_000] is None and probed[1000] is not None


def test_a_text_that_is_too_short_is_refused(folder, tmp_path):
    (tmp_path / "text").write_text("short")
    with pytest.raises(ConfigError, match="tokens; pass a text of 8192 or more"):
        passages.ids(files.read(folder), str(tmp_path / "text"), 1025, 8192)


def test_the_probe_has_a_text_of_its_own(folder):
    assert len(passages.ids(files.read(folder), None, 1025, 8192)) > inspect.LENGTHS[-1]


def test_special_tokens_begin_the_rows_of_the_probe(folder):
    import tokenizers

    model = files.read(folder).tokenizer
    assert tokenizer_files.first(model) == []
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single=["<|endoftext|>", "$A", "<|endoftext|>"], special_tokens=[("<|endoftext|>", 0)]
    )
    assert tokenizer_files.first(model) == [0]


@pytest.mark.parametrize("count", [1, 5, 8, 11])
def test_losses_of_chunks_are_those_of_all_logits(folder, count, monkeypatch):
    from pe_jax.training import step

    model = load.model(files.read(folder))
    rows = np.random.default_rng(1).integers(0, 300, (2, 12))
    expected = token_losses(model(rows[:, :-1]), rows[:, 1:])[:, -count:]
    monkeypatch.setattr(step, "CHUNK", 4)
    np.testing.assert_allclose(last_losses(model, rows, count), expected, rtol=0, atol=1e-5)


def test_an_answer_comes_in_the_template_and_ends_where_the_model_says(folder, capsys):
    options = f"--checkpoint={folder}", "--temperature=0", "--tokens=12"
    assert run("generate", *options, "--prompt=fox") is None
    streamed = capsys.readouterr().out.removesuffix("\n")
    checkpoint = files.read(folder)
    asked = generate.asked(checkpoint.extra, "fox")
    assert asked == "<user>fox<|answer|>"
    ids = np.asarray(checkpoint.tokenizer.encode(asked).ids)[None]
    row = generated(load.model(checkpoint), ids, 12, temperature=0)[0, ids.shape[1] :]
    assert streamed == checkpoint.tokenizer.decode(row.tolist())
    assert run("generate", *options, "--prompt=fox", "--nochat") is None
    assert capsys.readouterr().out.startswith("fox")
    cut = [*row.tolist()].index(row[4])
    extra = {**checkpoint.extra, "stop": [int(row[4])]}
    stopped = dataclasses.replace(checkpoint, extra=extra)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read", lambda source: stopped)
        whole = "".join(generate.answer(str(folder), "fox", 12, 0.0, 0, 0))
    assert whole == checkpoint.tokenizer.decode(row[:cut].tolist())


@pytest.mark.parametrize(
    "template, words",
    [
        ("{{ raise_exception('no system role') }}", r" \(no system role\); pass --nochat"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", ""),
        ("{% if %}", ""),
        ("{{ 1 // 0 }}", " .*by zero"),
    ],
)
def test_a_template_runs_in_a_sandbox_and_may_refuse(template, words):
    with pytest.raises(ConfigError, match=f"the template for chats fails{words}"):
        generate.asked({"chat_template": template}, "a")


@pytest.mark.parametrize(
    "template",
    [
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",  # SmolLM3's
        "{{ messages[0].content if strftime_now('%Y') | int > 2000 }}",  # SmolLM3's, Mistral's
        "{% if tools is none and documents is none %}{{ messages | tojson }}{% endif %}",
    ],
)
def test_a_template_has_what_transformers_offers(template):
    whole = '[{"role": "user", "content": "<é>"}]'
    assert generate.asked({"chat_template": template}, "<é>") in ("<é>", whole)


def test_characters_of_several_tokens_are_shown_whole():
    decode = tokenizer.Bytes().decode
    shown = [*generate.pieces("aé€\xff".encode(), decode)]
    assert "".join(shown) == "aé€ÿ" and [x for x in shown if x] == ["a", "é", "€", "ÿ"]
    assert "".join(generate.pieces("é".encode()[:1], decode)) == "\N{REPLACEMENT CHARACTER}"


def test_a_run_and_a_checkpoint_exclude_each_other(folder, capsys):
    assert run("generate", f"--checkpoint={folder}", "--workdir=runs/x") == 2
    assert "--checkpoint and --workdir are two models" in capsys.readouterr().err
    assert run("inspect", "--checkpoint=nothing") == 2
    assert "no such file or folder; pass a folder" in capsys.readouterr().err
