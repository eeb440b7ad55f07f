"""Corpora: which text is read, and into which split."""

import hashlib
import importlib.metadata
import os
import pathlib
import sys
from collections import Counter

import pytest

from pe_jax.training import corpus as corpora
from pe_jax.training import data, tokenizer


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
        ("train.text", "DEV.text", "Test.text"),
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


# 163
@pytest.mark.parametrize("block", [8, 11, 64, 2**18])
def test_a_text_is_the_same_in_blocks_of_any_size(tmp_path, monkeypatch, block):
    monkeypatch.setattr(corpora, "BLOCK", block)
    raw = "\ufeff\ufeff" + "é\r\n漢\r\r\n</s>\r" * 30 + "\n😀" * 30
    raw = raw.encode() + b"\x80\x81\r\n\x82\r\n\x83\x84\x85\x86\r\n" * 5  # not UTF-8
    text = raw[3:].replace(b"\r\n", b"\n")
    corpus = data.load(write(tmp_path, {"a": raw, "b": b"b" * block}))
    assert corpus.warning.startswith("a, and 2 other files spells </s>")
    parts = [corpus.documents(split)[0] for split in corpora.SPLITS]
    assert b"".join(parts) == text
    assert corpus.documents("train").files[0].text == hashlib.sha256(text).hexdigest()
    train = corpora.pieces(corpus.documents("train"), 3)
    assert b"".join(train[k] for k in range(3)) == parts[0] and len({*map(len, parts)}) > 1
    (tmp_path / "a").write_bytes(raw + b"more")
    with pytest.raises(ValueError, match="a changed since the start"):
        train[0]


def test_what_a_later_block_holds_is_judged_without_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "BLOCK", 64)
    page = b"text " * 12 + b"and\n<html> is text here " * 9
    assert data.load(write(tmp_path, {"a": page})).splits
    with pytest.raises(ValueError, match="b is binary"):
        data.load(write(tmp_path, {"b": page + b"\0\0\0\1" * 40}))


def test_a_glob_finds_files(tmp_path):
    write(tmp_path, {f"{i}.txt": b"text" for i in range(50)} | {"other.md": b"no"})
    corpus = data.load(f"text:{tmp_path}/*.txt")
    assert sum(len(corpus.splits[split]) for split in corpora.SPLITS) == 50


def test_a_file_or_folder_is_read_whatever_its_name(tmp_path):
    write(tmp_path / "x[en]", {"a [1].txt": b"text " * 99})
    (folder,) = tmp_path.glob("**/a*")
    assert data.load(f"text:{folder}").sizes == data.load(f"text:{folder.parent}").sizes
    assert not corpora.reads_below(str(folder), folder.parent / "run")


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
    batches = data.train_iterator(corpus, tokenizer.get("bytes"), length=31, batch=2, seed=0)
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
