"""The comparison on tasks: what is scored, what is words, runs that go on, a planted gain."""

import dataclasses
import json
import re
import signal

import numpy as np
import pytest
from matplotlib.text import Text

from configs import tasks_published
from experiments.programs import tasks as program
from experiments.reporting import accuracy_differences, results, tasks_report
from experiments.running.configs.tasks import TasksConfig
from experiments.running.files import table
from experiments.running.files.table import Row
from pe_jax.models.config import ModelConfig
from pe_jax.training import tasks
from pe_jax.training.config import MeshConfig, OptimizerConfig
from tests.trainers import TRIALS, interrupt

pytestmark = pytest.mark.xdist_group("solving")
LEARNED = "learned(length=20)"
RANDOM = "randomized(maximum=24)"


def settings(folder, **fields) -> TasksConfig:
    given = {
        "workdir": str(folder),
        "encodings": ("nope", LEARNED),
        "positions": ("contiguous",),
        "tasks": ("copy", "parity_check"),
        "length": 6,
        "lengths": (8, 12),
        "test": 12,
    }
    return TasksConfig(**{**TRIALS, **given, **fields})


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Stopped in its second run, continued, then with one more seed: folder, when written."""
    folder = tmp_path_factory.mktemp("tasks")
    real, begun = tasks.batch, []

    def batch(task, key, count, *args):
        begun.append(task.short)
        if count == 8 and task.short == "parity_check":
            interrupt()
        return real(task, key, count, *args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(tasks, "batch", batch)
        program.main(settings(folder))
    assert end.value.code == 128 + signal.SIGTERM
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("seed*.json")}
    program.main(settings(folder, positions=("contiguous", RANDOM)))
    return folder, before


def scored(folder):
    """The schemes of a folder's table."""
    return results.of_table(table.read(folder / "results.csv"))


def test_every_text_of_the_map_stays_in_the_picture(compared):
    folder, _ = compared
    drawn = tasks_report.figure(settings(folder), scored(folder)).figure
    drawn.canvas.draw()
    texts = [text for text in drawn.findobj(Text) if text.get_text()]
    assert {title for title, *_ in tasks_report.PANELS} <= {text.get_text() for text in texts}
    assert max(text.get_window_extent().x1 for text in texts) <= drawn.bbox.x1


def test_it_goes_on_where_it_was_unless_another_question_is_asked(compared, capsys):
    folder, before = compared
    assert [path.parts[-3:] for path in before] == [("copy", "0.01x1.0", "seed0.json")]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert len(list(folder.rglob("seed*.json"))) == 3 * 2  # nope sees no positions: not twice
    changed = {"steps": 4, "lengths": (8, 13), "reference": LEARNED, "measure": "answers"}
    for field, value in (*changed.items(), ("primary", (8,))):
        with pytest.raises(SystemExit) as end:
            program.main(settings(folder, **{field: value}))
        assert end.value.code == 2
        assert f"{field}=" in capsys.readouterr().err


def test_questions_that_changed_are_not_mixed_with_older_ones(compared, capsys):
    path = compared[0] / "config.json"
    saved = json.loads(path.read_text())
    assert saved["digests"]["copy"] == tasks.TASKS["copy"].digest
    path.write_text(json.dumps(saved | {"digests": {"copy": "another"}}))
    with pytest.raises(SystemExit):
        program.main(settings(compared[0]))
    path.write_text(json.dumps(saved))
    assert "'copy' has other questions now; use a new --config.workdir" in capsys.readouterr().err


def test_a_table_that_is_too_short_is_words_and_every_number_is_listed(compared):
    folder, _ = compared
    found = json.loads((folder / "results.json").read_text())
    schemes = {scheme.name: scheme for scheme in scored(folder)}
    assert found["command"].startswith("python -m experiments.tasks")
    assert [*schemes] == [tasks_report.FIXED, "nope", "learned", "learned, randomized"]
    run = schemes["learned"].runs[0]
    assert run.measured("copy: tokens", 12) == "not defined"  # 24 tokens, and 20 places
    assert 0 <= run.measured("copy: tokens", 8) <= 1
    assert 0 <= run.measured("parity_check: answers", 12) <= 1
    config, learned = settings(folder, positions=("contiguous", RANDOM)), schemes["learned"]
    assert tasks_report.cell(config, learned, "copy", "tokens", True) == "not defined"
    assert isinstance(tasks_report.cell(config, learned, "copy", "tokens", False), float)
    rows = table.read(folder / "results.csv")
    assert len(rows) == 4 * 2 * 3 * 2
    empty = [row for row in rows if row.status == "not defined"]
    assert {(r.scheme, r.test, r.length) for r in empty} >= {("learned", "copy: answers", 12)}
    assert {row.value for row in empty} == {None}
    assert (folder / "tasks.png").stat().st_size > 1000


def test_each_task_has_the_rate_that_learns_it_and_other_seeds_run_at_that_alone(tmp_path, capsys):
    fields = {"encodings": ("rope",), "tasks": ("copy",), "steps": 40, "seeds": 2}
    program.main(settings(tmp_path, rates=(3e-4, 3e-3), rate_rounds=1, **fields))
    ran = {path.parts[-2:] for path in tmp_path.rglob("seed*.json")}
    tried = {(f"{rate}x1.0", "seed0.json") for rate in (3e-4, 3e-3, 0.03)}  # one past the better
    assert ran == tried | {("0.03x1.0", "seed1.json")}
    rows = [row for row in table.read(tmp_path / "results.csv") if row.scheme == "rope"]
    assert {(row.seed, row.learning_rate, row.encoding_rate) for row in rows} == {
        (seed, 0.03, 1.0) for seed in (0, 1)
    }
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "best learning rate of each encoding and task (0.0003 in 0, 0.003 in 0, 0.03 in 1)" in shown
    )


def test_validation_asks_no_question_of_the_test_and_all_lengths_of_training(tmp_path):
    config, task = settings(tmp_path, test=240, length=12), tasks.TASKS["copy"]
    stream = program.VALIDATION
    asked, tested = (
        np.concatenate([np.asarray(rows["tokens"]) for rows in blocks])
        for blocks in (
            program.blocks(config, task, 12, stream, task.shortest),
            program.blocks(config, task, 12),
        )
    )
    lengths = (asked != 0).sum(1)
    assert len({*lengths}) == 13 - task.shortest and lengths.max() == (tested != 0).sum(1)[0]
    longest = asked[lengths == lengths.max()]
    assert not {row.tobytes() for row in longest} & {row.tobytes() for row in tested}


def entry(name, positions, scores):
    """A scheme with tokens right by task, length and seed; whole answers are never right."""
    rows = [
        Row(name, positions, seed, 0.01, 1.0, f"{task}: {measure}", int(n), None, value, (), status)
        for task, lengths in scores.items()
        for n, values in lengths.items()
        for seed, x in enumerate(values)
        for measure in ("tokens", "answers")
        for status in [x if isinstance(x, str) else "ok"]
        for value in [None if isinstance(x, str) else x * (measure == "tokens")]
    ]
    (scheme,) = results.of_table(rows)
    return scheme


FIFTEEN = (  # of arXiv 2305.16843, table 1: regular, context-free, context-sensitive
    *("even_pairs", "modular_arithmetic", "parity_check", "cycle_navigation"),
    *("stack_manipulation", "reverse_string", "modular_arithmetic_brackets", "solve_equation"),
    *("duplicate_string", "missing_duplicate", "odds_first", "binary_addition"),
    *("binary_multiplication", "compute_sqrt", "bucket_sort"),
)


def planted(better):
    """Two kinds of positions on two tasks: at longer lengths, the second gets `better` more."""
    plain = {
        "copy": {"6": [1.0] * 3, "8": [0.5, 0.6, 0.7], "12": [0.3, 0.4, 0.5]},
        "parity_check": {"6": ["diverged"] * 3, "8": ["diverged"] * 3, "12": ["diverged"] * 3},
    }
    other = {
        "copy": {
            "6": [1.0] * 3,
            "8": [0.5 + better, 0.6 + better, 0.7 + better + 0.01],
            "12": [0.3 + better, 0.4 + better, 0.5 + better],
        },
        "parity_check": {"6": [0.5] * 3, "8": [0.5] * 3, "12": [0.5] * 3},
    }
    return [
        entry("rope", "contiguous", plain),
        entry("rope, randomized", RANDOM, other),
    ]


def test_a_planted_gain_is_found_and_a_diverged_task_is_not_averaged_over(tmp_path):
    config = settings(
        tmp_path, positions=("contiguous", RANDOM), seeds=3, encodings=("rope",)
    ).resolved()
    plain, other = planted(0.2)
    bad = {"status": "diverged", "step": 2, "learning_rate": 0.01, "encoding_rate": 1.0}
    runs = {("rope", "contiguous"): {"copy": {0: bad}}}
    (lost,) = results.of_table(tasks_report.rows(config, runs, {}))
    assert lost.measured("copy: tokens", 8) == ({}, "diverged in seed 0")
    assert tasks_report.cell(config, plain, "parity_check", "tokens", True) == "diverged"
    np.testing.assert_allclose(tasks_report.cell(config, plain, "copy", "tokens", True), 0.5)
    assert tasks_report.cell(config, plain, "copy", "tokens", False) == 1
    found = tasks_report.pairs(config, [plain, other])
    assert found == {"positions": [(other, plain)], "encodings": []}
    tests = {task: tasks_report.tests(task, "tokens", (8, 12)) for task in config.tasks}
    gain = accuracy_differences.difference(other, plain, tests).estimate
    np.testing.assert_allclose(gain.mean, 20 + 0.5 / 3)
    assert gain.n == 3 and 19 < gain.low < 20 < gain.high < 22
    line = accuracy_differences.line(*tasks_report.differences(config, [plain, other])["positions"])
    assert line.startswith("rope, randomized minus rope: +20.2 points [+19.")
    assert ": more tokens right (p < 0.001)" in line
    assert line.endswith("; without parity_check (diverged in seeds 0, 1, 2)")


def test_every_encoding_is_compared_with_the_reference_and_holm_counts_them_all(tmp_path):
    config = settings(
        tmp_path, encodings=("rope", "t5", "nope"), tasks=("copy",), seeds=3
    ).resolved()
    plain, better = planted(0.2)
    better = dataclasses.replace(better, name="t5")
    same = dataclasses.replace(plain, name="nope")
    found = tasks_report.pairs(config, [plain, better, same])
    assert found == {"positions": [], "encodings": [(better, plain), (same, plain)]}
    alone, rows = (
        tasks_report.differences(config, schemes)["encodings"]
        for schemes in ([plain, better], [plain, better, same])
    )
    assert rows[1]["verdict"] == "no difference (identical numbers)"
    p = [float(re.search(r"p [=<] ([\d.]+)", row["verdict"])[1]) for row in (*alone, rows[0])]
    assert p[0] <= p[1] and rows[0]["points"] > 20
    config = settings(tmp_path, encodings=("rope", "t5"), tasks=("parity_check",)).resolved()
    (nothing,) = tasks_report.differences(config, [plain, better])["encodings"]
    assert accuracy_differences.line(nothing) == (
        "t5 minus rope: no number in both; without parity_check (diverged in seeds 0, 1, 2)"
    )


def test_what_has_no_number_counts_in_the_family_and_what_repeats_another_does_not(tmp_path):
    config = settings(
        tmp_path, encodings=("rope", "t5", "nope"), tasks=("copy",), seeds=3
    ).resolved()
    plain, better = planted(0.2)
    better = dataclasses.replace(better, name="t5")
    again = dataclasses.replace(better, name="nope")
    lost = entry("nope", "contiguous", {"copy": {n: ["diverged"] * 3 for n in ("6", "8", "12")}})

    def first(*entries):
        return tasks_report.differences(config, [plain, *entries])["encodings"][0]

    alone = first(better)
    assert alone["verdict"].startswith("more tokens right")
    assert first(better, again) == alone
    assert first(better, lost)["low"] < alone["low"]  # a wider interval, in a family of two


def test_the_primary_metric_may_be_whole_answers_at_one_length_and_each_task_has_verdicts(tmp_path):
    config = settings(
        tmp_path,
        encodings=("rope", "t5"),
        tasks=("copy", "reverse"),
        seeds=3,
        measure="answers",
        primary=(8,),
    ).resolved()

    def scheme(name, copied, reversed_):  # tokens are the other way round, other lengths far off
        rows = [
            Row(name, "", seed, None, None, f"{task}: {measure}", n, None, value)
            for task, answers, lengths in (
                ("copy", copied, (6, 8, 12)),
                ("reverse", reversed_, (8,)),
            )
            for seed, x in enumerate(answers)
            for n in lengths
            for measure, value in (("tokens", 1 - x), ("answers", x if n == 8 else 0.5))
        ]
        return results.of_table(rows)[0]

    rope = scheme("rope", [0.1, 0.2, 0.3], [0.5] * 3)
    t5 = scheme("t5", [0.6, 0.7, 0.9], [0.5, 0.4, 0.6])
    found = tasks_report.differences(config, [rope, t5])
    points = {family: rows[0]["points"] for family, rows in found.items() if rows}
    assert points == pytest.approx(
        {"encodings": 80 / 3, "encodings, copy": 160 / 3, "encodings, reverse": 0}, abs=1e-9
    )
    copied = found["encodings, copy"][0]
    assert copied["verdict"].startswith("more whole answers right")
    assert "copy: t5 minus rope: +53.3 points [+39.0" in "\n".join(
        tasks_report.lines(config, found)
    )
    with pytest.raises(ValueError, match=r"primary=\(9,\): pass some of length and lengths"):
        dataclasses.replace(config, primary=(9,)).check()


def test_the_reference_may_be_called_by_its_scheme_and_what_it_is_not_is_said(tmp_path):
    spec = "t5(bidirectional=True)"
    config = settings(
        tmp_path, encodings=("rope", spec), reference="t5", tasks=("copy",)
    ).resolved()
    rope, _ = planted(0.2)
    other = dataclasses.replace(rope, name="t5")
    assert tasks_report.pairs(config, [rope, other])["encodings"] == [(rope, other)]
    with pytest.raises(ValueError, match="reference='nope': pass one of the encodings: rope, t5"):
        settings(tmp_path, encodings=("rope", spec), reference="nope").check()
    config = settings(tmp_path, encodings=("rope",), reference="rope").resolved()
    assert tasks_report.lines(config, {"encodings": []}) == [
        "No encodings are compared with reference='rope'."
    ]


def test_what_sees_no_position_is_not_named_after_any(tmp_path):
    config = settings(tmp_path, encodings=("nope", LEARNED), positions=(RANDOM, "contiguous"))
    assert [*tasks_report.names(config).values()] == ["nope", "learned, randomized", "learned"]


def test_the_same_numbers_under_another_name_are_no_gain(tmp_path):
    config = settings(
        tmp_path, positions=("contiguous", RANDOM), seeds=3, encodings=("rope",)
    ).resolved()
    plain = planted(0.2)[0]
    again = dataclasses.replace(plain, name="rope, randomized")
    (found,) = tasks_report.differences(config, [plain, again])["positions"]
    assert found["points"] == 0 and found["verdict"] == "no difference (identical numbers)"
    one, other = (entry(name, "", {"copy": {"8": [x]}}) for name, x in (("a", 0.303), ("b", 0.3)))
    (once,) = accuracy_differences.judged([(one, other)], {"copy": [("copy: tokens", 8)]}, "tokens")
    assert once["low"] is None and once["verdict"] == "inconclusive (one seed)"
    assert accuracy_differences.line(once) == "a minus b: +0.3 points: inconclusive (one seed)"
    json.dumps([found, once], allow_nan=False)


def test_a_fixed_answer_is_the_likeliest_symbol_of_each_place(tmp_path):
    config = settings(tmp_path, test=600)
    found = program.best_fixed_answers(config, tasks.TASKS["parity_check"])
    assert all(0.44 < tokens == exact < 0.56 for tokens, exact in found.values())
    found = program.best_fixed_answers(config, tasks.TASKS["bucket_sort"])
    assert found["12"][0] > 2 / 5 and found["12"][1] < 0.05


def test_a_fixed_answer_has_not_seen_the_questions_that_it_is_scored_on(tmp_path, monkeypatch):
    config, task = settings(tmp_path, test=96), tasks.TASKS["recall"]
    honest = program.best_fixed_answers(config, task)
    monkeypatch.setattr(program, "OTHER", program.TEST)
    seen = program.best_fixed_answers(config, task)
    tokens = [sum(by_length[n][0] for n in ("6", "8", "12")) for by_length in (seen, honest)]
    assert tokens[0] > tokens[1] + 0.03


def test_what_is_right_is_counted_on_the_answer_alone():
    weights = np.array([[0, 0, 1, 1], [0, 1, 1, 0]], np.float32)
    right = np.array([[False, False, True, True], [True, True, False, True]])
    assert program.accuracy(right, weights) == [0.75, 0.5]


@pytest.mark.parametrize("causal", [False, True])
def test_a_model_is_scored_on_what_it_answers(tmp_path, monkeypatch, causal):
    """A model that answers with the targets but for one row is right but for it."""
    config = settings(tmp_path, model=ModelConfig(width=16, layers=1, heads=2, causal=causal))
    solver = program.Solver.__new__(program.Solver)
    solver.config = config.model
    solver.position_scheme = program.position_schemes.parse("contiguous")
    monkeypatch.setattr(program, "TOKENS", 60)  # several forward passes

    def answers(params, rows, key):
        right = np.ones(rows["tokens"].shape, bool)
        first = np.asarray(rows["tokens"])[0].tolist() == whole[len(right[0])]
        right[0] ^= first
        return right, np.True_, np.float32(0)

    whole = {}
    for length in (6, 8, 12):
        rows = next(program.blocks(config, tasks.TASKS["copy"], length))
        whole[rows["tokens"].shape[1]] = np.asarray(rows["tokens"])[0].tolist()
    monkeypatch.setattr(solver, "answers", answers, raising=False)
    found = program.score(config, solver, tasks.TASKS["copy"], None)
    assert {*found} == {"6", "8", "12"}
    for tokens, exact in found.values():
        np.testing.assert_allclose([tokens, exact], 11 / 12)


@pytest.mark.parametrize(
    "fields, words",
    [
        (
            {"tasks": ("reverse_strin",)},
            "'reverse_strin' is unknown; did you mean 'reverse_string'",
        ),
        ({"tasks": ("copy", "copy")}, "pass at least one task, each once"),
        ({"lengths": (6, 8)}, "lengths=(6, 8): pass longer ones than length=6"),
        ({"lengths": (8, 8)}, "lengths=(8, 8): pass ascending"),
        ({"length": 2, "tasks": ("variables",)}, "length=2: questions of variables have 3 to 54"),
        (
            {"lengths": (80, 90), "tasks": ("copy", "variables")},
            "lengths=(80, 90): variables has no question of more than 54 symbols",
        ),
        ({"seed": 2**31 - 1, "seeds": 2}, "seeds=2: at most 1, as seed=2147483647 is the first"),
        ({"positions": ("randomized(maximum=11)",)}, "a row of copy has 12 tokens, more than"),
        (
            {"positions": ("random_floats(trained_length=13)",), "encodings": ("rope",)},
            "no document has trained_length=13 tokens; pass at most length=12",
        ),
        ({"encodings": ("learned(length=11)",)}, "length=6: a row of copy has 12 tokens"),
        ({"encodings": ("xpos",)}, "for causal attention alone"),
        (
            {"encodings": ("t5",)},
            "model.encoding='t5': causal=False: all later tokens look alike to T5",
        ),
        ({"encodings": ("rope+t5",)}, "later tokens look alike"),
        ({"positions": ("randomised",)}, "did you mean 'randomized'"),
        ({"encodings": ("rope_2d",)}, "gives positions of 1 axes"),
        ({"rates": (0.01, 0.01)}, "rates=(0.01, 0.01): pass different numbers in (0, 10], or none"),
        ({"mesh": MeshConfig(seq=2)}, "mesh.seq=2: pass 1"),
        ({"optimizer": OptimizerConfig(warmup=9)}, "optimizer.warmup=9: must be in [0, steps=3]"),
    ],
)
def test_a_configuration_that_cannot_be_names_the_field_and_the_fix(tmp_path, fields, words):
    with pytest.raises(ValueError) as info:
        settings(tmp_path, **fields).check()
    assert words in str(info.value) and "\n" not in str(info.value)


def test_the_configurations_are_valid_and_randomized_positions_reach_their_longest_tests():
    for config in (TasksConfig(), tasks_published.get_config()):
        config.check()
        assert len(config.entries()) == 2 * len(config.encodings) - 1  # nope once
        places = program.position_schemes.parse(config.positions[1])
        for name in config.tasks:
            width = tasks.TASKS[name].read(config.lengths[-1], config.model.causal)
            assert places.fits(width, None, testing=True)
    assert config.tasks == FIFTEEN


def test_a_task_with_more_symbols_changes_no_number_of_the_others(compared, tmp_path):
    program.main(settings(tmp_path, tasks=("s5", "copy"), encodings=("nope",)))
    alone, beside = (
        json.loads(next(folder.glob("runs/nope-*/copy/*/seed0.json")).read_text())
        for folder in (compared[0], tmp_path)
    )
    assert {**alone, "seconds": None} == {**beside, "seconds": None}
    assert [*tmp_path.glob("runs/*/s5")]


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_model_learns_to_reverse_and_only_with_positions(tmp_path, causal):
    model = ModelConfig(width=32, layers=2, heads=2, causal=causal)
    fields = {"tasks": ("reverse_string",), "encodings": ("nope", "rope"), "steps": 600}
    optimizer = OptimizerConfig(warmup=50)
    config = settings(tmp_path, model=model, optimizer=optimizer, batch=64, test=64, **fields)
    program.main(config)
    cells = {
        s.name: tasks_report.cell(config, s, "reverse_string", "tokens", False)
        for s in scored(tmp_path)
    }
    assert cells["rope"] > 0.95 and (causal or cells["nope"] < 0.75)


def test_an_encoding_that_fails_leaves_the_others(tmp_path, monkeypatch, capsys):
    score = program.score

    def fails(config, solver, *rest):
        if solver.config.encoding == "nope":
            raise MemoryError("no room")
        return score(config, solver, *rest)

    monkeypatch.setattr(program, "score", fails)
    with pytest.raises(SystemExit) as end:
        program.main(settings(tmp_path, tasks=("copy",), lengths=(8,)))
    shown = capsys.readouterr()
    assert end.value.code == 1 and "nope contiguous copy/0.01x1.0/seed0: MemoryError" in shown.err
    assert "failed" in shown.out and "Results: " in shown.out
    status = {
        (row.scheme, row.test, row.length): row.status
        for row in table.read(tmp_path / "results.csv")
    }
    assert status["nope", "copy: answers", 8] == "failed"
    assert status["learned", "copy: answers", 8] == "ok"
