"""Every task against a solver of its own, from the tokens alone, in both layouts."""

import collections
import functools
import itertools
import math

import jax
import numpy as np
import pytest

from pe_jax.training import data, tasks
from pe_jax.training.tasks import base, groups, lookup
from tests.task_solvers import A5, LETTERS, S5, SHORTER, SOLVERS, cycles, needles, told

COUNT = 48
# Tasks of one answer whose classes are equally likely, whatever the length
BALANCED = (
    *("parity_check", "solve_equation", "missing_duplicate", "recall"),
    *("cycle_navigation", "even_pairs", "index_place", "index_content", "index_both"),
    *("variables", "flip_flop", "facts", "a5", "s5"),
)
ALL = pytest.mark.parametrize("name", tasks.TASKS)


@functools.cache
def rows(name, low, high, causal=False):
    key, count = jax.random.key(0), 8 * COUNT if high > low else COUNT
    return jax.device_get(tasks.batch(tasks.TASKS[name], key, count, low, high, causal))


def all_lengths(name):
    """Rows with questions from the shortest to 40 symbols, one program a task."""
    return rows(name, tasks.TASKS[name].shortest, 40)


def check_encoder(name, batch):
    """The lengths of the questions of a batch, after each row was solved."""
    task, lengths = tasks.TASKS[name], []
    for tokens, targets, segments, weights in zip(
        *(batch[key].tolist() for key in ("tokens", "targets", "segments", "weights")), strict=True
    ):
        asked = sum(segments) if task.in_place else tokens.index(tasks.SEP)
        solved = SOLVERS[name]([s - LETTERS for s in tokens[:asked]])
        unscored = solved.count(None)
        assert None not in solved[unscored:]
        answer = [s + LETTERS for s in solved[unscored:]] + [tasks.EOS] * task.stops
        slots = task.slots(asked)
        rest = len(tokens) - asked - slots
        assert len(answer) + unscored <= (asked if task.in_place else slots) and rest >= 0
        assert tokens[asked:] == [tasks.SEP] * slots + [tasks.PAD] * rest
        assert segments == [1] * (asked + slots) + [0] * rest
        first = unscored if task.in_place else asked
        scored = slice(first, first + len(answer))
        assert targets[scored] == answer and weights[scored] == [1.0] * len(answer)
        assert sum(weights) == len(answer)
        assert LETTERS <= min(tokens[:asked]) and max(tokens + answer) < task.vocab
        assert task.vocab <= tasks.VOCAB or task.in_place
        lengths.append(asked)
    return lengths


@ALL
def test_an_independent_solver_agrees_at_every_length(name):
    low, shorter = tasks.TASKS[name].shortest, SHORTER.get(name, 0)
    lengths = check_encoder(name, all_lengths(name))
    assert low - shorter <= min(lengths) <= low and 40 - shorter <= max(lengths) <= 40
    assert len({*lengths}) > 0.9 * (40 - low) / (shorter + 1)


@ALL
def test_no_answer_is_much_likelier_than_another(name):
    batch = all_lengths(name)
    found = collections.Counter(batch["targets"][batch["weights"] > 0].tolist())
    task, total = tasks.TASKS[name], sum(found.values())
    counts = [found[s] for s in range(LETTERS, task.vocab) if found[s]]
    assert len(counts) >= 2 and max(counts) < 0.75 * total
    if name in BALANCED:
        assert max(counts) - min(counts) < 6 * (total / len(counts)) ** 0.5


@pytest.mark.parametrize("name", ["copy", "parity_check", "recall"])
def test_all_questions_have_the_length_asked_for(name):
    length = 51 - SHORTER.get(name, 0)
    odd = name == "recall" and length % 2 == 0  # pairs, and what is asked for
    assert {*check_encoder(name, rows(name, length, length))} == {length - odd}
    width = tasks.TASKS[name].encoded(length)
    assert rows(name, length, length)["tokens"].shape == (COUNT, width)


def test_tasks_are_those_that_are_solved_here():
    assert list(SOLVERS) == list(tasks.TASKS)


def test_a_batch_is_the_same_for_the_same_key_alone():
    first, again, other = (
        np.asarray(tasks.batch(tasks.TASKS["copy"], jax.random.key(seed), COUNT, 4, 4)["tokens"])
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(0)[:4].all()


def test_rows_are_the_same_under_64_bits():
    for name in ("even_pairs", "modular_arithmetic"):
        task = tasks.TASKS[name]
        draws = (
            lambda task=task: tasks.batch(task, jax.random.key(0), 4, 8, 8),
            lambda task=task: tasks.train_rows(task, 0, np.arange(4), 17),
            lambda task=task: task.digest,
        )
        for draw in draws:
            want = draw()
            with jax.enable_x64(True):
                jax.tree.map(np.testing.assert_array_equal, draw(), want)


@pytest.mark.parametrize(
    "name, low, high, words",
    [
        ("solve_equation", 2, 9, "lengths of solve_equation go from 3 to any"),
        ("variables", 4, 80, "lengths of variables go from 3 to 54"),
        ("copy", 5, 4, "low=5, high=4"),
        ("needles_queries", 9, 20, "lengths of needles_queries go from 10 to 53"),
        ("needles_values", 9, 57, "lengths of needles_values go from 9 to 56"),
        ("common_words", 8, 57, "lengths of common_words go from 9 to 56"),
        ("frequent_words", 8, 9, "lengths of frequent_words go from 9 to any"),
        ("facts", 3, 9, "lengths of facts go from 4 to any"),
        ("s5", 0, 9, "lengths of s5 go from 1 to any"),
    ],
)
def test_lengths_that_a_task_does_not_have_are_refused(name, low, high, words):
    with pytest.raises(ValueError, match=words):
        tasks.batch(tasks.TASKS[name], jax.random.key(0), 1, low, high)


def solve(name, row):
    """From the tokens of a decoder's row to the answer that it must hold, and its length."""
    row = [int(token) for token in row]
    assert row[0] == tasks.BOS and (tasks.SEP in row) != tasks.TASKS[name].continues
    end = (
        row.index(tasks.EOS) - lookup.DIGITS
        if tasks.TASKS[name].continues
        else row.index(tasks.SEP)
    )
    question = row[1:end]
    assert question and min(question) >= LETTERS
    answer = SOLVERS[name]([s - LETTERS for s in question])
    return [*(s + LETTERS for s in answer), tasks.EOS], len(question)


@pytest.mark.parametrize("name", ["copy", "stack_manipulation", "recall", "needles_continued"])
def test_a_decoder_reads_the_question_and_is_scored_on_the_answer_alone(name):
    task = tasks.TASKS[name]
    batch = next(data.train_iterator(task, None, length=40, batch=COUNT, seed=0))
    lengths = set()
    for tokens, weights, segments in zip(
        *(batch[key] for key in ("tokens", "weights", "segments")), strict=True
    ):
        answer, length = solve(name, tokens)
        lengths.add(length)
        before = length + (1 if task.continues else 2)
        used = before + len(answer)
        assert tokens[weights == 1].tolist() == answer
        assert np.flatnonzero(weights).tolist() == list(range(before, used))
        assert (segments == (np.arange(41) < used)).all() and not tokens[used:].any()
        assert tokens.max() < task.vocab
    longest = task.fitting(41)
    assert task.decoded(longest) <= 41 < task.decoded(longest + 1)
    assert longest - SHORTER.get(name, 0) - 1 <= max(lengths) <= longest


def test_what_a_decoder_predicts_is_its_next_token():
    whole, read = rows("copy", 4, 4), rows("copy", 4, 4, causal=True)
    for encoded, row in zip(whole["tokens"], read["tokens"], strict=True):
        assert row.tolist() == [tasks.BOS, *encoded[:4], tasks.SEP, *encoded[:4]]
    np.testing.assert_array_equal(read["tokens"][:, 1:], read["targets"][:, :-1])
    assert (read["targets"][:, -1] == tasks.EOS).all() and read["weights"].sum() == COUNT * 5


def test_rows_are_the_same_on_any_number_of_processes():
    task = tasks.TASKS["reverse"]
    whole = next(data.train_iterator(task, None, length=20, batch=6, seed=5))["tokens"]
    parts = [
        data.train_iterator(
            task, None, length=20, batch=6, seed=5, process_index=i, process_count=3
        )
        for i in range(3)
    ]
    assigned = np.stack([next(part)["tokens"] for part in parts], axis=1).reshape(6, 21)
    np.testing.assert_array_equal(whole, assigned)


def test_rows_differ_however_many_there_are():
    numbers = np.array([0, 1, 2**31, 2**32, 2**32 + 1])
    found = tasks.train_rows(tasks.TASKS["copy"], 0, numbers, 41)["tokens"]
    assert len({row.tobytes() for row in found}) == len(numbers)


def test_resumed_task_continues_exactly():
    make = lambda: data.train_iterator(  # noqa: E731
        tasks.TASKS["copy"], None, length=20, batch=2, seed=1
    )
    batches, resumed = make(), make()
    for _ in range(3):
        next(batches)
    resumed.set_state(batches.get_state())
    np.testing.assert_array_equal(next(batches)["tokens"], next(resumed)["tokens"])


def test_examples_have_the_length_asked_for_and_are_not_training_rows():
    name = "reverse"
    rows = tasks.examples(name, count=32, length=12, seed=0)
    assert {key: value.shape for key, value in rows.items()} == dict.fromkeys(rows, (32, 27))
    assert all(solve(name, row)[1] == 12 for row in rows["tokens"])
    assert (rows["weights"].sum(1) == 13).all() and (rows["segments"] == 1).all()
    again = tasks.examples(tasks.TASKS[name], count=32, length=12, seed=0)
    np.testing.assert_array_equal(rows["tokens"], again["tokens"])
    train = data.train_iterator(tasks.TASKS[name], None, length=26, batch=200, seed=0)
    seen = {row.tobytes() for row in next(train)["tokens"]}
    assert not seen & {row.tobytes() for row in rows["tokens"]}
    with pytest.raises(ValueError, match="length=0: pass at least 1"):
        tasks.examples(name, count=1, length=0, seed=0)


def test_an_answer_that_continues_the_question_has_no_separator_and_no_padding():
    rows = tasks.examples("needles_continued", count=4, length=12, seed=0)
    assert rows["tokens"].shape == (4, 1 + 12 + lookup.DIGITS + 1)  # BOS … EOS
    assert (rows["segments"] == 1).all() and not (rows["tokens"] == tasks.SEP).any()


def test_tasks_have_digests_of_their_own():
    copy, other = (data.load(f"synthetic:{name}").digest for name in ("copy", "reverse"))
    assert copy != other
    assert data.load("synthetic:copy").describe().startswith("synthetic:copy: generated")


@pytest.mark.parametrize("layout", ["encoder_row", "decoder_row"])
def test_a_digest_changes_with_either_layout(monkeypatch, layout):
    task = tasks.TASKS["copy"]
    before, row = task.digest, getattr(base, layout)
    assert task.digest == before
    monkeypatch.setattr(base, layout, lambda *given: (row(*given)[0] + 1, *row(*given)[1:]))
    assert task.digest != before


@pytest.mark.parametrize("name", ["facts", "frequent_words"])
def test_a_task_without_a_longest_question_is_solved_at_any_length(name):
    assert {*check_encoder(name, rows(name, 400, 400))} == {400}


@pytest.mark.parametrize(
    "name", ["needles_queries", "needles_values", "common_words", "frequent_words", "facts"]
)
def test_a_decoder_is_scored_on_what_was_asked_for_in_the_longest_questions(name):
    length = tasks.TASKS[name].longest or 60
    for row in tasks.examples(name, count=COUNT, length=length, seed=1)["tokens"]:
        answer, asked = solve(name, row)
        assert asked == length and row[length + 2 :].tolist() == answer


def test_two_needles_or_names_may_be_in_any_order_and_share_a_question_with_others():
    task = lookup.needles
    draw = jax.vmap(lambda key: task(key, 40, 40, queries=2, values=3))
    drawn = draw(jax.random.split(jax.random.key(0), COUNT))
    for row, answer in zip(drawn.question, drawn.answer, strict=True):
        assert needles(row.tolist(), queries=2, values=3) == answer.tolist()
    asked = rows("needles_queries", 30, 30)["tokens"][:, 28:30].tolist()
    places = [
        [row.index(name) for name in names]
        for row, names in zip(
            rows("needles_queries", 30, 30)["tokens"].tolist(), asked, strict=True
        )
    ]
    assert 0.2 < np.mean([first < second for first, second in places]) < 0.8


def test_facts_lie_anywhere_however_long_the_question_and_people_move():
    moved, depths = [], []
    for row in rows("facts", 100, 100)["tokens"]:
        *text, asked = (row[:100] - LETTERS).tolist()
        facts = told(text)
        moved.append(dict(facts)[asked] != dict(reversed(facts))[asked])
        depths += [place / 99 for place, symbol in enumerate(text) if symbol < 4]
    assert 0.2 < np.mean(moved) < 0.8  # the first fact about a person is not enough
    assert (np.histogram(depths, 5, (0, 1))[0] > 0.1 * len(depths)).all()


@pytest.mark.parametrize(
    "even, orders",
    [(True, {1: 1, 2: 15, 3: 20, 5: 24}), (False, {1: 1, 2: 25, 3: 20, 4: 30, 5: 24, 6: 20})],
)
def test_a_table_is_the_group(even, orders):
    table, known = groups.multiplication_table(5, even), A5 if even else S5
    count = len(known)
    every = np.arange(count)
    assert [*map(tuple, groups.elements(5, even).tolist())] == known
    assert table.shape == (count, count) and table.dtype == np.int32
    for a, b in itertools.product(range(count), repeat=2):
        assert known[table[a, b]] == tuple(known[a][x] for x in known[b])
    assert (table[0] == every).all() and (table[:, 0] == every).all()  # the identity
    for axis in (0, 1):  # every equation a·x = b and x·a = b has one solution
        assert (np.sort(table, axis) == np.moveaxis(np.tile(every, (count, 1)), 0, 1 - axis)).all()
    assert (table[table] == table[:, table]).all()  # (a·b)·c and a·(b·c)
    found = collections.Counter(math.lcm(*cycles(element)) for element in known)
    powers = collections.Counter()
    for a in range(count):
        power, order = a, 1
        while power:
            power, order = table[power, a], order + 1
        powers[order] += 1
    assert powers == found == orders


def test_commutators_of_both_groups_are_a5_which_is_not_solvable():
    for even, permutations in ((True, A5), (False, S5)):
        table = groups.multiplication_table(5, even)
        inverse = np.argmin(table, axis=1)  # where a product is the identity, 0
        products = table[table, table[np.ix_(inverse, inverse)]]  # a·b·a⁻¹·b⁻¹
        assert {permutations[c] for c in products.flat} == {*A5}


@pytest.mark.parametrize("name", ["a5", "s5", "mqar"])
def test_what_is_answered_in_place_is_the_same_for_decoders_and_has_no_next_tokens(name):
    task = tasks.TASKS[name]
    low = task.shortest
    jax.tree.map(np.testing.assert_array_equal, rows(name, low, 9), rows(name, low, 9, causal=True))
    assert task.read(9, causal=True) == task.read(9, causal=False) == 9
    words = f"synthetic:{name} is answered at the question's places"
    with pytest.raises(ValueError, match=words):
        tasks.examples(name, count=1, length=9, seed=0)
    with pytest.raises(ValueError, match=words):
        data.train_iterator(data.load(task.name), None, length=9, batch=1, seed=0)
