"""A solver of each task in plain Python, from the tokens of the question alone."""

import collections
import functools
import itertools
import math
import operator

from pe_jax.training import tasks

LETTERS = len(tasks.SPECIAL)
SIGNS = "+-*()x="  # behind five digits


def spell(question):
    """An expression as text."""
    return "".join(str(s) if s < 5 else SIGNS[s - 5] for s in question)


def number(bits):
    """The number that bits say, the lowest first."""
    return sum(bit * 2**place for place, bit in enumerate(bits))


def two_numbers(question, combine):
    sign = question.index(2)
    parts = question[:sign], question[sign + 1 :]
    assert all(any(part) and max(part) < 2 for part in parts)
    return [int(bit) for bit in reversed(f"{combine(*map(number, parts)):b}")]


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


def mqar(question):
    """None where no value is asked for."""
    values = recall_all(question)
    return [None] * (2 * len(values)) + values


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


def back(question):
    return question[::-1]


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
    "binary_addition": lambda q: two_numbers(q, operator.add),
    "binary_multiplication": lambda q: two_numbers(q, operator.mul),
    "compute_sqrt": lambda q: [
        int(bit) for bit in f"{math.isqrt(number(q[::-1])):0{(len(q) + 1) // 2}b}"
    ],
    "bucket_sort": sorted,
    "copy": list,
    "reverse": back,
    "recall": recall,
    "passkey": passkey,
    "recall_all": recall_all,
    "mqar": mqar,
    "needles": needles,
    "variables": variables,
    "needles_continued": needles,
    "variables_continued": variables,
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
    **dict.fromkeys(("modular_arithmetic", "missing_duplicate", "recall"), 1),
    **dict.fromkeys(("variables", "flip_flop", "variables_continued"), 1),
    **dict.fromkeys(("recall_all", "mqar"), 2),
}
