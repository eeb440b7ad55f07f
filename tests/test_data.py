"""Packed rows, training batches and evaluation windows of a corpus; tokenizers."""

import concurrent.futures
import json
import random
import re
import tracemalloc

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tokenizers
from tokenizers import pre_tokenizers

from pe_jax.training import corpus as corpora
from pe_jax.training import data, packing, token_files, tokenizer
from pe_jax.training.config import EvalConfig
from tests.test_corpus import novels, write, written

BYTES = tokenizer.get("bytes")


def rows(batches, count):
    return [row for _ in range(count) for row in zip(*_fields(next(batches)), strict=True)]


def _fields(batch):
    return [batch[key] for key in ("tokens", "segments", "weights")]


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# Packing


def test_packing_keeps_every_byte_of_every_document_once(tmp_path):
    corpus = data.load(novels(tmp_path))
    documents = [corpus.documents("train")[i] for i in range(12)]
    tokens = [{"tokens": np.append(BYTES.encode(d), BYTES.eos)} for d in documents]
    source = grain.MapDataset.source(tokens).to_iter_dataset(grain.ReadOptions(num_threads=0))
    packed = [packing.targets(b) for b in packing.Pack(source, 16).batch(1)]
    text = np.concatenate([b["tokens"][b["segments"] > 0] for b in packed])
    np.testing.assert_array_equal(text, np.concatenate([t["tokens"] for t in tokens]))
    assert sum((b["segments"] == 0).sum() for b in packed) < 16  # only the last row is padded


def test_a_segment_is_a_piece_of_one_document(tmp_path):
    batches = data.train_iterator(data.load(novels(tmp_path)), BYTES, length=15, batch=4, seed=0)
    for tokens, segments, weights in rows(batches, 20):
        assert segments.min() >= 1 and segments[0] == 1
        assert (np.diff(segments) == np.append(tokens[:-1] == BYTES.eos, [])).all()
        for segment in np.unique(segments):
            inside = segments == segment
            assert len(set(tokens[inside]) - {BYTES.eos}) <= 1  # one document
            np.testing.assert_array_equal(weights[inside], np.arange(inside.sum()) > 0)


def test_padding_and_first_tokens_are_no_targets():
    segments = np.array([[1, 1, 2, 2, 0, 0]], np.int32)
    packed = {f"tokens{k}": segments for k in ("", "_segment_ids")}
    weights = packing.targets(packed)["weights"]
    assert weights.tolist() == [[0, 1, 0, 1, 0, 0]] and weights.dtype == np.float32


# Training batches


def test_batches_are_int32_and_of_the_shape_asked_for(tmp_path):
    corpus = data.load(novels(tmp_path))
    batches = data.train_iterator(
        corpus, BYTES, length=15, batch=6, seed=0, process_index=1, process_count=2
    )
    batch = next(batches)
    assert {key: (value.shape, str(value.dtype)) for key, value in batch.items()} == {
        "tokens": ((3, 16), "int32"),
        "segments": ((3, 16), "int32"),
        "weights": ((3, 16), "float32"),
    }


def test_an_epoch_has_every_byte_once_and_the_next_has_another_order(tmp_path):
    spec = written(tmp_path, {f"{i}": bytes([65 + i]) * 15 for i in range(8)})
    corpus = data.load(spec)  # eight documents of 16 tokens: eight rows
    batches = data.train_iterator(corpus, BYTES, length=15, batch=1, seed=3)
    first, second = ([next(batches)["tokens"][0, 0] for _ in range(8)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(65, 73))
    assert first != second


def test_the_order_is_a_function_of_the_seed(tmp_path):
    corpus = data.load(novels(tmp_path))
    same = [data.train_iterator(corpus, BYTES, length=15, batch=4, seed=s) for s in (1, 1, 2)]
    a, b, c = ([next(batches) for _ in range(5)] for batches in same)
    assert_same(a, b)
    assert any((x["tokens"] != y["tokens"]).any() for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize("steps", range(0, 40, 7))
def test_resumed_iterator_continues_exactly(tmp_path, steps):
    corpus = data.load(novels(tmp_path))
    make = lambda: data.train_iterator(corpus, BYTES, length=15, batch=2, seed=0)  # noqa: E731
    batches = make()
    for _ in range(steps):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))  # as grain.checkpoint stores it
    resumed = make()
    resumed.set_state(state)
    assert_same([next(batches) for _ in range(6)], [next(resumed) for _ in range(6)])


@pytest.mark.parametrize("sizes", [(7,), (3, 5, 8, 2, 6, 8, 8, 4)])
def test_a_state_through_json_loses_no_document(sizes):
    tokens = [{"tokens": np.full(n, i)} for i, n in enumerate(sizes)]  # ends often meet row ends
    source = grain.MapDataset.source(tokens).repeat()
    make = lambda: iter(packing.Pack(source.to_iter_dataset(data.IN_LINE), 8))  # noqa: E731
    for steps in range(24):
        batches, resumed = make(), make()
        for _ in range(steps):
            next(batches)
        resumed.set_state(json.loads(json.dumps(batches.get_state())))
        assert_same([next(batches) for _ in range(4)], [next(resumed) for _ in range(4)])


def test_grain_checkpoint_restores_the_iterator(tmp_path):
    corpus = data.load(novels(tmp_path / "text"))
    make = lambda: data.train_iterator(corpus, BYTES, length=15, batch=2, seed=0)  # noqa: E731
    batches, resumed = make(), make()
    for _ in range(5):
        next(batches)
    with ocp.Checkpointer(grain.checkpoint.CheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "state", args=grain.checkpoint.CheckpointSave(batches))
        checkpointer.restore(tmp_path / "state", args=grain.checkpoint.CheckpointRestore(resumed))
    assert_same([next(batches) for _ in range(4)], [next(resumed) for _ in range(4)])


@pytest.mark.parametrize("spec", ["text:", "passkeys:text:", "synthetic:copy"])
def test_batches_are_skipped_without_reading_them(tmp_path, spec):
    """As they would come after so many; in later epochs, about so many."""
    texts = written(tmp_path, {f"{i}": bytes([65 + i]) * (90 * i + 30) for i in range(12)})
    corpus = data.load(spec + texts.removeprefix("text:") * spec.endswith("text:"))
    tokens = None if "synthetic" in spec else BYTES

    def make(skip: int):
        half = {"process_index": 1, "process_count": 2}
        return data.train_iterator(corpus, tokens, length=127, batch=4, seed=0, skip=skip, **half)

    batches, skipped = make(0), make(5)
    for _ in range(5):
        next(batches)
    assert_same([next(batches) for _ in range(3)], [next(skipped) for _ in range(3)])
    far = make(10**6)
    assert next(far)["tokens"].shape == (2, 128)
    state = json.dumps(far.get_state())
    assert re.search(r'"next_index": [1-9]\d{4}', state), state


def test_processes_read_disjoint_documents_and_together_all(tmp_path):
    corpus = data.load(novels(tmp_path))
    seen = []
    for process in range(3):
        batches = data.train_iterator(
            corpus, BYTES, length=15, batch=6, seed=0, process_index=process, process_count=3
        )
        tokens = {t for _ in range(60) for t in next(batches)["tokens"].ravel().tolist()}
        seen.append(tokens - {BYTES.eos})
    assert sum(map(len, seen)) == 12 and set.union(*seen) == set(range(65, 77))


def test_rows_of_a_long_document_are_spread(tmp_path):
    spec = written(tmp_path, {f"{i}": bytes([65 + i]) * 1600 for i in range(2)})
    batches = data.train_iterator(data.load(spec), BYTES, length=15, batch=32, seed=2**31 - 1)
    mixed = [len(set(next(batches)["tokens"].ravel().tolist()) - {BYTES.eos}) for _ in range(3)]
    assert max(mixed) == 2


# Evaluation windows


def test_eval_windows_lie_in_one_document_each_and_do_not_overlap(tmp_path):
    files = {f"{i}": bytes(range(i * 20, i * 20 + 20)) for i in range(12)}
    corpus = data.load(written(tmp_path, files | {"short": b"\xff" * 5}))
    available = sum(
        len(corpus.documents("train")[i]) // 6 for i in range(len(corpus.documents("train")))
    )
    for count in (1, 5, available):
        windows = data.eval_windows(corpus, BYTES, split="train", count=count, length=6)
        assert windows.shape == (count, 6) and windows.dtype == np.int32
        assert (np.diff(windows) == 1).all() and (windows // 20 == windows[:, :1] // 20).all()
        assert len(np.unique(windows)) == windows.size
    same = [data.eval_windows(corpus, BYTES, split="train", count=5, length=6) for _ in range(2)]
    assert_same(*same)


def test_eval_windows_are_spread_over_the_documents(tmp_path):
    corpus = data.load(written(tmp_path, {f"{i}": bytes([65 + i]) * 60 for i in range(10)}))
    windows = data.eval_windows(corpus, BYTES, split="train", count=10, length=6)
    assert sorted(windows[:, 0]) == list(range(65, 75))
    other = data.eval_windows(corpus, BYTES, split="train", count=3, length=6, seed=1)
    assert len(set(other[:, 0])) == 3


def test_files_that_are_kept_apart_are_in_no_window_and_alone_are_in_all(tmp_path):
    splits = "train", "validation", "test"
    files = {f"{split}/{c}.txt": c.encode() * 60 for split in splits for c in "abc"}
    corpus = data.load(write(tmp_path, files))
    rest, kept = corpus.apart("test", ("b.txt",))
    for part, letters in ((rest, "ac"), (kept, "b"), (corpus, "abc")):
        windows = data.eval_windows(part, BYTES, split="test", count=9, length=6)
        assert {*map(chr, windows.flat)} == {*letters}
        assert part.sizes == {"train": 180, "validation": 180, "test": 60 * len(letters)}
        assert part.digest == corpus.digest and len(part.documents("train")) == 3
    assert corpus.apart("test", ())[0] is corpus
    config = EvalConfig((6,), windows=4, stride=6, split="test", kept=("a.txt", "b.txt"))
    assert {*map(chr, data.windows(corpus, BYTES, config).flat)} == {"c"}
    with pytest.raises(ValueError, match="eval.kept: no file of split 'test' .* 'd.txt'.*a.txt, b"):
        corpus.apart("test", ("a.txt", "d.txt"))
    with pytest.raises(ValueError, match="split 'test' has no document"):
        corpus.apart("test", ("a.txt", "b.txt", "c.txt"))[0].documents("test")
    embedded = data.load("embedded")
    with pytest.raises(ValueError, match="eval.kept"):
        embedded.apart("test", ("a.txt",))


# Tokenizers


def test_bytes_are_exact_for_any_content():
    content = bytes(range(256))
    ids = BYTES.encode(content)
    assert ids.dtype == np.int32 and ids.tolist() == list(range(256))
    assert BYTES.decode(BYTES.encode("naïve".encode())) == "naïve"
    assert BYTES.decode([0xFF, 65, BYTES.eos]) == "\ufffdA" and BYTES.vocab == 257


def test_bpe_is_lossless_and_a_document_cannot_forge_its_end(tmp_path):
    content = "The rain — in Spain; <|endoftext|> naïve\n\tx  ".encode()
    tokenizer.train_bpe([content] * 4, f"{tmp_path}/bpe.json")
    bpe = tokenizer.get(f"bpe:{tmp_path}/bpe.json")
    assert bpe.name == tokenizer.get(f"bpe:{tmp_path}/bpe.json").name == "bpe:bpe.json"
    ids = bpe.encode(content)
    assert bpe.eos not in ids and ids.max() < bpe.vocab and len(ids) < len(content)
    assert bpe.decode([*ids, bpe.eos]) == content.decode()


# Large files


def prose(count):
    """Words, indented, empty and blank lines, as a pre-tokenizer may tell them apart."""
    draw, words = random.Random(0), ["the", "naïve", "don't", "слово", "漢字", "42", "a/b", "</s>"]
    ends = [" "] * 9 + ["\n", ".\n", "\n\n", "\n  ", " \n", "\t", "\n\u3000", "\xa0", "  ", ".\n/"]
    return "".join(draw.choice(words) + draw.choice(ends) for _ in range(count)).encode()


def isolated(pattern):
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])


# 163
@pytest.mark.parametrize(
    "words, cut",
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), True),
        (
            isolated(  # nearly Llama 3's and GPT-4o's
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            True,
        ),
        (pre_tokenizers.Whitespace(), True),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), False),
        (pre_tokenizers.Metaspace(), False),
        (None, False),
    ],
)
def test_a_document_is_encoded_in_pieces_or_at_once_with_the_same_tokens(
    tmp_path, monkeypatch, caplog, words, cut
):
    monkeypatch.setattr(corpora, "BLOCK", 1000)
    monkeypatch.setattr(tokenizer, "_WHOLE", 5000)
    document = prose(4000)
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    model.pre_tokenizer = words or pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=["?"], show_progress=False
    )
    model.train_from_iterator([document.decode()], trainer)
    model.pre_tokenizer = words
    model.save(f"{tmp_path}/bpe.json")
    bpe = tokenizer.get(f"bpe:{tmp_path}/bpe.json")
    pieces = [*bpe.pieces(corpora.blocks([document], 0))]
    assert b"".join(pieces) == document
    np.testing.assert_array_equal(np.concatenate([*map(bpe.encode, pieces)]), bpe.encode(document))
    assert (max(map(len, pieces)) < 5000 and len(pieces) > 10) if cut else len(pieces) == 1
    assert ("may be cut: a document of" in caplog.text) == (not cut)


# 163
@pytest.mark.parametrize("spec", ["bytes", "bpe"])
def test_a_large_file_is_encoded_once_and_read_from_there(tmp_path, monkeypatch, caplog, spec):
    corpus = data.load(write(tmp_path / "text", {"a.txt": prose(4000)}))
    tokenizer.train_bpe([prose(400)], f"{tmp_path}/bpe.json", 500)
    tokens = tokenizer.get(spec if spec == "bytes" else f"bpe:{tmp_path}/bpe.json")

    def read():
        for count in (1, 1, 2):
            given = {"length": 63, "batch": 4, "seed": 0, "process_count": count}
            batches = data.train_iterator(corpus, tokens, process_index=count - 1, **given)
            yield from (next(batches) for _ in range(90))  # two epochs of bytes
        yield data.eval_windows(corpus, tokens, split="test", count=5, length=50)

    expected = [*read()]
    monkeypatch.setattr(data, "_LARGE", 100)
    monkeypatch.setattr(corpora, "BLOCK", 1000)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/file")
    assert_same([*read()], expected)
    assert "tokens of a.txt are kept in memory, as their cache cannot be" in caplog.text
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    assert_same([*read()], expected)
    monkeypatch.delattr(type(tokens), "encode")  # another process does without it
    assert_same([*read()], expected)
    document = data.Encoded.of(corpus, "train", tokens, ends=True)[0]
    assert isinstance(document.base, np.memmap) and document.dtype == np.uint16


# 163
def test_tokens_are_written_by_one_and_never_used_half(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, written = tmp_path / "pe_jax" / "tokens", []

    def parts(fault=None):
        yield np.arange(5)
        if fault:
            raise fault
        written.append(1)
        yield np.arange(5, 9)

    def mapped(*fault):
        return token_files.mapped("key", "a.txt", parts(*fault), np.uint16).tolist()

    with pytest.raises(KeyboardInterrupt):
        mapped(KeyboardInterrupt())
    (lock,) = folder.iterdir()
    (folder / f"{lock.stem}-killed").mkdir()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda _: mapped(), range(4))] == [[*range(9)]] * 4
    assert written == [1] and {path.suffix for path in folder.iterdir()} == {".lock", ".uint16"}


# 163
def test_memory_does_not_grow_with_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    (tmp_path / "a.txt").write_bytes(b"sixteen letters\n" * 2**21)
    tracemalloc.start()
    corpus = data.load(f"text:{tmp_path / 'a.txt'}")
    tokens = data.Encoded.of(corpus, "train", BYTES)[0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tokens) == corpus.sizes["train"] > 30e6 and peak < 8e6


def _real(text_dir, name):
    if not (text_dir / name).exists():
        pytest.skip(f"no {name} in the folder of real text")
    return f"text:{text_dir / name}"


def test_real_text_survives_tokenizing_and_packing(text_dir):
    corpus = data.load(_real(text_dir, "tiny_shakespeare/input.txt"))
    assert sum(corpus.sizes.values()) == 1_115_394
    batches = data.train_iterator(corpus, BYTES, length=1023, batch=8, seed=0)
    text = corpus.documents("train")[0].decode()
    for row in next(batches)["tokens"]:
        assert BYTES.decode(row[: int(np.argmax(row == BYTES.eos)) or None]) in text


def test_real_novels_split_by_folder(text_dir):
    corpus = data.load(_real(text_dir, "novels"))
    assert [len(corpus.documents(split)) for split in corpora.SPLITS] == [70, 3, 5]
    first = corpus.documents("validation")[0]
    assert not first.startswith(b"\xef\xbb\xbf") and b"\r\n" not in first
    windows = data.eval_windows(corpus, BYTES, split="test", count=20, length=4096)
    assert windows.shape == (20, 4096)
