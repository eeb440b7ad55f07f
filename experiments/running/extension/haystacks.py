"""Texts of any length with something to find in them, and questions about it.

The kinds are those of RULER (Hsieh et al., arXiv 2404.06654, §3), in the model's own tokens; texts
are ours. One text holds what several questions ask for, at depths spread over its length, so that
it is read once. RULER's has one question, and a single key where there is noise. Where the answer
is a list in any order, RULER counts what of it is written; here some of it is given, and one more
is asked for.

| text | test | what is asked |
|---|---|---|
| noise | needles in noise | the number of a key, stated once in sentences that repeat |
| noise | variables | one more of the four variables of a chain: A = 12345, B = A, … |
| text | needles in text | the number of a key, stated once in the document |
| text | several values | one more of the four numbers of a key |
| keys | needle among needles | the number of a key; the whole text is such numbers |
| common | common words | one more of the ten words that a list has ten times as often as others |
| frequent | frequent words | one more of the three most frequent made-up words (Zipf, exponent 2) |
| facts | one, two, three facts | as in bAbI, with facts scattered in the document (`worlds`) |
"""

import re
import string
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.running.extension import worlds
from experiments.running.extension.documents import Document, encode
from pe_jax.validation import ConfigError

NOISE = (
    "The river runs down to the sea. The road goes over the hill. Clouds come, and it rains. "
    "Then the sun is back, and the grass is dry. "
)
SENTENCE_ENDS = (".", "!", "?", '."', '!"', '?"', ".”", "!”", "?”")
VALUES, CHAIN = 4, 4  # of a key; variables of a chain
COMMON, TIMES, RARE = 10, 30, 3  # common words; how often they and the others are in a list
FREQUENT, EXPONENT, ZETA = 3, 2, np.pi**2 / 6


class Question(NamedTuple):
    """A question after a text, and its answer.

    `prompt` has the beginning of the answer too; `others` are right as well.
    """

    test: str
    prompt: str
    answer: str
    others: tuple[str, ...] = ()


class Haystack(NamedTuple):
    """A text, int32 [T], and questions about it."""

    ids: np.ndarray
    questions: list[Question]


class Maker:
    """Makes the texts of one document: the same for every method.

    `words` are drawn from; `longest` is the longest context, in tokens; `samples` are questions of
    a kind.
    """

    def __init__(
        self,
        document: Document,
        words: Sequence[str],
        tokenizer: Any,
        longest: int,
        samples: int,
        seed: int,
    ):
        self.document, self.words, self.tokenizer = document, words, tokenizer
        self.longest, self.samples, self.seed = longest, samples, seed

    def make(self, task: str, size: int) -> Haystack:
        """A text of a kind, of `size` tokens.

        Raises:
          ConfigError: what is hidden takes more tokens, or there are too few words.
        """
        numbers = self.seed, self.document.number, size, zlib.crc32(task.encode())
        return TASKS[task].make(self, size, np.random.default_rng(numbers))

    def shuffled(self, rng: np.random.Generator, count: int) -> list[str]:
        """All words, in random order: at least `count`."""
        if count > len(self.words):
            fix = "more are needed for so long a text; use more text, or other tasks"
            raise ConfigError(f"data: it has {len(self.words):,} different words; {fix}")
        return rng.permutation(np.array(self.words)).tolist()

    def planted(
        self, opening: str, statements: list[str], depths: list[float], filler: str, size: int
    ) -> np.ndarray:
        """A text with statements at depths, 0 to 1, each between two sentences of the filler.

        It begins with `opening` and has `size` tokens; the filler is "noise" or "text".
        """
        pieces = [encode(self.tokenizer, f" {statement}") for statement in statements]
        start = np.concatenate([self.document.start, encode(self.tokenizer, opening)])
        count = size - len(start) - sum(map(len, pieces))
        if count < 0:
            fix = f"what is hidden takes {size - count:,} tokens; leave such lengths or tasks out"
            raise ConfigError(f"lengths: {size:,} tokens of text: {fix}")
        noise = filler == "noise"
        text = self._noise(count) if noise else self.document.tokens(count, self.longest)
        ends = self._sentence_ends(text)
        placed = []
        for depth, piece in zip(depths, pieces, strict=True):
            nearest = np.searchsorted(ends, depth * count)
            placed.append((ends[min(nearest, len(ends) - 1)], piece))
        placed.sort(key=lambda pair: pair[0])
        parts, begin = [start], 0
        for at, piece in placed:
            parts += [text[begin:at], piece]
            begin = at
        return np.concatenate([*parts, text[begin:]])

    def _noise(self, count: int) -> np.ndarray:
        sentences = encode(self.tokenizer, NOISE)
        return np.tile(sentences, count // len(sentences) + 1)[:count]

    def _sentence_ends(self, text: np.ndarray) -> np.ndarray:
        """Indices after tokens that end a sentence, ascending; without any, that of the end."""
        kinds = np.unique(text)
        ends = [self.tokenizer.decode([int(n)]).rstrip(" ").endswith(SENTENCE_ENDS) for n in kinds]
        found = np.flatnonzero(np.isin(text, kinds[np.array(ends, bool)])) + 1
        return found if len(found) else np.array([len(text)])

    def listed(self, opening: str, entries: Iterable[str], size: int) -> np.ndarray:
        """A list of entries, separated by commas, cut or filled up with noise at its beginning."""
        start = np.concatenate([self.document.start, encode(self.tokenizer, opening)])
        text, count = encode(self.tokenizer, " " + ", ".join(entries) + "."), size - len(start)
        filled = np.concatenate([self._noise(max(count - len(text), 0)), text])
        return np.concatenate([start, filled[len(filled) - count :]])


def vocabulary(texts: Iterable[str]) -> list[str]:
    """Lower-case words of four to nine letters that texts have at least twice, sorted."""
    counts = Counter(word for text in texts for word in re.findall(r"\b[a-z]{4,9}\b", text))
    return sorted(word for word, count in counts.items() if count > 1)


def spread(rng: np.random.Generator, count: int) -> list[float]:
    """Depths, one in each of `count` equal parts of a text, in order."""
    return ((np.arange(count) + rng.random(count)) / count).tolist()


def _number(rng: np.random.Generator, digits: int) -> str:
    return str(rng.integers(10 ** (digits - 1), 10**digits))


def _one_more(rng: np.random.Generator, test: str, begun: str, words: Sequence[str]) -> Question:
    """The question for one more of a few words, after some of them that are given."""
    given = rng.permutation(np.array(words))[: rng.integers(len(words))].tolist()
    answer, *others = (f" {word}" for word in words if word not in given)
    return Question(test, begun + "".join(f" {word}," for word in given), answer, tuple(others))


def _needles(maker: Maker, rng: np.random.Generator, test: str) -> tuple[list[str], list[Question]]:
    statements, questions = [], []
    for key in maker.shuffled(rng, maker.samples)[: maker.samples]:
        value = _number(rng, 7)
        statements.append(f"The secret number for {key} is {value}.")
        questions.append(_secret(test, key, value))
    return statements, questions


def with_answers(maker: Maker, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Needles in the document, and after it the question and the answer of each.

    Returns:
      A row int32 [size], and which of its targets belong to answers: bool [size - 1].

    Raises:
      ConfigError: they take more tokens, or there are too few words.
    """
    rng = np.random.default_rng((maker.seed, maker.document.number, size))
    statements, questions = _needles(maker, rng, "needles in text")
    parts = [encode(maker.tokenizer, x) for q in questions for x in (q.prompt, q.answer)]
    asked = np.concatenate(parts)
    opening = "Some secret numbers are in this text. Remember them.\n\n"
    depths = spread(rng, len(statements))
    text = maker.planted(opening, statements, depths, "text", size - len(asked))
    in_answer = [np.zeros(len(text) - 1, bool)]
    in_answer += [np.full(len(part), n % 2 == 1) for n, part in enumerate(parts)]
    return np.concatenate([text, asked]), np.concatenate(in_answer)


def _secret(test: str, key: str, value: str) -> Question:
    prompt = f"\n\nQuestion: What is the secret number for {key}?\nAnswer:"
    return Question(test, f"{prompt} The secret number for {key} is", f" {value}")


def _noise(maker: Maker, size: int, rng: np.random.Generator) -> Haystack:
    statements, questions = _needles(maker, rng, "needles in noise")
    depths = spread(rng, len(statements))
    letters = list(string.ascii_uppercase)
    names = {"".join(rng.choice(letters, 3)) for _ in range(4 * CHAIN * maker.samples)}
    free = rng.permutation(sorted(names)).tolist()
    for _ in range(maker.samples):
        chain, value = [free.pop() for _ in range(CHAIN)], _number(rng, 5)
        sources = [value, *chain[:-1]]
        statements += [f"Let {a} = {b}." for a, b in zip(chain, sources, strict=True)]
        depths += spread(rng, CHAIN)
        begun = f"\n\nQuestion: Which variables are {value}?\nAnswer: The variables are"
        questions.append(_one_more(rng, "variables", begun, chain))
    opening = "Some secret numbers and variables are in this text. Remember them.\n\n"
    return Haystack(maker.planted(opening, statements, depths, "noise", size), questions)


def _text(maker: Maker, size: int, rng: np.random.Generator) -> Haystack:
    statements, questions = _needles(maker, rng, "needles in text")
    depths = spread(rng, len(statements))
    for key in maker.shuffled(rng, maker.samples)[: maker.samples]:
        values = [_number(rng, 5) for _ in range(VALUES)]
        statements += [f"One of the lucky numbers for {key} is {value}." for value in values]
        depths += spread(rng, VALUES)
        begun = f"\n\nQuestion: What are the {VALUES} lucky numbers for {key}?\nAnswer:"
        begun += f" The lucky numbers for {key} are"
        questions.append(_one_more(rng, "several values", begun, values))
    opening = "Some secret and lucky numbers are in this text. Remember them.\n\n"
    return Haystack(maker.planted(opening, statements, depths, "text", size), questions)


def _keys(maker: Maker, size: int, rng: np.random.Generator) -> Haystack:
    opening, tokens, known = "Remember these secret numbers.\n\n", 0, []
    room = size - len(maker.document.start) - len(encode(maker.tokenizer, opening))
    for key in maker.shuffled(rng, 1):
        value = _number(rng, 7)
        statement = f"The secret number for {key} is {value}."
        tokens += len(encode(maker.tokenizer, f" {statement}"))
        if tokens > room:
            break
        known.append((statement, key, value))
    maker.shuffled(rng, len(known) + 1)  # not all are taken
    if len(known) < maker.samples:
        raise ConfigError(f"lengths: {size:,} tokens have room for {len(known)} needles")
    places = (np.array(spread(rng, maker.samples)) * len(known)).astype(int)
    questions = [_secret("needle among needles", *known[place][1:]) for place in places]
    statements = [statement for statement, _, _ in known]
    return Haystack(
        maker.planted(opening, statements, [1.0] * len(known), "noise", size), questions
    )


def _common(maker: Maker, size: int, rng: np.random.Generator) -> Haystack:
    times = max(2, min(TIMES, size // (4 * COMMON)))  # a word and its comma: two tokens or more
    rare = max(1, times * RARE // TIMES)
    words = maker.shuffled(rng, COMMON + 1)
    always = words[:COMMON] * times
    room = size - len(encode(maker.tokenizer, " " + ", ".join(always)))
    lengths = [rare * len(encode(maker.tokenizer, f" {word},")) for word in words[COMMON:]]
    count = max(0, int(np.searchsorted(np.cumsum(lengths), room)))
    maker.shuffled(rng, COMMON + count + 1)  # not all are taken
    text = rng.permutation(np.array(always + words[COMMON : COMMON + count] * rare)).tolist()
    ids = maker.listed("Words:", text, size)
    question = "\n\nQuestion: Which words are most common in the list?\nAnswer: The words"
    return Haystack(ids, _some_of(maker, rng, "common words", question, words[:COMMON]))


def _some_of(
    maker: Maker, rng: np.random.Generator, test: str, question: str, words: list[str]
) -> list[Question]:
    """Different questions for one more of these words."""
    drawn = [_one_more(rng, test, f"{question} are", words) for _ in range(20 * maker.samples)]
    return [*{question.prompt: question for question in drawn}.values()][: maker.samples]


def _frequent(maker: Maker, size: int, rng: np.random.Generator) -> Haystack:
    letters = list(string.ascii_lowercase)
    made = [*dict.fromkeys("".join(rng.choice(letters, 6)) for _ in range(500))]
    lengths = np.array([len(encode(maker.tokenizer, f" {word},")) for word in made])
    entries = size / (lengths / np.arange(1, len(made) + 1) ** EXPONENT / ZETA).sum()
    counts = np.round(entries / ZETA / np.arange(1, len(made) + 1) ** EXPONENT).astype(int)
    text = rng.permutation(np.repeat(made, counts)).tolist()
    question = f"\n\nQuestion: Which {FREQUENT} words are most frequent?\nAnswer: The words"
    ids = maker.listed("Words:", text, size)
    return Haystack(ids, _some_of(maker, rng, "frequent words", question, made[:FREQUENT]))


def _facts(maker: Maker, size: int, rng: np.random.Generator) -> Haystack:
    world = worlds.World(rng, maker.document.text)
    questions = [
        Question(test, f"\n\nQuestion: {asked}\nAnswer: {begun}", f" {place}")
        for test, of_test in world.questions(rng).items()
        for asked, begun, place in of_test[: maker.samples]
    ]
    opening = f"{', '.join(world.people)} are hidden in this text.\n\n"
    depths = spread(rng, len(world.facts))
    return Haystack(maker.planted(opening, world.facts, depths, "text", size), questions)


class Task(NamedTuple):
    """A kind of text.

    `tests` are what is asked about it.
    """

    tests: tuple[str, ...]
    make: Callable[[Maker, int, np.random.Generator], Haystack]


TASKS = {
    "noise": Task(("needles in noise", "variables"), _noise),
    "text": Task(("needles in text", "several values"), _text),
    "keys": Task(("needle among needles",), _keys),
    "common": Task(("common words",), _common),
    "frequent": Task(("frequent words",), _frequent),
    "facts": Task(worlds.TESTS, _facts),
}
