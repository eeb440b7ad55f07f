"""Every task against a solver of its own, in plain Python, from the tokens alone."""

import collections
import functools
import itertools
import math

import jax
import numpy as np
import pytest

from pe_jax.training import data, tasks
from pe_jax.training.tasks import base, groups, lookup

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


def needles(question, queries=1, values=1):
    text, asked = question[:-queries], question[-queries:]
    names = collections.Counter(symbol for symbol in text if symbol >= 10)
    assert {*names.values()} == {values} and len({*asked}) == queries
    assert len(names) == len(text) // 4 // values
    places = [place for name in asked for place, symbol in enumerate(text) if symbol == name]
    found = [text[place + after] for place in places for after in (1, 2)]
    assert max(found) < 10
    return found


def told(text):
    """(person, place) of every fact, in order; between them there are only fillers."""
    found, rest = [], [*text]
    while rest:
        if rest[0] < 14:
            person, verb, place, *rest = rest
            assert 0 <= person < 4 <= verb < 8 <= place < 14
            found.append((person, place))
        else:
            assert rest.pop(0) < 46
    assert 1 <= len(found) <= 10
    return found


def common_words(question):
    counts = collections.Counter(question)
    assert {*counts.values()} <= {1, 3}
    return sorted(word for word in counts if counts[word] == 3)


def frequent_words(question):
    counts = collections.Counter(question).most_common()
    assert max(question) < 20
    assert [*sorted({count for _, count in counts[:3]}, reverse=True)] == [c for _, c in counts[:3]]
    assert all(2 * count <= counts[2][1] for _, count in counts[3:])
    return [word for word, _ in counts[:3]]


def cycles(permutation):
    """The lengths of the cycles."""
    rest, lengths = {*permutation}, []
    while rest:
        start = here = min(rest)
        before = len(rest)
        while here in rest:
            rest.remove(here)
            here = permutation[here]
        assert here == start
        lengths.append(before - len(rest))
    return sorted(lengths)


def is_even(permutation):
    return sum(length - 1 for length in cycles(permutation)) % 2 == 0


S5 = sorted(itertools.permutations(range(5)))
A5 = [permutation for permutation in S5 if is_even(permutation)]


def composed(permutations, question):
    """The products of the first one, the first two and so on; the last element acts first."""
    found = []
    for count in range(1, len(question) + 1):
        image = range(5)
        for element in reversed(question[:count]):
            image = [permutations[element][x] for x in image]
        found.append(permutations.index(tuple(image)))
    return found


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
    "needles_queries": functools.partial(needles, queries=2),
    "needles_values": functools.partial(needles, values=2),
    "facts": lambda q: [dict(told(q[:-1]))[q[-1]]],  # a later fact replaces an earlier one
    "common_words": common_words,
    "frequent_words": frequent_words,
    "permutations": permutations,
    "a5": functools.partial(composed, A5),
    "s5": functools.partial(composed, S5),
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
        answer = [s + LETTERS for s in SOLVERS[name]([s - LETTERS for s in tokens[:asked]])]
        answer += [tasks.EOS] * task.stops
        slots = task.slots(asked)
        rest = len(tokens) - asked - slots
        assert len(answer) <= (asked if task.in_place else slots) and rest >= 0
        assert tokens[asked:] == [tasks.SEP] * slots + [tasks.PAD] * rest
        assert segments == [1] * (asked + slots) + [0] * rest
        first = 0 if task.in_place else asked
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


@pytest.mark.parametrize(
    "name, low, high, words",
    [
        ("solve_equation", 2, 9, "lengths of solve_equation go from 3 to any"),
        ("lego", 4, 80, "lengths of lego go from 4 to 79"),
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
    for row, answer in zip(*draw(jax.random.split(jax.random.key(0), COUNT))[::2], strict=True):
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
    [
        (True, {1: 1, 2: 15, 3: 20, 5: 24}),
        (False, {1: 1, 2: 25, 3: 20, 4: 30, 5: 24, 6: 20}),
    ],
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


@pytest.mark.parametrize("name", ["a5", "s5"])
def test_what_is_answered_in_place_is_the_same_for_decoders_and_has_no_next_tokens(name):
    task = tasks.TASKS[name]
    jax.tree.map(np.testing.assert_array_equal, rows(name, 1, 9), rows(name, 1, 9, causal=True))
    assert task.read(9, causal=True) == task.read(9, causal=False) == 9
    words = f"synthetic:{name} is answered at the question's places"
    with pytest.raises(ValueError, match=words):
        tasks.examples(name, count=1, length=9, seed=0)
    with pytest.raises(ValueError, match=words):
        data.train_iterator(data.load(task.name), None, length=9, batch=1, seed=0)
