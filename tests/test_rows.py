"""Documents that are rows of a table, or parts of a text: what was written, in its split."""

import csv
import json
import os

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from pe_jax.training import corpus as corpora
from pe_jax.training import data, rows, tokenizer

TEXTS = ["Straße 1", 'two\nlines, "quoted"', "", "café", *(f"text {i}" * 3 for i in range(60))]
KEPT = [text.encode() for text in TEXTS if text]


def table(**columns):
    return pa.table({"id": list(range(len(TEXTS))), "text": TEXTS, **columns})


def write_csv(path, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([["id", "text"], *enumerate(TEXTS)])


def write_stream(path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table().schema) as stream:
        stream.write_table(table(), max_chunksize=7)


WRITERS = {
    "jsonl": lambda path: path.write_text(
        "\n".join(json.dumps({"id": i, "text": text}) for i, text in enumerate(TEXTS)) + "\n\n"
    ),
    "json": lambda path: path.write_text(
        "".join(json.dumps({"text": text, "n": None}) + "\n" for text in TEXTS)
    ),
    "csv": write_csv,
    "tsv": lambda path: write_csv(path, "\t"),
    "parquet": lambda path: parquet.write_table(table(), path, row_group_size=7),
    "feather": lambda path: feather.write_feather(table(), path),
    "arrow": write_stream,
}


def documents(split):
    return [split[i] for i in range(len(split))]


@pytest.mark.parametrize("suffix", WRITERS)
def test_rows_of_a_table_are_documents(tmp_path, suffix):
    path = tmp_path / f"train.{suffix}"
    WRITERS[suffix](path)
    read = rows.read(path, rows.Options())
    # a CSV has CRLF, and what is quoted in it too
    assert documents(read) == KEPT and read.size == sum(map(len, KEPT))
    corpus = corpora.text(str(tmp_path))
    parts = [documents(corpus.documents(split)) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [len(KEPT) - 6, 3, 3] and sum(parts, []) == KEPT
    assert corpus.sizes == dict(
        zip(corpus.splits, (sum(map(len, part)) for part in parts), strict=True)
    )
    assert "5 %" not in corpus.name and corpus.rule.startswith("validation, test: the last 10 %")


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
def test_a_document_of_a_file_that_changed_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    WRITERS[suffix](path)
    read = rows.read(path, rows.Options())
    os.utime(path, (1, 1))
    with pytest.raises(ValueError, match=rf"{path}.* changed since the start; restore it"):
        read[0]


def test_a_column_is_guessed_where_one_is_likely_or_asked_for(tmp_path, caplog):
    path = tmp_path / "train.jsonl"

    def load(option="", **row):
        path.write_text((json.dumps(row) + "\n") * 40)
        return data.load(f"text:{path}{option}").documents("train")[0]

    assert load(url="x", text="the text") == b"the text"
    assert load(only="this", n=3) == b"this"
    assert load("#column=url", url="x", text="y") == b"x"
    with pytest.raises(ValueError, match="has the columns title, url; say which is the text, as"):
        load(title="a", url="b")
    with pytest.raises(ValueError, match=r"document 1 has no text in column 'url' \(id, text\)"):
        load("#column=url", id=1, text="y")


SEPARATED = "<|endoftext|>\n".join(f"story {i}\n" for i in range(80))


def test_a_separator_ends_documents_and_their_tokens(tmp_path):
    (tmp_path / "tales-train.txt").write_text(SEPARATED)
    (tmp_path / "tales-valid.txt").write_text("x" * 600 + "<|endoftext|>" + "y" * 600)
    corpus = data.load(f"text:{tmp_path}/*.txt#separator=<|endoftext|>")
    train = documents(corpus.documents("train"))
    assert train[:2] == [b"story 0", b"story 1"] and len(train) == 76  # and four to test on
    assert documents(corpus.documents("validation")) == [b"x" * 600, b"y" * 600]
    tokens = tokenizer.get("bytes")
    batch = next(data.train_iterator(corpus, tokens, length=64, batch=2, seed=0))
    assert (batch["tokens"] == tokens.eos).sum() > 8 and batch["segments"].max() > 4
    other = data.load(f"text:{tmp_path}/*.txt#separator=story")
    assert other.digest != corpus.digest


def test_a_text_with_markers_has_a_warning_without_the_option(tmp_path):
    (tmp_path / "train.txt").write_text(SEPARATED)
    (tmp_path / "test.txt").write_text("one </s> alone")
    corpus = data.load(f"text:{tmp_path}")
    assert corpus.warning.startswith("train.txt, and 1 other files spells <|endoftext|>")
    assert corpus.warning.endswith("add #separator=<|endoftext|> to the data")


WRONG = {
    "lines.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2 is no object of JSON"),
    "array.json": (b'["a", "b"]', "line 1 is no object of JSON .a list.; write one object per"),
    "page.txt": (b"<!DOCTYPE html><p>hello", "is HTML, .*; extract its text"),
    "paper.txt": (b"%PDF-1.4\nhello", "is PDF, .*; extract its text"),
    "letter.txt": (b"{\\rtf1\\ansi hello}", "is RTF, .*; extract its text"),
    "rows.txt": (b'{"text": "a"}\n{"text": "b"}\n', "is JSON, .*; write an object per line"),
    "notes.ipynb": (b'{\n "cells": [\n  {"source": []}]}', "is JSON, "),
    "objects": (b'[\n {"a \\" b": 1}]', "is JSON, "),
    "columns.csv": (
        b"id;text\n1;a\n",
        "the first line has a ';', and its columns are separated by ','",
    ),
    "columns.tsv": (b"id,text\n1,a\n", "has a ',', and its columns are separated by .*t'"),
    "tokens.npy": (b"\x93NUMPY\x01\x00" + bytes(90), "is an array of NumPy, as of tokens"),
    "cut.parquet": (b"PAR1" + bytes(50), "is damaged"),
    "cut.arrow": (b"ARROW1" + bytes(50), "is damaged"),
    "latin.csv": ("text\ncaf\xe9\n".encode("latin-1"), "no CSV in UTF-8"),
    "other.csv": (b"text,n\na,1\nb\n,", "too few documents"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_text_is_an_error_that_names_the_file(tmp_path, name):
    content, said = WRONG[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*{said}"):
        data.load(f"text:{tmp_path / name}")


@pytest.mark.parametrize(
    "text", ["{text: 1}", '{"quoted" words}', "[1] {a}", "<page>", "{}", '["a"]']
)
def test_text_that_begins_like_another_format_is_text(tmp_path, text):
    (tmp_path / "a.txt").write_text(text + 2000 * " and so on")
    assert data.load(f"text:{tmp_path / 'a.txt'}").documents("train")


def test_a_tokenizer_that_changes_text_is_told_with_an_example(tmp_path, caplog):
    import tokenizers

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.normalizer = tokenizers.normalizers.Lowercase()
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator([], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet))
    model.save(str(tmp_path / "lower.json"))
    lower = tokenizer.get(f"bpe:{tmp_path / 'lower.json'}")
    assert "changes" in caplog.text and "which becomes 'def f(x)" in caplog.text
    assert tokenizer.changed(lower, "ab cd") == ""
    assert tokenizer.changed(lower, "aB CD") == "60.0% of a text, as 'aB CD', which becomes 'ab cd'"


def test_a_run_finds_its_text_from_another_folder_with_its_options(tmp_path):
    from experiments.running.training.trained_run import _from

    (tmp_path / "novels").mkdir()
    for option in ("", "#column=text", "#separator=###"):
        assert _from(tmp_path, f"text:novels{option}") == f"text:{tmp_path}/novels{option}"
    assert _from(tmp_path, "text:gone#column=text") == "text:gone#column=text"
