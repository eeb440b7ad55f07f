"""A small world: people move between places and carry objects, one fact per sentence.

The questions are those of bAbI's first three tasks (Weston et al., arXiv 1502.05698): they need
one, two or three of the facts. BABILong (arXiv 2406.10149) scatters such facts in a novel. Texts
are generated here; a world has six people, six objects and six places, so that a guess is right
once in six.
"""

import numpy as np

TESTS = ("one fact", "two facts", "three facts")
PEOPLE = tuple("Alice Boris Clara Denis Elena Felix Greta Hugo Irene Jonas Karin Leon Mona".split())
PLACES = ("kitchen", "garden", "office", "bathroom", "bedroom", "hallway")
OBJECTS = ("football", "apple", "lamp", "basket", "hammer", "guitar")
COUNT = 6  # of people
FACTS = 50
Asked = tuple[str, str, str]  # the question, the beginning of its answer, its end


class World:
    """What happens in a world.

    Args:
      rng: random numbers.
      text: which names are chosen not to be in, if there are enough.

    Attributes:
      people: their names.
      facts: sentences, in order.
      places: person → the place where they are at the end.
      histories: object → all places where it was, in order.
    """

    def __init__(self, rng: np.random.Generator, text: str = ""):
        names = sorted(rng.permutation(np.array(PEOPLE)).tolist(), key=lambda name: name in text)
        self.people = names[:COUNT]
        self._begin()
        while not self._is_rich():  # one world in four is
            self._begin()
            for _ in range(FACTS):
                self._happen(rng)

    def _begin(self) -> None:
        """Nothing has happened, and nothing is known."""
        self.facts: list[str] = []
        self.places: dict[str, str] = {}
        self.histories: dict[str, list[str]] = {thing: [] for thing in OBJECTS}
        self.carried: dict[str, str] = {}  # object → person

    def _is_rich(self) -> bool:
        """Whether each question of bAbI has an answer for everybody and everything."""
        known = len(self.places) == COUNT
        return known and all(self._before(thing) for thing in OBJECTS)

    def _happen(self, rng: np.random.Generator) -> None:
        """One fact more."""
        person = self.people[rng.integers(COUNT)]
        place = self.places.get(person)
        mine = [thing for thing, owner in self.carried.items() if owner == person]
        here = [
            thing
            for thing, history in self.histories.items()
            if thing not in self.carried and (not history or history[-1] == place)
        ]
        act = rng.integers(4)
        if place and act == 0 and here:
            thing = here[rng.integers(len(here))]
            self.carried[thing] = person
            self.histories[thing] = self.histories[thing] or [place]
            self.facts.append(f"{person} picked up the {thing}.")
        elif place and act == 1 and mine:
            thing = mine[rng.integers(len(mine))]
            del self.carried[thing]
            self.facts.append(f"{person} put down the {thing}.")
        else:
            others = [x for x in PLACES if x != place]
            self.places[person] = new = others[rng.integers(len(others))]
            for thing in mine:
                self.histories[thing].append(new)
            self.facts.append(f"{person} went to the {new}.")

    def _before(self, thing: str) -> list[tuple[str, str]]:
        """(a place where the object was once, the place before)."""
        history = self.histories[thing]
        pairs = zip(history[1:], history[:-1], strict=True)
        return [(place, before) for place, before in pairs if history.count(place) == 1]

    def questions(self, rng: np.random.Generator) -> dict[str, list[Asked]]:
        """Test → questions that need one, two and three facts, in random order."""
        one = [(f"Where is {x}?", f"{x} is in the", self.places[x]) for x in self.people]
        two, three = [], []
        for thing, history in self.histories.items():
            two.append((f"Where is the {thing}?", f"The {thing} is in the", history[-1]))
            pairs = self._before(thing)
            place, before = pairs[rng.integers(len(pairs))]
            begun = f"Before it was in the {place}, the {thing} was in the"
            three.append((f"Where was the {thing} before the {place}?", begun, before))
        asked = dict(zip(TESTS, (one, two, three), strict=True))
        return {test: [x[n] for n in rng.permutation(len(x))] for test, x in asked.items()}
