"""Rows 1 to 16 and 28 at the command line: one line, exit status 2, and not a file is written."""

import dataclasses
import os
import pathlib
import sys

import jax
import numpy as np
import pytest

from experiments.programs import compare
from experiments.running.command import config_files, launch
from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.images import ImagesConfig
from experiments.running.configs.tasks import TasksConfig
from experiments.running.training import training_loop as program
from pe_jax.models.config import ModelConfig
from pe_jax.training import paths
from pe_jax.training.config import Config, EvalConfig, MeshConfig
from pe_jax.training.step import Trainer
from pe_jax.training.tokenizer import train_bpe
from tests.command_lines import status
from tests.test_corpus import write

ROOT = pathlib.Path(__file__).parents[2]


class Compiled(Exception):
    """All checks were passed."""


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Calls a program's main as its command line does: (arguments) → exit status, in-process."""
    letters = np.random.default_rng(0).integers(97, 103, 900, dtype=np.uint8).tobytes()
    names = ("train/a", "train/b", "validation/a", "test/a")
    data = write(tmp_path / "text", {n: letters[99 * k :][:200] for k, n in enumerate(names)})
    small = ["length=8", "batch=8", "eval.lengths=(4,8)", "eval.stride=4", "eval.windows=2"]
    small += ["model.width=24", f"data={data}", f"workdir={tmp_path / 'run'}"]

    def compiled(*_):
        raise Compiled

    monkeypatch.setattr(Trainer, "compile", compiled)

    def call(*args: str, main=program.run) -> int | str | None:
        name = "train" if main is program.run else "compare"
        default = str(ROOT / "configs" / f"{name}.py")
        # a tuple given twice is both, one after the other
        given = {x.partition("=")[0] for x in args}
        base = [x for x in (SET + x for x in small) if x.partition("=")[0] not in given]
        kind = Config if main is program.run else CompareConfig
        argv = *(() if "--config" in given else base), *args
        try:
            return status(lambda: launch.run(main, default, kind), *argv)
        except Compiled:
            return "compiled"

    yield call


SET = "--config."


@pytest.mark.parametrize(
    "args, words",
    [
        # 1, 2
        (["head_dim=5"], ("model.encoding='rope'", "head_dim=5", "even")),
        (["encoding=rope(fraction=0.5)", "head_dim=6"], ("fraction=0.5", "3 of 6", "even")),
        (["width=9", "heads=3", "encoding=sinusoidal"], ("model.encoding=", "width=9", "even")),
        # 3, 4
        (["heads=5"], ("model.heads=5", "must divide width 24", "[1, 2, 3, 4, 6, 8, 12, 24]")),
        (["kv_heads=3"], ("model.kv_heads=3", "must divide heads: [1, 2, 4]")),
        (["heads=0"], ("model.heads=0", "at least 1")),
        # 8, 9
        (["encoding=rop"], ("model.encoding='rop'", "did you mean 'rope'?")),
        (["encoding=rope(bas=3)"], ("no field 'bas'", "did you mean 'base'?")),
        (["norm=rsm"], ("model.norm='rsm'", "did you mean 'rms'?")),
        (["dtype=bf16"], ("model.dtype='bf16'", "did you mean 'bfloat16'?")),
        (["attention=tile"], ("model.attention='tile'", "did you mean 'tiled'?")),
        (["encoding=rope*4"], ("must be a multiple of the pattern's length 4",)),
        # 14, 15
        (["encoding=rope(base=1)"], ("base=1", "above 1")),
        (["encoding=rope(base=1e400)"], ("base=inf", "above 1")),
        (["encoding=t5(max_distance=16)"], ("max_distance=16", "exceed the 16 exact buckets")),
        (["dropout=nan"], ("model.dropout=nan", "[0, 1)")),
        (["dropout=1"], ("model.dropout=1", "[0, 1)")),
        (["window=-1"], ("model.window=-1", "at least 0")),
        (["sinks=2"], ("model.sinks=2", "set model.window too")),
        (["bias_of=qkv"], ("model.bias_of='qkv'", "set model.bias=True too")),
        (["qk_norm_over=projection"], ("model.qk_norm_over=", "set model.qk_norm=True too")),
        (["causal=False"], ("model.causal=False", "needs a causal model")),
        (["vocab=100"], ("model.vocab=100", "at least 257")),
        (["encoding=learned(length=7)"], ("length=8", "is defined for 7 positions")),
        (["encoding=alibi_2d"], ("positions='contiguous'", "ALiBi2D takes 2", "configs/images.py")),
        (["layers=1.5"], ("model.layers=1.5", "an integer of at least 1")),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_bad_model_is_refused(command, capfd, tmp_path, args, words):
    layers = [] if any("layers" in x for x in args) else [f"{SET}model.layers=2"]
    refused(command, capfd, tmp_path, *layers, *(f"{SET}model.{x}" for x in args), words=words)


@pytest.mark.parametrize(
    "args, words",
    [
        # 3, 5, 6: eight devices
        (["mesh.data=3"], ("mesh.data=3, fsdp=1, seq=1, model=1", "the 8 devices", "[1, 2, 4, 8]")),
        (["mesh.data=2", "mesh.fsdp=2"], ("mesh.data=2, fsdp=2", "the product must be")),
        (["mesh.data=-1", "mesh.model=-1"], ("at most one axis may be -1",)),
        (["mesh.data=0"], ("mesh.data=0", "positive integer, or -1")),
        (["mesh.model=8"], ("model.heads=4", "mesh.model=8", "multiple of 8", "[1, 2, 4]")),
        (["mesh.model=4", "model.kv_heads=2"], ("model.kv_heads=2", "mesh.model=4", "[1, 2]")),
        (
            ["mesh.data=1", "mesh.fsdp=-1", "model.head_dim=6", "model.width=20"],
            ("model.width=20", "mesh.fsdp=8", "multiple of 8", "[1, 2, 4, 5, 10, 20]"),
        ),
        (
            ["batch=12"],
            ("batch=12", "mesh.data*mesh.fsdp=8", "multiple of 8", "[1, 2, 3, 4, 6, 12]"),
        ),
        (["positions=randomized(maximum=7)"], ("positions=", "at least length=8")),
        (
            ["positions=shape(maximum=9)", "model.encoding=learned(length=16)"],
            ("length=8", "is defined for 16 positions", "shape(maximum=9) has 17"),
        ),
        # 9
        (["modle.width=32"], ("--config.modle.width", "did you mean --config.model.width?")),
        (["model.widht=32"], ("--config.model.widht", "did you mean --config.model.width?")),
        (["optimizer.lr=1"], ("--config.optimizer.lr is unknown", "did you mean --config.")),
        (["step=3"], ("--config.step is unknown", "did you mean --config.steps?")),
        (["workers=2"], ("--config.workers is unknown", "did you mean --config.")),
        # 10, 11, 12
        (["steps=1e4"], ("--config.steps=1e4", "an integer of at least 1")),
        (["steps=-5"], ("steps=-5", "an integer of at least 1")),
        (["microbatches=3"], ("microbatches=3", "must divide batch=8", "[1, 2, 4, 8]")),
        (["microbatches=2"], ("batch/microbatches=4", "mesh.data*mesh.fsdp=8", "[1, 2, 4]")),
        (["steps"], ("Missing value for flag --config.steps",)),
        (["optimizer.learning_rate=abc"], ("learning_rate=abc", "a number in (0, 10]")),
        (["optimizer.learning_rate=nan"], ("optimizer.learning_rate=nan", "a number in (0, 10]")),
        (["optimizer.learning_rate=0"], ("optimizer.learning_rate=0", "a number in (0, 10]")),
        (["optimizer.clip=inf"], ("optimizer.clip=inf", "a number in (0, 1e+09]")),
        (["steps=20", "optimizer.warmup=30"], ("optimizer.warmup=30", "[0, steps=20]")),
        (["seed=-1"], ("seed=-1", "an integer in [0, 2^31)")),
        (["model.tied=maybe"], ("--config.model.tied=maybe",)),
        (["eval.lengths=(4.5,9)"], ("eval.lengths=(4.5, 9)", "positive integers")),
        (["eval.lengths=(8,4)"], ("eval.lengths=(8, 4)", "ascending")),
        (["eval.lengths=(4,"], ("eval.lengths=(4,", "ascending positive")),
        (["eval.stride=3"], ("eval.stride=3", "must be one of [1, 2, 4]")),
        (["eval.split=train"], ("eval.split='train'", "validation or test")),
        # 28, 29
        (["data=text:nowhere"], ("data='text:nowhere'", "no file there")),
        (["data=embeded"], ("data='embeded'", "did you mean 'embedded'?")),
        (["data=synthetic:copy", "length=3"], ("length=3", "at least 4")),
        (
            ["data=synthetic:copy", "eval.lengths=(3,6)", "eval.stride=1"],
            ("eval.lengths=(3, 6)", "needs at least 4"),
        ),
        (["tokenizer=byte"], ("tokenizer='byte'", "did you mean 'bytes'?")),
        (["length=900"], ("length=900", "fewer than one row of 901")),
        (["workdir="], ("workdir=''", "pass a path")),
        # 84
        (["data=text:.", "workdir=run"], ("data='text:.' would read the run's files",)),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_bad_run_is_refused(command, capfd, tmp_path, args, words):
    refused(command, capfd, tmp_path, *(SET + x for x in args), words=words)


def refused(command, capfd, tmp_path, *args, words, main=program.run):
    """Exit status 2 and one line with the words; no folder is made."""
    capfd.readouterr()
    ended = command(*args, main=main)
    error = capfd.readouterr().err
    assert ended == 2, error
    lines = [x for x in error.splitlines() if x.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in error, error
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["model.encoding=alibi", "model.heads=6"],  # 13: no power of two
        ["model.encoding=learned(length=8)", "eval.lengths=(4,8,16)"],  # 7: a cell without number
        ["mesh.model=2", "mesh.fsdp=2"],
    ],
)
def test_what_can_run_does(command, args):
    assert command(*(SET + x for x in args)) == "compiled"


@pytest.mark.parametrize(
    "args, words",
    [
        (["encodings=('rope','rop')"], ("model.encoding='rop'", "did you mean 'rope'?")),
        (["encodings=('rope','rope')"], ("encodings=", "name each once")),
        (
            ["encodings=('rope','nope')", "reference=t5"],
            ("reference='t5'", "the encodings: rope, nope"),
        ),
        (["encodings=()"], ("encodings=()", "at least one encoding")),
        (["seeds=0"], ("seeds=0", "at least 1")),
        (["rates=(0.1,0)"], ("rates=(0.1, 0)", "different numbers in (0, 10]")),
        (["rates=(0.1,0.1)"], ("rates=(0.1, 0.1)", "different numbers in (0, 10]")),
        (["rates=('a',)"], ("rates=('a',)", "different numbers in (0, 10]")),
        (
            ["rates=(0.1,)", "rate_steps=1", "optimizer.warmup=2", "eval.split=test"],
            ("rate_steps=1", "warmup=2"),
        ),
        (
            ["rates=(0.1,)", "eval.split=validation"],
            ("eval.split='validation': the rates are chosen there", "split=test"),
        ),
        (
            ["encoding_rates=(1,0)"],
            ("encoding_rates=(1, 0)", "different numbers in (0, 10000]"),
        ),
        (["length=3"], ("eval.every=50", "length=3 must divide the longest of eval.lengths, 8")),
        (["timing_lengths=(64,32)"], ("timing_lengths=(64, 32)", "ascending integers")),
        (["timing_lengths=(64,)", "mesh.seq=2"], ("timing_lengths=(64,)", "mesh.seq")),
        (["protocol=slide"], ("protocol='slide'", "non-overlapping or sliding")),
        (
            ["length=900", "eval.lengths=(4,900)", "encodings=('rope','nope')", "eval.every=0"],
            ("eval.windows=2", "ask for less"),
        ),
        # 85
        (["length=2", "eval.every=0"], ("eval.lengths=(4, 8): add length=2",)),
        (["data=synthetic:copy", "protocol=sliding"], ("protocol='sliding'", "non-overlapping")),
        # 86
        (["seed=2147483646", "seeds=3"], ("seeds=3: at most 2, as seed=2147483646 is the first",)),
    ],
)
def test_a_bad_comparison_is_refused(command, capfd, tmp_path, args, words):
    refused(command, capfd, tmp_path, *(SET + x for x in args), words=words, main=compare.main)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"steps": 1e4}, "steps=10000.0: pass an integer of at least 1"),
        ({"batch": True}, "batch=True: pass an integer of at least 1"),
        ({"seed": 0.5}, "seed=0.5: pass an integer in"),
        ({"mesh": MeshConfig(data=1.5)}, "mesh.data=1.5: pass a positive integer"),  # pyright: ignore
        ({"eval": EvalConfig(windows=2.0)}, "eval.windows=2.0: pass an integer"),  # pyright: ignore
    ],
)
def test_a_config_file_gives_integers_where_flags_do(fields, words):
    with pytest.raises(ValueError) as info:
        Config(**fields).check()
    assert words in str(info.value)


@pytest.mark.parametrize("kind", [Config, CompareConfig, ImagesConfig, TasksConfig, ExtendConfig])
def test_a_config_is_replaced_and_never_changed(kind):
    config, model = kind(), ModelConfig()
    assert hash(config) == hash(kind()) and dataclasses.replace(config) == config
    for changed, field in [(config, "workdir"), (model, "vocab"), (EvalConfig(), "stride")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(changed, field, 1)


def test_a_config_file_may_be_any_python(tmp_path):
    """A dataclass under deferred annotations, a colon in its path, and its own KeyError."""
    (tmp_path / "12:30").mkdir()
    file = tmp_path / "12:30" / "mine.py"
    lines = ["from __future__ import annotations", "import dataclasses"]
    lines += ["import colorsys  # which nothing has imported"]
    lines += ["from pe_jax.training.config import Config", "@dataclasses.dataclass", "class Mine:"]
    lines += ["    steps: int = 7", "def get_config(part='x'):", "    return {'x': Config}[part]()"]
    file.write_text("\n".join(lines))
    assert config_files.load(str(file), Config).steps == Config().steps
    assert "colorsys" in sys.modules
    with pytest.raises(ValueError, match="there is no part 'y'"):
        config_files.load(f"{file}:y", Config)
    file.write_text("import os\ndef get_config():\n    return os.environ['NO_SUCH_NAME']")
    with pytest.raises(KeyError, match="NO_SUCH_NAME"):
        config_files.load(str(file), Config)


# 46
def test_a_workdir_that_cannot_be_written_is_refused(command, capfd, tmp_path):
    (tmp_path / "file").write_text("")
    words = ("workdir=", "is not writable; choose another --config.workdir")
    refused(command, capfd, tmp_path, f"{SET}workdir={tmp_path / 'file' / 'run'}", words=words)


# 127
@pytest.mark.parametrize("name", ["lr[1]", "back\\slash", os.fsdecode(b"caf\xe9")])
def test_a_workdir_whose_checkpoints_could_not_be_read_is_refused(command, capfd, tmp_path, name):
    words = ("workdir=", "checkpoints cannot be read from a path with [")
    refused(command, capfd, tmp_path, f"{SET}workdir={tmp_path / name}", words=words)


# 127
def test_a_workdir_below_a_link_to_nothing_is_refused(command, capfd, tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    words = ("workdir=", f"{tmp_path / 'runs'} is a link to nothing")
    refused(command, capfd, tmp_path, f"{SET}workdir={tmp_path / 'runs' / 'a'}", words=words)


def test_an_encoding_is_given_once(command, capfd, tmp_path):
    words = ("encoding='alibi' and config.model.encoding", "give one of them")
    arguments = f"{SET}workdir={tmp_path / 'run'}", f"{SET}model.encoding=nope", "--encoding=alibi"
    refused(command, capfd, tmp_path, *arguments, words=words)


def test_programs_without_a_compiler_are_refused(command, capfd, tmp_path):
    with jax.disable_jit():
        words = ("JAX_DISABLE_JIT", "unset it")
        refused(command, capfd, tmp_path, f"{SET}workdir={tmp_path / 'run'}", words=words)


# 79
def test_a_tilde_is_the_home_folder_wherever_a_path_is_given(command, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "text").rename(tmp_path / "home" / "text")
    (tmp_path / "home" / "mine.py").write_text((ROOT / "configs" / "train.py").read_text())
    train_bpe([b"to be or not to be"], str(tmp_path / "home" / "bpe.json"), 260)
    seen = []
    monkeypatch.setattr(program, "prepare", lambda config, *_: seen.append(config) or 1 / 0)
    fields = ["workdir=~/run", "data=text:~/text", "tokenizer=bpe:~/bpe.json", "length=8"]
    fields += ["eval.lengths=(4,8)", "eval.stride=4", "eval.windows=1"]
    with pytest.raises(ZeroDivisionError):
        command("--config=~/mine.py", *(SET + x for x in fields))
    assert seen[0].workdir == str(tmp_path / "home" / "run") and seen[0].model.vocab
    assert not (tmp_path / "~").exists()


# 88
def test_a_bucket_without_the_library_for_it_is_refused(command, capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(paths.importlib.util, "find_spec", lambda name: None)
    words = ("workdir='gs://bucket/run': buckets need gcsfs: pip install 'pe_jax[gcs]'",)
    refused(command, capfd, tmp_path, f"{SET}workdir=gs://bucket/run", words=words)


# 45
def test_a_relative_workdir_is_made_absolute_at_the_start(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seen = []
    note = lambda config, *_: seen.append(config.workdir) or 1 / 0  # noqa: E731
    monkeypatch.setattr(program, "open_source", note)
    with pytest.raises(ZeroDivisionError):
        command(f"{SET}workdir=here/run")
    assert seen == [str(tmp_path / "here" / "run")] and not (tmp_path / "here").exists()
