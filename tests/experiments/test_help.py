"""`--help` and `--list` of every program: all that a command line needs, without the source."""

import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import matplotlib
import pytest

import pe_jax
from experiments.reporting import plotting
from experiments.running.command import help_text, launch
from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.images import ImagesConfig
from experiments.running.configs.released import ReleasedConfig
from experiments.running.configs.tasks import TasksConfig
from pe_jax import config_fields, position_schemes
from pe_jax.encodings.rope_scaling import SCALINGS
from pe_jax.training import tasks
from pe_jax.training.config import Config
from tests.command_lines import status

ROOT = Path(__file__).parents[2]
KINDS = [Config, CompareConfig, TasksConfig, ImagesConfig, ExtendConfig, ReleasedConfig]
PROGRAMS = sorted(path.stem for path in ROOT.glob("experiments/*.py") if path.stem != "__init__")


@pytest.fixture
def printed(capfd, monkeypatch):
    """(config class, its file, arguments) → what is printed instead of running."""
    monkeypatch.chdir(ROOT)

    def call(kind, name, *args):
        assert status(lambda: launch.run(print, f"configs/{name}.py", kind), *args) == 0
        out, error = capfd.readouterr()
        assert not error
        return out

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_a_meaning_and_a_range(kind):
    def leaves(config):
        meanings = help_text.meanings(type(config))
        for field in config_fields.dataclasses.fields(config):
            value = getattr(config, field.name)
            if config_fields.dataclasses.is_dataclass(value):
                yield from leaves(value)
            else:
                yield field, meanings.get(field.name)

    found = list(leaves(kind()))
    assert len(found) == len(config_fields.paths(kind())) > 20
    assert not [field.name for field, meaning in found if not meaning]
    free = ("baseline", "reference")  # any of the encodings
    assert not [f.name for f, _ in found if "need" not in f.metadata and f.name not in free]
    workdir = kind().workdir
    assert workdir.startswith("runs/") and "runs/" in (ROOT / ".gitignore").read_text().split()


def test_help_has_the_fields_with_the_values_of_the_file(printed):
    text = printed(CompareConfig, "compare", "--config=configs/smoke.py", "--helpfull")
    assert "  --config.steps=30  (int)\n      optimizer steps; an integer of at least 1\n" in text
    assert "  --config.optimizer.learning_rate=0.003  (float)\n" in text
    assert "a number in (0, 10]" in text and "  --config.eval.lengths=16,128  (int, …)\n" in text
    assert "--config.timing_lengths=  (int, …)\n" in text  # empty: by its annotation
    assert "--config.rates=  (float, …)\n" in text and "--config.eval.kept=  (str, …)\n" in text
    assert "`~` is the home folder\n" in text and not re.search("; a (path|source|tokenizer)", text)
    assert "  --encodings=nope --encodings=sinusoidal" in text and "--coordinator\n" in text
    names = {*pe_jax.ENCODINGS, *SCALINGS}
    assert names <= {*re.findall(r"\w+", text.partition("\nencodings (")[2])}
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "what, names",
    [
        ("encodings", [*pe_jax.ENCODINGS, *SCALINGS]),
        ("tasks", [*tasks.TASKS]),
        ("positions", [*position_schemes.SCHEMES]),
        ("fields", [f"--config.{path}" for path in config_fields.paths(Config())]),
    ],
)
def test_a_list_has_all_there_are(printed, what, names):
    text = printed(Config, "train", f"--list={what}")
    assert {*names} <= {line.strip().split("=")[0].split("(")[0] for line in text.splitlines()}
    assert max(map(len, text.splitlines())) <= 100


def test_flags_that_repeat_are_several_values_and_a_comma_is_a_pattern(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    reached = []
    given = ["--encodings=t5", "--encodings=rope*3,nope", "--config.model.layers=4"]
    given += [f"--config.workdir={tmp_path}"]
    start = lambda: launch.run(reached.append, "configs/smoke.py", CompareConfig)  # noqa: E731
    assert status(start, *given) is None
    assert status(start, *given, "--config.baseline=rope*3,nope") is None
    first, second = reached
    assert first.encodings == second.encodings == ("t5", "rope*3,nope")
    assert (first.baseline, first.reference) == ("t5", "t5")  # the file's are not among them
    assert (second.baseline, second.reference) == ("rope*3,nope", "t5")


def test_a_lone_pattern_is_said_to_be_one_encoding(monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(ROOT)
    given = "--encodings=rope,kerple", "--config.model.layers=2", f"--config.workdir={tmp_path}"
    start = lambda: launch.run(lambda _: None, "configs/smoke.py", CompareConfig)  # noqa: E731
    assert status(start, *given) is None
    (said,) = [x.getMessage() for x in caplog.records if "one pattern over layers" in x.message]
    assert said.endswith("for 2, pass --encodings=rope --encodings=kerple")


def test_every_program_answers_soon_with_two_examples(tmp_path):
    """Programs import what they need after the flags are read. One process has all in turn."""
    show = """
        import runpy, sys
        from absl import app, flags  # app defines some
        known, programs = {*flags.FLAGS}, sys.argv[1:]
        for name in programs:
            sys.argv[:] = [name, "--help"]
            try:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            except SystemExit as end:
                assert end.code == 0
            for flag in {*flags.FLAGS} - known:
                delattr(flags.FLAGS, flag)
            print("loaded", *sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(show)]
    command += [f"experiments.{program}" for program in PROGRAMS]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert found.returncode == 0 and not found.stderr, found.stderr
    pages = re.findall(r"(.*?)^loaded (.*?)$", found.stdout, re.DOTALL | re.MULTILINE)
    for program, (text, loaded) in zip(PROGRAMS, pages, strict=True):
        assert text.count(f"python -m experiments.{program}") >= 2, program
        assert "flags:\n  --" in text, program
        heavy = {"orbax", "grain", "matplotlib", "scipy", "tensorflow_datasets", "tokenizers"}
        assert not heavy & {*loaded.split()}, program


# 85
@pytest.mark.parametrize("arguments", [[], ["--list=encodings"]])
def test_what_a_terminal_has_no_character_for_is_replaced(monkeypatch, arguments):
    monkeypatch.chdir(ROOT)
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    begin = lambda config: print("Report: −1 ×", flush=True)  # noqa: E731
    assert not status(lambda: launch.run(begin, "configs/train.py", Config), *arguments)
    assert b"Report: ?1 ?" in shown.getvalue() or (arguments and b"rope" in shown.getvalue())


# 86
def test_figures_need_no_back_end(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "module://not.installed"}
    draw = [sys.executable, "-m", "experiments.explore", f"--out={tmp_path}"]  # in a notebook
    subprocess.run(draw, cwd=ROOT, env=env, check=True)


def test_figures_are_ours_whatever_a_users_settings(tmp_path):
    @plotting.styled
    def drawn() -> bytes:
        figure, axes = plotting.canvas(3, 2, title="rope")
        axes[0].plot([0, 1], [0, 1])
        picture = plotting.Drawing("drawn", figure, ("x",), [], "")
        plotting.picture(picture, tmp_path / "drawn.png")
        return (tmp_path / "drawn.png").read_bytes()

    plain = drawn()
    for setting in ({"text.usetex": True}, {"axes.facecolor": "red"}, {"lines.linewidth": 9.0}):
        with matplotlib.rc_context(setting):
            assert drawn() == plain, setting


def test_compiled_programs_are_kept_unless_jax_was_told_where(monkeypatch):
    kept: dict = {}
    monkeypatch.setattr(jax.config, "update", kept.__setitem__)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    launch.keep_programs()
    assert not kept
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    launch.keep_programs()
    assert kept["jax_compilation_cache_dir"] == str(launch.COMPILED_PROGRAMS)
    ignored = (launch.COMPILED_PROGRAMS.parent / ".gitignore").read_text().splitlines()
    assert f"{launch.COMPILED_PROGRAMS.name}/" in ignored
