"""Rows 28 to 34 of the fault table, injected: one line, with the field, the value and the fix."""

import bz2
import contextlib
import gzip
import itertools
import lzma
import os
import re
import shutil

import numpy as np
import pytest
import tokenizers

from pe_jax.training import corpus as corpora
from pe_jax.training import data, tasks, tokenizer
from tests.test_corpus import novels, prepare_tfds, write, written

BYTES = tokenizer.get("bytes")


def fails(*parts):
    """One line that holds the parts, in order."""
    return pytest.raises(
        ValueError, match=r"\A[^\n]*" + r"[^\n]*".join(map(re.escape, parts)) + r"[^\n]*\Z"
    )


def train(corpus, model=BYTES, **fields):
    return data.train_iterator(corpus, model, **({"length": 7, "batch": 2, "seed": 0} | fields))


@pytest.mark.parametrize(
    "spec, near",
    [
        ("txt:novels", "text:DIR_OR_GLOB"),
        ("embeded", "embedded"),
        ("text", "text:DIR_OR_GLOB"),
        ("embedded:x", "embedded"),
        ("", "embedded"),
        ("synthetic:revers", "synthetic:reverse"),
    ],
)
def test_unknown_source_names_the_nearest(spec, near):
    with fails(f"data={spec!r}", "did you mean"):
        data.load(spec)
    if spec:
        with fails(f"'{near}'"):
            data.load(spec)


@pytest.mark.parametrize("what", ["missing", "missing/*.txt", ""])
def test_missing_folder_or_empty_glob(tmp_path, what):
    with fails("data='text:", f"{tmp_path}", "no file there", "give"):
        data.load(f"text:{tmp_path}/{what}")


def test_empty_corpus_says_the_counts(tmp_path):
    with fails("is empty", "train 0", "add"):
        data.load(write(tmp_path / "a", {"one": b"", "two": b"\xef\xbb\xbf"}))
    with fails("is empty (0 bytes)", "give"):
        data.load(write(tmp_path / "b", {"one": b""}) + "/one")
    with fails("has test/ but no train/", "add"):
        data.load(write(tmp_path / "c", {"test/one": b"text"}))
    with fails("has a.valid.txt but no train file", "add"):
        data.load(write(tmp_path / "d", {"a.valid.txt": b"text"}))


# 79
@pytest.mark.parametrize(
    "names, word",
    [
        (("train.txt", "eval.txt"), "eval.txt"),
        (("train.txt", "test.txt", "held-out.txt"), "held-out.txt"),
        (("books.txt", "valid.txt", "testing.txt"), "testing.txt"),
        (("train/a", "test/a", "holdout/a"), "holdout"),
        (("en/train/a", "en/development/a"), "en/development"),
        (("c_train.txt", "A Test of Wills.txt"), "A Test of Wills.txt"),
        (("eng.train", "eng.testa"), "eng.testa"),  # CoNLL-2003
        (("train.en", "tst2012.en"), "tst2012.en"),  # IWSLT
        (("train.txt", "validate.txt"), "validate.txt"),
        (("train/a", "tests/a"), "tests"),  # of a program it is code as any other
    ],
)
def test_a_name_that_looks_held_out_says_what_to_rename(tmp_path, names, word):
    with fails(f"data: {word} is beside a split", "rename it to validation or test"):
        data.load(write(tmp_path, dict.fromkeys(names, b"text")))
    alone = write(tmp_path / "books", {word: b"text", "other.txt": b"text"})
    assert data.load(alone).splits["train"]  # a title


# 79
def test_held_out_files_of_well_known_data_are_not_trained_on(tmp_path):
    held = {"newsdev2016.de": 1, "newstest2013.de": 2}
    held |= {"test data.txt": 2, "test (1).txt": 2, "myVal.txt": 1, "wikitest.txt": 2}
    read = data.load(write(tmp_path, dict.fromkeys(["train.txt", *held], b"text ")))
    at = {file.name: k for k, split in enumerate(read.splits.values()) for file in split.files}
    assert at == {"train.txt": 0} | held


# 79
def test_held_out_folders_without_text_to_train_on_say_what_to_rename(tmp_path):
    with fails("has Dev/ but no train/", "add text to train on, or rename"):
        data.load(write(tmp_path, {"Dev/a": b"text", "raw/b": b"text"}))


# 83
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_utf16_is_named_and_not_trained_on_as_bytes(tmp_path, encoding, split):
    name = f"{split}/wide.txt"
    spec = write(tmp_path, {name: "naïve text ".encode(encoding), "train/a": b"fine " * 9})
    kind = encoding[:6].upper()
    with fails(f"{name} is {kind}", f"iconv -f {kind} -t UTF-8"):
        data.load(spec)
    with fails(f"{name} is {kind}"):
        data.load(f"{spec}/{name}")


NO_TEXT = {
    "gzip": gzip.compress(b"text " * 99),
    "bzip2": bz2.compress(b"text " * 99),
    "xz": lzma.compress(b"text " * 99),
    "a zip archive": b"PK\x03\x04" + b"text " * 99,
    "zstd": b"\x28\xb5\x2f\xfd" + b"text " * 99,
    "LZ4": b"\x04\x22\x4d\x18" + b"text " * 99,
    "compress (.Z)": b"\x1f\x9d" + b"text " * 99,
    "a tar archive": b"a.txt".ljust(257, b"\0") + b"ustar" + b"text " * 99,
    "a DVC pointer": b"outs:\n- md5: 00\n  size: 9\n",
    "binary": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    "a pointer of git-annex": b"/annex/objects/SHA256E-s9--00.txt\n",
}


# 83
@pytest.mark.parametrize("kind", NO_TEXT)
def test_what_is_not_text_is_named_and_not_trained_on(tmp_path, kind):
    spec = write(tmp_path, {"b": NO_TEXT[kind], "a": b"fine " * 9})
    with fails(f"b is {kind}, which is not trained on as bytes"):
        data.load(spec)
    cyrillic = write(tmp_path / "wide", {"a": "Все счастливые семьи ".encode("utf-16-le")})
    with fails("a is binary"):
        data.load(cyrillic)
    texts = {
        "a": b"BZh is text, PK and a stray \0 too" + b" text" * 99,
        "b": "naïve".encode("latin-1") * 9,
    }
    assert data.load(write(tmp_path / "texts", texts)).splits


# 84
@pytest.mark.parametrize(
    "pattern, workdir, inside",
    [
        ("books", "books", True),
        ("books", "books/runs/a", True),
        ("books/**", "books/runs/a", True),
        ("books/*/*", "books/runs", True),
        ("books/*", "books", True),
        ("alias", "books/runs", True),
        ("books", "alias/runs", True),
        ("split", "split/train/run", True),
        ("books/*", "books/runs", False),
        ("books", "books/.runs/a", False),
        ("books", "books_runs", False),
        ("split", "split/runs", False),
        ("books/a.txt", "books/runs", False),
    ],
)
def test_a_workdir_is_no_part_of_the_text(tmp_path, monkeypatch, pattern, workdir, inside):
    write(tmp_path, {"books/a.txt": b"text", "split/train/a": b"text"})
    (tmp_path / "alias").symlink_to("books")
    monkeypatch.chdir(tmp_path)
    for spec in (f"text:{pattern}", f"passkeys:text:{tmp_path}/{pattern}"):
        refused = fails(f"workdir='{tmp_path}/{workdir}'", "choose a --config.workdir outside")
        with refused if inside else contextlib.nullcontext():
            data.load(spec, str(tmp_path / workdir))


def test_empty_split_says_the_counts(tmp_path):
    files = {"train/a": b"text", "test/b": b"text", "validation/c": b""}
    corpus = data.load(write(tmp_path, files))
    with fails("split 'validation' has no document", "validation 0 documents", "add"):
        data.eval_windows(corpus, BYTES, split="validation", count=1, length=2)


def test_corpus_shorter_than_one_sequence_says_the_counts(tmp_path):
    corpus = data.load(novels(tmp_path, count=1))  # three bytes and the end of the document
    next(train(corpus, length=3))
    with fails("length=4", "4 tokens in 1 train documents", "one row of 5", "use"):
        train(corpus, length=4)


def test_too_few_windows_says_the_counts(tmp_path):
    corpus = data.load(novels(tmp_path))
    with fails("count=99", "windows of length=32", "longest document has", "ask for less"):
        data.eval_windows(corpus, BYTES, split="train", count=99, length=32)


# 71
def test_a_single_file_is_read_in_pieces_by_several_processes(tmp_path):
    content = "".join(map(chr, range(0xE0, 0x1E0))).encode()  # two bytes per character
    corpus = data.load(write(tmp_path, {"input.txt": content}) + "/input.txt")
    found = []
    for index in range(3):
        batches = train(corpus, length=39, batch=3, process_count=3, process_index=index)
        rows = np.concatenate([next(batches)["tokens"] for _ in range(4)])
        assert (BYTES.eos in rows) == (index == 2)  # the document ends in the last piece
        whole = rows.astype(np.uint8).tobytes() * 2  # epochs of whole rows, in any order
        found.append({pair for pair in itertools.pairwise(whole) if 0xC3 <= pair[0] <= 0xC7})
    kept = corpus.documents("train")[0].decode()
    pairs = [{(*c.encode(),) for c in kept[k * 76 : (k + 1) * 76]} for k in range(3)]
    assert len(kept) >= 228 and all(len(f & p) > 70 for f, p in zip(found, pairs, strict=True))
    documents = data.Encoded.of(corpus, "train", BYTES)
    pieces = data._for_processes(documents, 3).documents
    assert "".join(pieces[i].decode() for i in range(3)) == kept  # between characters


def test_more_processes_than_characters(tmp_path):
    corpus = data.load(novels(tmp_path, count=1))
    with fails("1 documents for 4 processes", "too short", "use fewer"):
        train(corpus, batch=4, process_count=4)


@pytest.mark.parametrize(
    "fields, parts",
    [
        ({"batch": 6, "process_count": 4}, ("batch=6", "use 4 or 8")),
        ({"batch": 0}, ("batch=0", "at least 1")),
        ({"length": 0}, ("length=0", "at least 1")),
        ({"seed": -1}, ("seed=-1", "[0, 2^31)")),
        ({"seed": 2**31}, ("seed=2147483648", "[0, 2^31)")),
        ({"process_index": 1}, ("process_index=1", "[0, 1)")),
    ],
)
def test_values_out_of_range_say_the_range(fields, parts):
    with fails(*parts):
        train(tasks.TASKS["copy"], None, **fields)


def test_a_task_needs_room_for_one_symbol():
    next(train(tasks.TASKS["copy"], None, length=4))
    with fails("length=3", "at least 4"):
        train(tasks.TASKS["copy"], None, length=3)
    with fails("synthetic:copy", "use tasks.examples"):
        tasks.TASKS["copy"].documents("test")


def test_text_needs_a_tokenizer(tmp_path):
    with fails("tokenizer=None", "use tokenizer=bytes"):
        train(data.load(novels(tmp_path)), None)


# Row 30: bytes that are not UTF-8; row 31: ids outside the vocabulary


def test_invalid_utf8_is_exact_as_bytes_and_an_error_as_text(tmp_path):
    content = b"caf\xc3\xa9 \xff\xfe end " * 4
    corpus = data.load(written(tmp_path, {"a": b"fine " * 9, "b": content}))
    np.testing.assert_array_equal(BYTES.encode(content), list(content))
    next(train(corpus))
    tokenizer.train_bpe([b"caf\xc3\xa9 end fine"], f"{tmp_path}/bpe.json")
    bpe = tokenizer.get(f"bpe:{tmp_path}/bpe.json")
    with fails("byte 0xff at offset 6 is not UTF-8", "use tokenizer=bytes"):
        bpe.encode(content)
    with fails("train document 1", "byte 0xff at offset 6"):  # at the start, not when it is reached
        train(corpus, bpe)


@pytest.mark.parametrize("bad", [257, -1])
def test_an_id_outside_the_vocabulary_is_named_with_its_index(bad):
    with fails(f"id {bad} at index 2", "[0, 257)", "use"):
        BYTES.decode([1, 2, bad, 999])


def test_a_tokenizer_that_leaves_its_vocabulary_stops_training(tmp_path):
    class Broken(tokenizer.Bytes):
        def encode(self, document):
            return np.append(super().encode(document), 300)

    corpus = data.load(novels(tmp_path))
    with fails("train document 0", "id 300 at index 3", "[0, 257)"):
        train(corpus, Broken())


# 124
def test_a_link_to_nothing_is_no_text_to_leave_out(tmp_path):
    spec = write(tmp_path, {"a.txt": b"fine " * 9})
    folder = spec.partition(":")[2]
    os.symlink(tmp_path / "nowhere", f"{folder}/b.txt")
    for pattern in (spec, f"{spec}/*.txt"):
        with fails("1 files are links to nothing, such as", "b.txt; restore"):
            data.load(pattern)


# 125
def test_a_tokenizer_that_is_random_is_refused_and_one_that_leaves_text_out_says_so(
    tmp_path, caplog
):
    text, byte_level = "the fox, the fox, the box ", tokenizers.pre_tokenizers.ByteLevel

    def trained(alphabet=(), **options):
        model = tokenizers.Tokenizer(tokenizers.models.BPE(**options))
        model.pre_tokenizer = (
            byte_level(add_prefix_space=False)
            if alphabet
            else tokenizers.pre_tokenizers.Whitespace()
        )
        special = [options["unk_token"]] if "unk_token" in options else []
        trainer = tokenizers.trainers.BpeTrainer(
            initial_alphabet=[*alphabet], special_tokens=special, show_progress=False
        )
        model.train_from_iterator([text] * 9, trainer)
        model.save(str(tmp_path / "mine.json"))
        return tokenizer.get(f"bpe:{tmp_path}/mine.json")

    with fails("encodes at random", "set its dropout=0.2 to null"):
        trained(byte_level.alphabet(), dropout=0.2)
    assert not caplog.records
    assert trained().encode("ß".encode()).size == 0
    assert "leaves out characters that it has no token for" in caplog.text
    caplog.clear()
    assert len(trained(byte_level.alphabet()).encode("ßß".encode())) == 4
    assert len(trained(unk_token="?").encode("ß fox".encode())) > 1
    assert not caplog.records


def test_unknown_or_broken_tokenizers(tmp_path):
    with fails("tokenizer='byte'", "did you mean 'bytes'"):
        tokenizer.get("byte")
    with fails("tokenizer='bpe'", "did you mean 'bpe:PATH'"):
        tokenizer.get("bpe")
    with fails("no such file", "train_bpe"):
        tokenizer.get(f"bpe:{tmp_path}/missing.json")
    (tmp_path / "broken.json").write_text("{}")
    with fails("broken.json", "not a tokenizers JSON file", "train_bpe"):
        tokenizer.get(f"bpe:{tmp_path}/broken.json")


# Rows 32 to 34: truncated, flipped, missing


def test_a_file_that_changes_while_training_is_named(tmp_path):
    corpus = data.load(novels(tmp_path))
    path = tmp_path / "train" / "03"
    raw = bytearray(path.read_bytes())
    raw[1] ^= 1
    path.write_bytes(raw)
    with fails("03 changed since the start", "restore"):
        _read_all(corpus)
    path.unlink()
    with fails("cannot read", "03", "No such file", "restore"):
        _read_all(corpus)


def test_an_installed_file_that_is_not_as_in_its_wheel_is_named(monkeypatch):
    read = corpora._read
    flip = lambda path: (block.replace(b"optax", b"optay") for block in read(path))  # noqa: E731
    monkeypatch.setattr(corpora, "_read", flip)
    with fails("data='embedded'", "differs from its wheel's", "reinstall"):
        data.load("embedded")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(corpora, "PACKAGES", ("no-such-package",))
    with fails("no wheel of no-such-package", "pip install"):
        data.load("embedded")


def test_a_data_set_that_is_not_prepared_says_how_to(tmp_path):
    with fails("data='tfds:lm1b' is not prepared", "download_and_prepare()", "tfds-build"):
        data.load(f"tfds:lm1b:{tmp_path}")
    with fails("data='tfds:no such' is not a name", "use tfds:NAME"):
        data.load("tfds:no such")


@pytest.fixture(scope="module")
def fables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fables")
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 123, 9000))) for _ in range(40)]
    prepare_tfds(folder, train=texts)
    return folder


@pytest.fixture
def shard(fables, tmp_path):
    shutil.copytree(fables, tmp_path, dirs_exist_ok=True)
    return next(tmp_path.rglob("*train.array_record*"))


@pytest.mark.parametrize("keep", [0, 100, 1 << 16, 3 << 16, -8])
def test_a_truncated_shard_is_named_at_the_start(shard, tmp_path, keep):
    shard.write_bytes(shard.read_bytes()[:keep])
    with fails(shard.parent.name, "prepare the data set again"):
        data.load(f"tfds:fables:{tmp_path}")


def test_a_data_set_that_needs_tensorflow_says_how_to_prepare_it(shard, tmp_path):
    info = shard.parent / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with fails("is prepared as tfrecord", "needs TensorFlow", "file_format='array_record'"):
        data.load(f"tfds:fables:{tmp_path}")


def test_a_missing_shard_is_named(shard, tmp_path):
    shard.unlink()
    with fails("cannot read", shard.name, "No such file"):
        data.load(f"tfds:fables:{tmp_path}")


def test_a_flipped_bit_in_a_record_is_named_or_harmless(shard, tmp_path):
    raw, found = shard.read_bytes(), 0
    good = _read_all(data.load(f"tfds:fables:{tmp_path}"))
    for offset in np.linspace(0, len(raw) - 1, 24).astype(int):
        shard.write_bytes(raw[:offset] + bytes([raw[offset] ^ 4]) + raw[offset + 1 :])
        try:
            assert _read_all(data.load(f"tfds:fables:{tmp_path}")) == good
        except ValueError as error:
            assert shard.name in str(error) and "\n" not in str(error)
            found += 1
    assert found > 12


def test_a_bad_record_in_the_middle_of_training_is_one_line(shard, tmp_path):
    corpus = data.load(f"tfds:fables:{tmp_path}")
    batches = train(corpus, length=1023, batch=64)
    shard.write_bytes(b"\0" * shard.stat().st_size)
    with pytest.raises(ValueError, match="is corrupt or truncated.*; restore") as error:
        for _ in range(99):
            next(batches)
    assert shard.name in str(error.value) and "\n" not in str(error.value)  # grain adds a note


def _read_all(corpus):
    return [
        corpus.documents(split)[i]
        for split in corpora.SPLITS
        if len(corpus.splits[split])
        for i in range(len(corpus.splits[split]))
    ]
