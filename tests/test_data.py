import importlib.metadata
import json
import os
import pathlib
import re
import sys
from collections import Counter

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from pe_jax.training import corpus as corpora
from pe_jax.training import data, packing, tokenizer

BYTES = tokenizer.get("bytes")


def write(folder, documents):
    for name, content in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"text:{folder}"


def written(folder, documents):
    """Writes a train split, and one document for each other split so that none is taken from it."""
    train = {f"train/{name}": content for name, content in documents.items()}
    return write(folder, train | {"validation/0": b"validation", "test/0": b"test"})


def novels(folder, count=12):
    """Documents that share no byte: document i holds only the letter i."""
    return written(folder, {f"{i:02d}": bytes([65 + i]) * (7 * i + 3) for i in range(count)})


def prepare_tfds(folder, **splits):
    """A real array_record data set, made without TensorFlow: each split a list of texts."""
    import tensorflow_datasets as tfds

    class Fables(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {name: enumerate({"text": t} for t in texts) for name, texts in splits.items()}

        def _generate_examples(self):
            raise NotImplementedError

    builder = Fables(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return f"tfds:fables:{folder}"


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


# Corpora


def test_digest_is_stable_and_changes_with_the_corpus(tmp_path):
    spec = novels(tmp_path)
    first = data.load(spec).digest
    assert data.load(spec).digest == first and len(first) == 64
    (tmp_path / "train" / "00").write_bytes(b"AAB")
    changed = data.load(spec).digest
    (tmp_path / "train" / "00").rename(tmp_path / "train" / "renamed")
    assert len({first, changed, data.load(spec).digest}) == 3


def test_folders_are_splits_and_what_lacks_comes_out_of_train(tmp_path):
    files = {f"train/{i}.txt": b"text %d" % i for i in range(200)} | {"test/0.txt": b"kept apart"}
    corpus = data.load(write(tmp_path, files | {"train/.hidden": b"x", "train/empty": b""}))
    counts = {split: len(corpus.documents(split)) for split in corpora.SPLITS}
    assert corpus.documents("test")[0] == b"kept apart" and counts["test"] == 1
    assert sum(counts.values()) == 201 and 2 <= counts["validation"] <= 25
    assert f"train {counts['train']} documents" in corpus.describe()


def test_a_single_file_is_cut_into_ranges_between_characters(tmp_path):
    content = "é".encode() * 333 + b"abc"
    spec = write(tmp_path, {"input.txt": content})
    corpus = data.load(spec + "/input.txt")
    assert corpus.digest == data.load(spec).digest
    parts = [corpus.documents(split)[0] for split in corpora.SPLITS]
    assert b"".join(parts) == content and [p.decode() for p in parts]
    assert 0.88 < len(parts[0]) / len(content) < 0.92


# 70
@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("train.txt", "test.txt")])
def test_few_files_are_split_by_their_bytes_and_say_so(tmp_path, names):
    texts = [("é" * 200 + str(k)).encode() for k in range(len(names))]
    corpus = data.load(write(tmp_path, dict(zip(names, texts, strict=True))))
    marked = "test.txt" in names
    parts = {s: [corpus.documents(s)[i] for i in range(_n(corpus, s))] for s in corpora.SPLITS}
    cut = ["train", "validation"] if marked else corpora.SPLITS
    for k, text in enumerate(texts[: 1 if marked else None]):
        assert b"".join(parts[split][k] for split in cut) == text
        assert 18 <= len(parts["validation"][k]) <= 22 and parts["validation"][k].decode()
    assert not marked or parts["test"] == texts[1:]
    say = "validation: the last 5 %" if marked else "validation, test: the last 10 %"
    assert f"({say} of each file)" in corpus.describe() and "\n" not in corpus.describe()


def test_splits_in_the_names_of_files_are_never_trained_on(tmp_path):
    held = {"valid.txt": b"v" * 40, "sub/Wiki.Validation.tokens": b"w", "wiki.test.raw": b"t"}
    files = {f"{k}.txt": b"text" for k in range(40)} | {"test.py": b"code", "latest.txt": b"x"}
    corpus = data.load(write(tmp_path, held | files | {"wiki.train.raw": b"text"}))
    assert texts(corpus) == {
        "train": {b"text", b"x"},
        "validation": {b"v" * 40, b"w"},
        "test": {b"t", b"code"},
    }
    assert "the last" not in corpus.describe()
    only = data.load(f"text:{tmp_path}/valid.txt")  # asked for by its name
    assert only.name == "text:valid.txt"


# 79
@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "val.txt", "test.txt"),
        ("train.jsonl", "DEV.jsonl", "Test.jsonl"),
        ("c_train.txt", "c-valid.txt", "c.test.txt"),
        ("train-00000.txt", "validation-00000-of-00002.txt", "test2.txt"),
        ("books.txt", "val-clean.txt", "test_other"),
        ("train.txt", "train_valid.txt", "testset.txt.gz"),
        ("x.training.txt", "x.devtest.txt", "x.test.txt"),
        ("train/val.txt", "Dev/a.txt", "TEST-1/a.txt"),
        ("train/a.txt", "val.txt", "wiki_test/a.txt"),
        ("en/train/a.txt", "en/dev/a.txt", "de/sub/test/a.txt"),
        ("contest.txt", "validation.txt/a", "wiki_test/deep/train.txt"),
    ],
)
def test_held_out_text_is_never_trained_on_by_any_of_its_names(tmp_path, names):
    parts = dict(zip(names, (b"train", b"held out", b"test"), strict=True))
    more = {names[0].replace(".", "2."): b"train"}
    for spelling in ("", "/**"):
        corpus = data.load(write(tmp_path, parts | more) + spelling)
        held = {"validation": {b"held out"}, "test": {b"test"}}
        assert texts(corpus) == {"train": {b"train"}} | held


# 79
@pytest.mark.parametrize("extra", ["README.md", "runs/a.txt", "test.sh"])
def test_what_is_beside_folders_of_all_splits_is_left_out(tmp_path, extra):
    parts = {"train/a": b"train", "val/a": b"held out", "test/a": b"test"}
    corpus = data.load(write(tmp_path, parts | {extra: b"left out", "eval/a": b"left out"}))
    assert texts(corpus) == {"train": {b"train"}, "validation": {b"held out"}, "test": {b"test"}}


# 80
def test_hidden_paths_are_left_out_and_links_are_followed_by_every_spelling(tmp_path):
    hidden = {".git/HEAD": b"no", ".git/objects/ab": b"no", "sub/.cache/a.txt": b"no"}
    books = {f"sub/{k}.txt": b"text %d" % k for k in range(40)}
    write(tmp_path / "books", books | hidden | {"sub/.a.txt": b"no"})
    (tmp_path / "books" / "sub" / "loop").symlink_to(tmp_path / "books")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "sub").symlink_to(tmp_path / "books" / "sub")
    (tmp_path / "alias").symlink_to(tmp_path / "linked")
    found = [data.load(f"text:{tmp_path}/{x}") for x in ("books", "books/**", "linked", "alias/**")]
    assert len({corpus.digest for corpus in found}) == 1 and not found[0].warning
    assert all(set().union(*texts(c).values()) == {*books.values()} for c in found)
    asked_for = data.load(f"text:{tmp_path}/books/.git")
    assert sum(asked_for.sizes.values()) == 4


# 81
def test_a_name_that_is_not_utf8_is_read(tmp_path):
    texts_by_name = {b"caf\xe9.txt": b"text " * 90, b"caf\xe8.txt": b"more " * 90}
    for name, content in texts_by_name.items():
        pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(content)
    corpus = data.load(f"text:{tmp_path}")
    assert {file.name for file in corpus.splits["train"].files} == {"caf\\xe9.txt", "caf\\xe8.txt"}
    folder = f"{tmp_path}{os.fsdecode(bytes([0xFF]))}"
    tmp_path.rename(folder)
    named = data.load(f"text:{folder}")
    assert named.digest == corpus.digest and named.describe().encode()


# 82
def test_the_same_text_under_two_names_is_said_and_splits_come_first(tmp_path):
    files = {"train/a": b"one\n", "train/b": b"one\r\n", "train/c": b"two", "test/c": b"two"}
    corpus = data.load(write(tmp_path, files | {"train/empty": b"", "test/empty": b""}))
    first = "test/c (test) = train/c (train)", "train/c (train) = test/c (test)"
    assert corpus.warning in [
        f"the same text is in several files: {x}, train/a (train) = train/b (train)" for x in first
    ]
    cut = data.load(write(tmp_path / "cut", {"a": b"text " * 40, "b": b"other" * 40}))
    assert not cut.warning  # each file is in all splits, by parts


def test_marks_of_the_file_are_not_text(tmp_path):
    spec = written(tmp_path, {"a": b"\xef\xbb\xbfone\r\ntwo\rthree\n"})
    corpus = data.load(spec)
    assert corpus.documents("train")[0] == b"one\ntwo\rthree\n"
    assert corpus.sizes["train"] == 14


def test_a_glob_finds_files(tmp_path):
    write(tmp_path, {f"{i}.txt": b"text" for i in range(50)} | {"other.md": b"no"})
    corpus = data.load(f"text:{tmp_path}/*.txt")
    assert sum(len(corpus.splits[split]) for split in corpora.SPLITS) == 50


def test_embedded_text_is_what_the_wheels_say():
    corpus = data.load("embedded")
    assert corpus.digest == data.load("embedded").digest
    assert sum(corpus.sizes.values()) > 11e6
    assert min(len(corpus.documents(split)) for split in corpora.SPLITS) > 50
    assert b"import" in corpus.documents("validation")[0]


def locked_versions():
    """The packages of the embedded corpus in the lock file."""
    lock = (pathlib.Path(__file__).parents[1] / "requirements.txt").read_text(encoding="utf-8")
    pins = dict(line.partition(" ")[0].split("==") for line in lock.splitlines() if line[0] != "#")
    return {package: pins[package] for package in corpora.PACKAGES}


def test_the_lock_installs_the_embedded_corpus_of_the_published_numbers():
    installed = {package: importlib.metadata.version(package) for package in corpora.PACKAGES}
    if installed != locked_versions():
        pytest.skip("other versions are installed: pip install -r requirements.txt")
    corpus = data.load("embedded")
    assert corpus.digest == corpora.PUBLISHED_DIGEST and not corpus.warning


@pytest.mark.parametrize("spec", ["embedded", "passkeys:embedded"])
def test_an_embedded_corpus_of_other_versions_says_so(monkeypatch, spec):
    monkeypatch.setattr(corpora, "PACKAGES", corpora.PACKAGES[:2])
    corpus = data.load(spec)
    absl, etils = (importlib.metadata.version(package) for package in corpora.PACKAGES)
    assert "is not that of the published numbers (d7e5d1c74bf2)" in corpus.warning
    assert corpus.warning.endswith(f"requirements.txt installs: absl-py {absl}, etils {etils}")


def test_tfds_data_is_read_without_tensorflow(tmp_path):
    texts = [f"Fable {i}: é" * (i + 1) for i in range(40)]
    spec = prepare_tfds(tmp_path, train=texts, test=["the end"])
    corpus = data.load(spec)
    found = [corpus.documents(s)[i] for s in ("train", "validation") for i in range(_n(corpus, s))]
    assert Counter(found) == Counter(text.encode() for text in texts)
    assert _n(corpus, "validation") == 2 and corpus.documents("test")[0] == b"the end"
    assert data.load(spec).digest == corpus.digest
    assert "tensorflow" not in sys.modules
    batches = data.train_iterator(corpus, BYTES, length=31, batch=2, seed=0)
    assert next(batches)["tokens"].shape == (2, 32)


def test_held_out_splits_of_a_data_set_have_other_names_too(tmp_path):
    fables = [f"Fable {i}" for i in range(40)]
    corpus = data.load(prepare_tfds(tmp_path, train=fables, dev_a=["the middle"], dev_b=["no"]))
    assert corpus.documents("validation")[0] == b"the middle" and _n(corpus, "validation") == 1
    assert _n(corpus, "train") == 38 and _n(corpus, "test") == 2


def texts(corpus):
    """By split, the documents, each once."""
    return {s: {corpus.documents(s)[i] for i in range(_n(corpus, s))} for s in corpora.SPLITS}


def _n(corpus, split):
    return len(corpus.documents(split))


# Evaluation windows


def test_eval_windows_lie_in_one_document_each_and_do_not_overlap(tmp_path):
    files = {f"{i}": bytes(range(i * 20, i * 20 + 20)) for i in range(12)}
    corpus = data.load(written(tmp_path, files | {"short": b"\xff" * 5}))
    available = sum(len(corpus.documents("train")[i]) // 6 for i in range(_n(corpus, "train")))
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
    assert [_n(corpus, split) for split in corpora.SPLITS] == [70, 3, 5]
    first = corpus.documents("validation")[0]
    assert not first.startswith(b"\xef\xbb\xbf") and b"\r\n" not in first
    windows = data.eval_windows(corpus, BYTES, split="test", count=20, length=4096)
    assert windows.shape == (20, 4096)
