"""A released model at longer contexts: rows, losses, what is kept, stopped and refused."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.programs import extend_released as program
from experiments.reporting import released_report
from experiments.running.configs.released import SHORT, ReleasedConfig
from experiments.running.extension import (
    documents,
    haystacks,
    longrope_search,
    methods,
    reader,
    released_runs,
)
from experiments.running.extension.released_runs import Released
from experiments.running.files import table
from pe_jax.encodings import parse
from pe_jax.models.config import ModelConfig
from pe_jax.models.surgery import with_encoding
from pe_jax.models.transformer import Transformer
from pe_jax.released import load
from pe_jax.training.step import token_losses
from tests.experiments import tiny_released
from tests.released import recorded
from tests.trainers import change

L = 256  # the trained length
LENGTHS = (L, 384, 2 * L)
YARN = "rope(scaling=yarn(factor={factor},original_length={length}))"
REROPE = "rerope(window={window})"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return tiny_released.data(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def checkpoint():
    return tiny_released.checkpoint(L)


@pytest.fixture
def settings(data, checkpoint, tmp_path, monkeypatch):
    """Fields → a checked config, for a workdir of this test."""
    monkeypatch.setattr(released_runs.files, "read", lambda _: checkpoint)

    def make(**fields) -> ReleasedConfig:
        given = {"workdir": str(tmp_path / "run"), "data": data, "encodings": ("rope", REROPE)}
        given |= {"lengths": LENGTHS, "targets": 64, "windows": 2, "tasks": ()}
        return ReleasedConfig(**given | fields).check()

    return make


def opened(config: ReleasedConfig) -> tuple[Released, list]:
    released = released_runs.open_checkpoint(config)
    corpus = documents.load(config)
    return released, documents.read(config, released.checkpoint.tokenizer, corpus, "test")


def test_rows_of_all_lengths_end_with_the_same_targets_and_begin_with_bos(settings, data, caplog):
    _, read = opened(settings())
    assert [d.name for d in read] == ["ann", "bob", "cid"]
    assert "short is left out" in caplog.text
    for document in read:
        rows = [document.row(n, max(LENGTHS)) for n in LENGTHS]
        assert [len(row) for row in rows] == [n + 1 for n in LENGTHS]
        assert all(row[0] == 0 and (row[-L:] == rows[0][-L:]).all() for row in rows)
        joined = ",".join(map(str, document.ids))
        assert all(",".join(map(str, row[1:])) in joined for row in rows)
        short = document.short(4)
        assert short.shape == (4, SHORT + 1) and (short[:, 0] == 0).all()
        assert (short[0, 1:] == document.ids[:SHORT]).all()
        assert (short[-1, 1:] == document.ids[-SHORT:]).all()


def test_losses_are_those_of_the_model_with_the_encoding_and_go_into_the_table(settings):
    lengths = L, 2 * L
    config = settings(encodings=("rope", YARN, "rope*2,nope"), lengths=lengths)
    program.main(config)
    released, read = opened(config)
    plain = load.model(released.checkpoint)
    rows = [row for row in table.read(Path(config.workdir, "results.csv")) if row.test == "loss"]
    assert {row.length for row in rows} == {*lengths} and {row.seed for row in rows} == {0, 1, 2}
    yarn = f"rope(scaling=yarn(factor=2.0,original_length={L}"
    yarn += ",attention_factor=1.0693147180559945))"
    pattern = "rope,rope,nope,rope"  # four layers: three do not divide them
    encodings = {"rope": "rope", "yarn": yarn, "rope*2,nope": pattern}
    for name, encoding in encodings.items():
        model = with_encoding(plain, encoding)
        for document in read[1:2]:
            for length in lengths:
                row = jnp.asarray(document.row(length, max(LENGTHS)))
                want = token_losses(model(row[None, :-1]), row[None, 1:])[0, -64:].mean()
                (got,) = (
                    x.value
                    for x in rows
                    if (x.scheme, x.seed, x.length) == (name, document.number, length)
                )
                np.testing.assert_allclose(got, want, atol=1e-4)
    results = json.loads(Path(config.workdir, "results.json").read_text())
    assert {e["name"]: e["encoding"] for e in results["encodings"]} == encodings
    assert results["verdicts"]["rope"] == "the reference"
    assert (results["length"], results["target"]) == (L, 2 * L)
    assert Path(config.workdir, "loss.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "encoding",
    ["rope,nope", f"rerope(window={L})@window={L}@sinks=4"],
)
def test_answers_from_a_cache_are_those_of_one_pass_over_the_text(checkpoint, encoding):
    model = with_encoding(load.model(checkpoint), encoding)
    reads, rng = reader.Reader(model, 5 * L), np.random.default_rng(0)
    size = reader.room(5 * L)
    assert 4 * L < size <= 5 * L - reader.QUESTION
    text, question = rng.integers(1, 600, size), rng.integers(1, 600, 21)
    counts, caches = zip(*reads.read(text), strict=True)
    assert sum(counts) == size and len(counts) > 1
    for _ in range(2):  # the cache is as it was
        answer = reads.answer(caches[-1], question)
    whole = jnp.asarray(np.concatenate([text, question]))[None]
    logits = model(whole[:, :-1])[:, -20:]
    assert answer.likeliest.tolist() == logits[0].argmax(-1).tolist()
    want = token_losses(logits, whole[:, -20:])[0]
    np.testing.assert_allclose(answer.losses, want, atol=1e-4)


def test_an_answer_is_right_where_greedy_decoding_gives_it():
    asked = []

    def ask(tokens):  # it always counts on
        asked.append(tokens.tolist())
        return reader.Answer(tokens[:-1] + 1, np.arange(len(tokens) - 1.0))

    def score(*answers):
        return reader.score(ask, np.array([3, 4]), np.array(answers[0]), answers[1:])

    assert score([5, 6]) == (True, 1.5) and asked == [[3, 4, 5, 6]]
    assert not score([5, 7])[0]
    assert score([6, 7, 8], [7], [5, 6]) == (True, 2) and asked[-1] == [3, 4, 5, 6]
    assert len(asked) == 4  # the second answer does not begin right
    assert score([6], [7], [5, 7]) == (False, 1)
    assert score([5], [5, 6])[0] and len(asked) == 7  # one that is right is enough


def test_every_question_is_asked_of_every_method(settings, monkeypatch):
    config = settings(lengths=(4 * L,), factor=4.0, tasks=("text", "facts"), samples=2, documents=2)
    monkeypatch.setattr(reader, "CHUNK", 500)
    program.main(config)
    rows = table.read(Path(config.workdir, "results.csv"))
    names = ("needles in text", "several values", "one fact", "two facts", "three facts")
    for name in names:
        for test in (name, f"{name}: loss"):
            found = [row for row in rows if row.test == test]
            keys = {(row.scheme, row.seed, row.length) for row in found}
            assert len(found) == len(keys) == 2 * 2
            assert all(row.status == "ok" and row.value >= 0 for row in found)
    losses = {(r.scheme, r.seed): r.value for r in rows if r.test == "one fact: loss"}
    assert losses["rope", 0] != losses["rerope", 0]
    results = json.loads(Path(config.workdir, "results.json").read_text())
    (row,) = results["differences"]
    assert (row["of"], row["minus"]) == ("rerope", "rope")
    assert Path(config.workdir, "tasks.png").stat().st_size > 1000


def test_a_killed_program_repeats_nothing_and_ends_with_the_same_results(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(released_report.ReleasedPage, "drawings", lambda _: [])
    whole = settings(workdir=str(tmp_path / "whole"), lengths=(L, 2 * L))
    program.main(whole)
    config = dataclasses.replace(whole, workdir=str(tmp_path / "stopped"))
    losses, calls = released_runs.Reader.losses, []

    def stops(reader, row, targets):
        calls.append(len(row))
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(reader, row, targets)

    monkeypatch.setattr(released_runs.Reader, "losses", stops)
    with pytest.raises(SystemExit) as end:
        program.main(config)
    assert end.value.code == 128 + signal.SIGTERM
    top = tmp_path / "stopped" / "runs"
    before = {path: path.stat().st_mtime_ns for path in top.rglob("*.json")}
    assert 5 <= len(before) < 12
    program.main(config)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert len(calls) == 2 * (3 * 2 + 3 * 2)  # each once
    one, other = (Path(c.workdir, "results.csv").read_text() for c in (whole, config))
    assert one == other and len(one.splitlines()) > 1


LONGROPE = (
    "rope(scaling=longrope(short_factor={ones},long_factor={searched},"
    "original_length={length},factor={factor}))"
)


def test_factors_are_searched_once_on_other_text_and_what_was_tried_is_kept(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(released_report.ReleasedPage, "drawings", lambda _: [])
    given = {"encodings": ("rope", LONGROPE), "lengths": (2 * L,), "search": 5, "windows": 1}
    config = settings(**given, documents=1, targets=64, samples=2)
    losses, save = [], released_runs.save_json

    def stops(path, value):
        save(path, value)
        losses.append(value)
        if len(losses) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(released_runs, "save_json", stops)
    with pytest.raises(SystemExit) as end:
        program.main(config)
    assert end.value.code == 128 + signal.SIGTERM
    assert not Path(config.workdir, "factors.json").exists()
    program.main(config)
    found = json.loads(Path(config.workdir, "factors.json").read_text())
    assert len(losses) == len({str(factors) for *_, factors in found["tried"]}) >= 5  # each once
    assert found["loss"] == min(found["tried"])[0] == min(losses[-1].values())
    entries = json.loads(Path(config.workdir, "results.json").read_text())["encodings"]
    (encoding,) = parse(entries[1]["encoding"])
    assert encoding.scaling.long_factor == tuple(found["factors"])
    released, _ = opened(config)
    corpus = documents.load(config)
    (other,) = documents.read(config, released.checkpoint.tokenizer, corpus, "validation")
    assert other.text.encode() == tiny_released.text(8)
    model = with_encoding(load.model(released.checkpoint), entries[1]["encoding"])
    tokenizer, words = released.checkpoint.tokenizer, haystacks.vocabulary([other.text])
    maker = haystacks.Maker(other, words, tokenizer, 2 * L, 2, config.seed)
    row, in_answer = haystacks.with_answers(maker, 2 * L + 1)
    want = reader.Reader(model, 2 * L).losses(row, 2 * L)[in_answer].mean()
    np.testing.assert_allclose(found["loss"], want, atol=1e-4)


def test_factors_are_those_of_layers_that_are_extended():
    pattern = "rope(base=1e3)@window=32,rope(base=1e5,scaling=linear(factor=2.0))"
    config = ModelConfig(encoding=pattern, layers=2, vocab=9, width=16, heads=2)
    model, trained = Transformer(config, rngs=nnx.Rngs(0)), methods.Trained(config, 64, 2.0, True)
    longrope_search.set_factors(model, jnp.full(4, 2.0), 1.5, trained.extends)
    near, far = model.encodings
    assert near == config.windows[0]
    assert far.encoding == longrope_search.Free(base=1e5, gain=1.5)  # in place of the scaling
    assert model.blocks[1].attention.params["factors"][...].tolist() == [[2.0] * 4]


def test_a_method_that_fails_is_in_the_results_with_its_reason(settings, monkeypatch, capsys):
    losses = released_runs.Reader.losses

    def fails(reader, row, targets):
        if "yarn" in str(reader.model.config.encoding) and len(row) > L + 1:
            raise MemoryError("no room")
        return losses(reader, row, targets)

    monkeypatch.setattr(released_runs.Reader, "losses", fails)
    monkeypatch.setattr(released_runs.ReleasedMethods, "search", lambda *_: 1 / 0)
    config = settings(encodings=("rope", YARN, LONGROPE), lengths=(L, 2 * L), documents=2)
    with pytest.raises(SystemExit) as end:
        program.main(config)
    shown = capsys.readouterr()
    assert end.value.code == 1 and "MemoryError: no room" in shown.err and "failed" in shown.out
    results = json.loads(Path(config.workdir, "results.json").read_text())
    for name in ("yarn", "longrope"):
        assert "failed in documents 0, 1" in results["verdicts"][name]


def test_key_tokens_need_the_long_context_and_are_likely_after_it():
    short = np.array([5.0, 5.0, 3.9, 9.0, 1.0])
    long = np.array([1.0, 2.9, 1.9, 2.1, 0.5])
    np.testing.assert_array_equal(
        released_report.key_tokens(short, long), [True, False, False, False, False]
    )


def test_key_tokens_are_found_by_the_model_as_it_is_at_its_trained_length():
    config = ReleasedConfig(lengths=(8, 16, 32), targets=4)
    ok = {"status": "ok", "reason": ""}

    def losses(*by_length):
        numbers = ({**ok, "numbers": {"loss": x}} for x in by_length)
        return {"loss": dict(zip(("8", "16", "32"), numbers, strict=True))}

    rope = losses([5, 5, 1, 5], [1, 1, 1, 4], [2, 4, 9, 9])
    other = losses([7, 7, 7, 7], [3, 4, 9, 9], [1, 2, 9, 9])
    entries = [
        {"name": n, "spec": n, "encoding": n, "documents": {"3": x, "5": losses(*[[1] * 4] * 3)}}
        for n, x in (("rope", rope), ("nope", other))
    ]
    page = released_report.ReleasedPage.of(config, 16, entries, "rope", ())
    keys = {s.name: [s.mean("key tokens", n) for n in (8, 16, 32)] for s in page.keyed}
    assert keys == {"rope": [5, 1, 3], "nope": [7, 3.5, 1.5]}
    assert [*page.keyed[0].runs] == [3] and [*page.schemes[0].runs] == [3, 5]
    rows = [row for row in page.rows() if row.test == "key tokens" and row.seed == 5]
    assert {row.status for row in rows} == {"no key tokens"}


def test_layers_with_a_window_within_the_trained_length_stay_as_they_are():
    model = ModelConfig(encoding="rope(base=1e3)@window=32*2,rope(base=1e5)", layers=6)
    trained = methods.Trained(model, 64, 2.0, released=True)
    assert methods.extended("rope", trained) == methods.extended("rope(base=1e5)", trained)
    near = "rope(base=1000.0)@window=32"
    larger = methods.extended("rope(base={larger_base})", trained)
    assert larger == f"{near},{near},rope(base=1000000.0)"
    far = "rope(base=100000.0)"
    every_second = methods.extended("rope,nope", trained)
    assert every_second == ",".join([near, near, far, near, near, "nope"])
    model = ModelConfig(encoding="rope(base=1e5)", layers=6)
    trained = methods.Trained(model, 64, 2.0, released=True)
    assert methods.extended("rope*3,nope", trained) == ",".join([far] * 3 + ["nope"] + [far] * 2)
    assert methods.extended("rope,nope", trained) == f"{far},nope"
    sinks = methods.extended("rerope(window={length})@window={length}@sinks=4", trained)
    assert sinks == "rerope(base=100000.0,window=64)@window=64@sinks=4"


def test_the_trained_length_is_that_before_any_scaling():
    config = {"max_position_embeddings": 131072}
    assert released_runs.trained_length(config) == 131072
    scaled = {"rope_type": "llama3", "original_max_position_embeddings": 8192}
    assert released_runs.trained_length({**config, "rope_scaling": scaled}) == 8192
    nested = {"full_attention": scaled, "sliding_attention": {"rope_type": "default"}}
    assert released_runs.trained_length({**config, "rope_parameters": nested}) == 8192
    assert released_runs.trained_length({"n_positions": 1024}) == 1024
    assert released_runs.trained_length({}) == 0


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"encodings": (REROPE,)}, "encodings: add 'rope', the model as it is"),
        ({"targets": L}, f"targets={L}: pass fewer than the shortest of lengths, {L}"),
        ({"lengths": (512, 256)}, "lengths=(512, 256): pass ascending"),
        ({"encodings": ("rope", "rope")}, "name each once"),
        ({"data": "embedded"}, "data='embedded': pass text:DIR"),
        ({"reference": "yarn"}, "reference='yarn': pass one of the encodings"),
    ],
)
def test_a_configuration_that_cannot_be_names_the_field(settings, fields, words):
    with pytest.raises(ValueError) as error:
        settings(**fields)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"factor": 3.0}, "add 768, 3 times the trained length"),
        ({"encodings": ("rope", "alibi")}, "'alibi' is not for a trained RoPE"),
        ({"encodings": ("rope", "rope(base=1e4)")}, "are the same here"),
        ({"documents": 4}, "documents=4: 3 of 'test' have 513 tokens"),
        ({"lengths": (L, 2 * L, 2**14)}, "no document of 'test' has 16,385 tokens"),
        ({"tasks": ("facts",)}, "lengths: 128 tokens of text: what is hidden takes"),
        ({"tasks": ("babi",)}, "tasks: 'babi' is unknown; pass some of noise, text"),
        ({"length": 10**5, "lengths": (L, 2 * 10**5)}, "no document of 'test' has 200,001"),
    ],
)
def test_what_cannot_be_is_refused_on_one_line(settings, capsys, fields, words):
    config = settings(**fields)
    with pytest.raises(SystemExit) as end:
        program.main(config)
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    assert words in error and not Path(config.workdir).exists()


def test_another_model_or_other_rows_need_another_workdir(
    settings, checkpoint, capsys, monkeypatch
):
    config = settings(lengths=(L, 2 * L), documents=1)
    monkeypatch.setattr(released_report.ReleasedPage, "drawings", lambda _: [])
    program.main(config)
    changed = dict(checkpoint.tensors)
    changed["model.norm.weight"] = 2 * changed["model.norm.weight"]
    other = dataclasses.replace(recorded.of(changed, checkpoint.config))
    other = dataclasses.replace(other, tokenizer=checkpoint.tokenizer)
    capsys.readouterr()
    for fields, words in (({"targets": 63}, "targets=63"), ({"documents": 2}, "documents_read")):
        with pytest.raises(SystemExit):
            program.main(change(config, **fields))
        assert words in capsys.readouterr().err
    monkeypatch.setattr(released_runs.files, "read", lambda _: other)
    with pytest.raises(SystemExit):
        program.main(config)
    assert "model=" in capsys.readouterr().err
