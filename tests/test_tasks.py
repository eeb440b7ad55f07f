"""Every task against a solver of its own, in plain Python, from the tokens alone."""

import collections
import functools
import math

import jax
import numpy as np
import pytest

from pe_jax.training import data, tasks
from pe_jax.training.tasks import base

LETTERS = len(tasks.SPECIAL)
COUNT = 48
SIGNS = "+-*()x="  # behind five digits


def spell(question):
    """An expression as text."""
    return "".join(str(s) if s < 5 else SIGNS[s - 5] for s in question)


def number(digits, base, lowest_first):
    """The number that digits say."""
    digits = digits if lowest_first else digits[::-1]
    return sum(digit * base**place for place, digit in enumerate(digits))


def written(value, base, lowest_first):
    """The digits of a number, without zeros in front."""
    digits = [value % base]
    while value := value // base:
        digits.append(value % base)
    return digits if lowest_first else digits[::-1]


def two_numbers(question, base, lowest_first, combine):
    sign = question.index(base)
    parts = question[:sign], question[sign + 1 :]
    assert all(part and any(part) and max(part) < base for part in parts)
    if not lowest_first:
        assert all(part[0] > 0 for part in parts)
    value = combine(*(number(part, base, lowest_first) for part in parts))
    return written(value, base, lowest_first)


def stack(question):
    found = []
    for symbol in question:
        if symbol == 2:
            found = found[:-1]
        else:
            found.append({0: 0, 1: 1, 3: 0, 4: 1}[symbol])
    return found[::-1]


def equation(question):
    text = spell(question)
    left, right = text.split("=")
    assert text.count("x") == 1 and right in "01234"
    fits = [d for d in range(5) if eval(left.replace("x", str(d))) % 5 == int(right)]
    assert len(fits) == 1
    return fits


def missing(question):
    half = len(question) // 2
    hole = question.index(2)
    rest = [s for place, s in enumerate(question) if place % half != hole % half]
    assert rest[: half - 1] == rest[half - 1 :]
    return [question[(hole + half) % (2 * half)]]


def polynomial(question):
    x, terms = question[0] - 2, question[1:]
    assert abs(x) <= 2
    pairs = [(c - 8, d - 12) for c, d in zip(terms[::2], terms[1::2], strict=True)]
    assert all(abs(c) <= 3 and 0 <= d <= 3 for c, d in pairs)
    return [16 + sum(c * x**d for c, d in pairs) % 10]


def lego(question):
    *clauses, asked = question
    values = {26: 1}
    for name, sign, before in zip(clauses[::3], clauses[1::3], clauses[2::3], strict=True):
        assert name not in values
        values[name] = values[before] * {27: 1, 28: -1}[sign]
    count = len(clauses) // 3
    assert list(values).index(asked) > min((count + 1) // 2, count - 1)  # the first is ONE
    return [{1: 27, -1: 28}[values[asked]]]


def recall(question):
    keys, values = question[:-1:2], question[1::2]
    known = dict(zip(keys, values, strict=True))
    assert max(keys) < 16 <= min(values)
    assert all(known[k] == v for k, v in zip(keys, values, strict=True))
    return [known[question[-1]]]


def passkey(question):
    mark = question.index(10)
    assert question.count(10) == 1
    return question[mark + 1 : mark + 5]


def recall_all(question):
    """The first two thirds are pairs."""
    pairs = len(question) // 3
    known = dict(zip(question[: 2 * pairs : 2], question[1 : 2 * pairs : 2], strict=True))
    asked = question[2 * pairs :]
    assert len(known) == pairs and max(known) < 16 and {*asked} == {*known}
    return [known[key] for key in asked]


def selective_copying(question):
    assert len(question) - question.count(10) == 4
    return [symbol for symbol in question if symbol != 10]


def needles(question):
    *text, asked = question
    names = [symbol for symbol in text if symbol >= 10]
    assert len({*names}) == len(names) == (len(question) - 1) // 4
    place = text.index(asked)
    assert max(text[place + 1 : place + 3]) < 10
    return text[place + 1 : place + 3]


def variables(question):
    *text, asked = question
    values = {}
    for name, source in zip(text[::2], text[1::2], strict=True):
        assert name >= 10 and name not in values
        values[name] = source if source < 10 else values[source]
    return [values[asked]]


def permutations(question):
    objects = list(range(5))
    for move in question:
        if move == 4:
            objects.insert(0, objects.pop())
        else:
            objects[move], objects[move + 1] = objects[move + 1], objects[move]
    return objects


def flip_flop(question):
    *text, last = question
    written = None
    assert last == 4 and text[0] == 2
    for act, bit in zip(text[::2], text[1::2], strict=True):
        written = bit if act == 2 else written
        assert act in (2, 3) or (act == 4 and bit == written)
    return [written]


def index_place(question):
    *letters, shift = question
    assert len({*letters}) == len(letters) and max(letters) < 39 and -5 <= shift - 44 < 0
    return [letters[shift - 44]]


def index_content(question):
    *letters, name = question
    found = {letter for letter in letters if letter // 4 == name - 40}
    assert max(letters) < 40 <= name and len({s // 4 for s in letters}) == len({*letters})
    return [*found]


def index_both(question):
    *letters, source, shift = question
    place = letters.index(source) + shift - 44
    assert len({*letters}) == len(letters) and max(letters) < 39 and abs(shift - 44) <= 5
    assert place >= 0  # else Python would count from the end
    return [letters[place]]


def expression(question):
    return [eval(spell(question)) % 5]


def twice(question, first, second):
    return [*first(question), 16, *second(question)]


def back(question):
    return question[::-1]


def alike(question, times):
    assert len({*question}) == 1
    return question * times


SOLVERS = {
    "even_pairs": lambda q: [sum(a != b for a, b in zip(q, q[1:], strict=False)) % 2],
    "modular_arithmetic": expression,
    "parity_check": lambda q: [q.count(1) % 2],
    "cycle_navigation": lambda q: [(q.count(1) - q.count(2)) % 5],
    "stack_manipulation": stack,
    "reverse_string": back,
    "modular_arithmetic_brackets": expression,
    "solve_equation": equation,
    "duplicate_string": lambda q: q + q,
    "missing_duplicate": missing,
    "odds_first": lambda q: q[::2] + q[1::2],
    "binary_addition": lambda q: two_numbers(q, 2, True, lambda a, b: a + b),
    "binary_multiplication": lambda q: two_numbers(q, 2, True, lambda a, b: a * b),
    "compute_sqrt": lambda q: [
        int(bit) for bit in f"{math.isqrt(number(q, 2, False)):0{(len(q) + 1) // 2}b}"
    ],
    "bucket_sort": sorted,
    "copy": list,
    "copy_twice": lambda q: twice(q, list, list),
    "repeat": lambda q: alike(q, 1),
    "repeat_twice": lambda q: alike(q, 2),
    "reverse": back,
    "reverse_twice": lambda q: twice(q, back, back),
    "reverse_copy": lambda q: twice(q, back, list),
    "sort": sorted,
    "addition": lambda q: two_numbers(q, 10, False, lambda a, b: a + b),
    "summation": lambda q: [sum(q) % 10],
    "polynomial": polynomial,
    "lego": lego,
    "recall": recall,
    "passkey": passkey,
    "recall_all": recall_all,
    "needles": needles,
    "variables": variables,
    "selective_copying": selective_copying,
    "permutations": permutations,
    "flip_flop": flip_flop,
    "index_place": index_place,
    "index_content": index_content,
    "index_both": index_both,
}
SHORTER = {  # how many symbols a question may have less than was asked for
    **dict.fromkeys(("modular_arithmetic", "missing_duplicate", "polynomial", "recall"), 1),
    **dict.fromkeys(("variables", "flip_flop"), 1),
    **dict.fromkeys(("lego", "recall_all"), 2),
}
# Tasks of one answer whose classes are equally likely, whatever the length
BALANCED = (
    *("parity_check", "summation", "solve_equation", "missing_duplicate", "recall", "lego"),
    *("cycle_navigation", "even_pairs", "index_place", "index_content", "index_both"),
    *("variables", "flip_flop"),
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
        asked = tokens.index(tasks.SEP)
        answer = [s + LETTERS for s in SOLVERS[name]([s - LETTERS for s in tokens[:asked]])]
        answer += [tasks.EOS] * task.stops
        slots = task.slots(asked)
        rest = len(tokens) - asked - slots
        assert len(answer) <= slots and rest >= 0
        assert tokens[asked:] == [tasks.SEP] * slots + [tasks.PAD] * rest
        assert segments == [1] * (asked + slots) + [0] * rest
        scored = slice(asked, asked + len(answer))
        assert targets[scored] == answer and weights[scored] == [1.0] * len(answer)
        assert sum(weights) == len(answer)
        assert LETTERS <= min(tokens[:asked]) and max(tokens + answer) < task.vocab <= tasks.VOCAB
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


@pytest.mark.parametrize(
    "name, low, high, words",
    [
        ("solve_equation", 2, 9, "lengths of solve_equation go from 3 to any"),
        ("lego", 4, 80, "lengths of lego go from 4 to 79"),
        ("copy", 5, 4, "low=5, high=4"),
    ],
)
def test_lengths_that_a_task_does_not_have_are_refused(name, low, high, words):
    with pytest.raises(ValueError, match=words):
        tasks.batch(tasks.TASKS[name], jax.random.key(0), 1, low, high)


def solve(name, row):
    """From the tokens of a decoder's row to the answer that it must hold, and its length."""
    row = [int(token) for token in row]
    assert row[0] == tasks.BOS
    question = row[1 : row.index(tasks.SEP)]
    assert question and min(question) >= LETTERS
    answer = SOLVERS[name]([s - LETTERS for s in question])
    return [*(s + LETTERS for s in answer), tasks.EOS], len(question)


@pytest.mark.parametrize("name", ["copy", "stack_manipulation", "recall"])
def test_a_decoder_reads_the_question_and_is_scored_on_the_answer_alone(name):
    task = tasks.TASKS[name]
    batch = next(data.train_iterator(task, None, length=40, batch=COUNT, seed=0))
    lengths = set()
    for tokens, weights, segments in zip(
        *(batch[key] for key in ("tokens", "weights", "segments")), strict=True
    ):
        answer, length = solve(name, tokens)
        lengths.add(length)
        used = length + len(answer) + 2
        assert tokens[weights == 1].tolist() == answer
        assert np.flatnonzero(weights).tolist() == list(range(length + 2, used))
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
