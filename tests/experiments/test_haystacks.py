"""Texts with something to find: a reader of the text can answer, and where it says it is."""

import re
from collections import Counter

import numpy as np
import pytest

from experiments.running.extension import haystacks, worlds
from experiments.running.extension.documents import Document, encode
from pe_jax.validation import ConfigError
from tests.experiments import tiny_released

SIZE, SAMPLES = 1500, 4


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_released.tokenizer()


@pytest.fixture(scope="module")
def maker(tokenizer) -> haystacks.Maker:
    return make(tokenizer)


def make(tokenizer, number: int = 0, **fields) -> haystacks.Maker:
    text = tiny_released.text(number, 3600).decode()
    start = np.zeros(1, np.int32)
    document = Document(number, "ann", text, encode(tokenizer, text), start)
    words = haystacks.vocabulary([text])
    given = {"words": words, "tokenizer": tokenizer, "longest": 2000, "samples": SAMPLES, "seed": 0}
    return haystacks.Maker(document, **given | fields)


def needle(text: str, question: haystacks.Question) -> list[str]:
    (key,) = re.findall(r"secret number for (\w+)\?", question.prompt)
    return re.findall(rf"The secret number for {key} is (\d+)\.", text)


def values(text: str, question: haystacks.Question) -> list[str]:
    (key,) = re.findall(r"lucky numbers for (\w+)\?", question.prompt)
    return re.findall(rf"One of the lucky numbers for {key} is (\d+)\.", text)


def given(question: haystacks.Question) -> list[str]:
    """What the beginning of the answer has already."""
    (begun,) = re.findall(r" are((?: \w+,)*)$", question.prompt)
    return re.findall(r"\w+", begun)


def chain(text: str, question: haystacks.Question) -> list[str]:
    (wanted,) = re.findall(r"variables are (\w+)\?", question.prompt)
    known, found = {}, []
    for name, source in re.findall(r"Let (\w+) = (\w+)\.", text):
        known[name] = known.get(source, source)
        found += [name] * (known[name] == wanted)
    return found


def most_common(text: str, question: haystacks.Question, count: int) -> list[str]:
    """The most common words of the list."""
    counted = Counter(re.findall(r"[a-z]+(?=[,.])", text.partition("Words:")[2]))
    ranked = counted.most_common(count + 1)
    assert ranked[-2][1] > ranked[-1][1]
    return [word for word, _ in ranked[:count]]


def place(text: str, question: haystacks.Question) -> list[str]:
    """What happened to a person or thing, from its facts alone."""
    places, carried = {}, {}
    histories: dict[str, list[str]] = {thing: [] for thing in worlds.OBJECTS}
    for fact in re.findall(r"(\w+) (went to|picked up|put down) the (\w+)\.", text):
        person, act, what = fact
        if act == "went to":
            places[person] = what
            for thing in [t for t, owner in carried.items() if owner == person]:
                histories[thing].append(what)
        elif act == "picked up":
            assert what not in carried and histories[what][-1:] in ([], [places[person]])
            carried[what] = person
            histories[what] = histories[what] or [places[person]]
        else:
            assert carried.pop(what) == person
    if before := re.findall(r"Where was the (\w+) before the (\w+)\?", question.prompt):
        ((thing, last),) = before
        assert histories[thing].count(last) == 1
        return [histories[thing][histories[thing].index(last) - 1]]
    (asked,) = re.findall(r"Where is (?:the )?(\w+)\?", question.prompt)
    return [places[asked] if asked in places else histories[asked][-1]]


SOLVERS = {
    "needles in noise": needle,
    "variables": chain,
    "needles in text": needle,
    "several values": values,
    "needle among needles": needle,
    "common words": lambda text, question: most_common(text, question, haystacks.COMMON),
    "frequent words": lambda text, question: most_common(text, question, haystacks.FREQUENT),
    **dict.fromkeys(worlds.TESTS, place),
}


@pytest.mark.parametrize("task", haystacks.TASKS)
def test_who_reads_the_text_can_answer_every_question(maker, task):
    made = maker.make(task, SIZE)
    assert made.ids.shape == (SIZE,) and made.ids[0] == 0
    text = maker.tokenizer.decode(made.ids.tolist())
    counts = Counter(question.test for question in made.questions)
    assert counts == dict.fromkeys(haystacks.TASKS[task].tests, SAMPLES)
    for question in made.questions:
        right, known = SOLVERS[question.test](text, question), []
        if len(right) > 1:
            known = given(question)
            assert {*known} < {*right}
        answers = [question.answer, *question.others]
        assert sorted(answers) == sorted(f" {word}" for word in right if word not in known)
    prompts = [question.prompt for question in made.questions]
    assert len({*prompts}) == len(prompts)


@pytest.mark.parametrize("task", ["noise", "text"])
def test_needles_are_spread_over_the_text_and_stand_between_sentences(maker, task):
    made = maker.make(task, SIZE)
    text = maker.tokenizer.decode(made.ids.tolist())
    found = [*re.finditer(r"The secret number for \w+ is \d+\.", text)]
    parts = [int(SAMPLES * x.start() / len(text)) for x in found]
    assert parts == [*range(SAMPLES)]
    for match in found:
        assert re.search(r"[.!?]\s*$", text[: match.start()])
        assert not text[match.end() :] or text[match.end()].isspace()


def test_the_text_is_that_of_the_document_up_to_the_targets_of_all_lengths(maker):
    made, document = maker.make("facts", SIZE), maker.document
    text = maker.tokenizer.decode(made.ids.tolist())
    inner = re.sub(r" \w+ (went to|picked up|put down) the \w+\.", "", text.partition("\n\n")[2])
    assert inner in document.text and len(inner) > 500
    row = document.row(2000, 2000)
    assert maker.tokenizer.decode(row.tolist()).endswith(inner[-200:])


def test_a_text_depends_on_seed_document_and_length_alone(maker, tokenizer):
    again = make(tokenizer).make("noise", SIZE)
    first = maker.make("noise", SIZE)
    np.testing.assert_array_equal(again.ids, first.ids)
    assert again.questions == first.questions
    others = [make(tokenizer, seed=1), make(tokenizer, number=1)]
    asked = [x.make("noise", SIZE).questions for x in others]
    asked.append(maker.make("noise", SIZE + 1).questions)
    assert all(questions != first.questions for questions in asked)


def test_what_does_not_fit_is_refused(maker, tokenizer):
    with pytest.raises(
        ConfigError, match="what is hidden takes .* leave such lengths or tasks out"
    ):
        maker.make("facts", 200)
    with pytest.raises(ConfigError, match="lengths: 60 tokens have room for"):
        maker.make("keys", 60)
    for task in ("noise", "keys", "common"):
        with pytest.raises(ConfigError, match=r"data: it has 3 different words; more are needed"):
            make(tokenizer, words=["one", "two", "three"]).make(task, SIZE)


def test_the_vocabulary_is_of_common_small_words():
    assert haystacks.vocabulary(["river River stone ox", "stone river house"]) == ["river", "stone"]


def test_people_of_a_world_are_not_in_the_text():
    absent = worlds.PEOPLE[-worlds.COUNT :]
    world = worlds.World(np.random.default_rng(3), " ".join(worlds.PEOPLE[: -worlds.COUNT]))
    assert {*world.people} == {*absent}


def test_a_text_with_answers_asks_for_each_needle_after_it(maker, tokenizer):
    row, in_answer = haystacks.with_answers(maker, 1501)
    assert row.shape == (1501,) and in_answer.shape == (1500,) and row[0] == 0
    text, *asked = tokenizer.decode(row[1:]).split("\n\nQuestion: ")
    known = dict(re.findall(r"The secret number for (\w+) is (\d+)\.", text))
    assert len(known) == len(asked) == SAMPLES
    for question, (key, value) in zip(asked, known.items(), strict=True):
        assert key in question and question.endswith(f"is {value}")
    answers = tokenizer.decode(row[1:][in_answer]).split()
    assert answers == [*known.values()]
    at = [text.index(value) / len(text) for value in known.values()]
    assert at == sorted(at) and at[0] < 1 / SAMPLES and at[-1] > 1 - 2 / SAMPLES
