"""Sentences hidden in long texts, and questions about them: probes for head ranking, tasks for retrieval.

A prompt is made of tokens: text, needles at their depths, the question. So it is known which tokens are the needle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastspec import Tokenizer
from fastspec.chat import ChatTemplate
from fastspec.errors import InvalidArgumentError, NotFoundError
from fastspec.train.texts import Text

_OWNERS = ("baker", "gardener", "captain", "librarian", "doctor", "painter", "miller", "teacher", "sailor", "tailor")
_TOWNS = ("Aldford", "Brackley", "Corwen", "Dunmore", "Elstow", "Farley", "Glossop", "Harlow", "Ilkley", "Jarrow")
_THINGS = ("silver key", "red umbrella", "glass lantern", "leather map", "copper bell", "ivory comb", "wooden flute")
_PLACES = ("under the stone bridge", "behind the old clock", "inside the blue vase", "beside the water mill")
_KEYS = ("amber", "basil", "cedar", "delta", "ember", "fern", "grove", "harbor", "iris", "jade", "kelp", "lotus")


@dataclass(frozen=True)
class Needle:
    """A sentence, a question that only it answers, and the answer's words."""

    sentence: str
    question: str
    answer: str


@dataclass(frozen=True)
class Probe:
    """A prompt with a needle in it.

    Attributes:
        tokens: the prompt.
        begin, end: places of the needle's tokens.
        answer: that is expected.
        length, depth: as they were asked for; depth is 0 at the text's beginning, 1 at its end.
    """

    tokens: list[int]
    begin: int
    end: int
    answer: str
    length: int
    depth: float


def sentence_needle(generator: random.Random) -> Needle:
    """Who keeps what where: answered by repeating several words of the needle."""
    owner, town = generator.choice(_OWNERS), generator.choice(_TOWNS)
    thing, place = generator.choice(_THINGS), generator.choice(_PLACES)
    return Needle(
        f"The {owner} of {town} keeps the {thing} {place}.",
        f"What does the {owner} of {town} keep, and where?",
        f"the {thing} {place}",
    )


def number_needle(generator: random.Random, key: str) -> Needle:
    """A number by a key."""
    number = str(generator.randrange(10_000, 100_000))
    return Needle(f"The secret number of {key} is {number}.", f"What is the secret number of {key}?", number)


def number_needles(generator: random.Random, count: int) -> list[Needle]:
    """As many keys with a number each; the first is the one that is asked for."""
    return [number_needle(generator, key) for key in generator.sample(_KEYS, count)]


def chat_frame(directory: Path) -> tuple[str, str] | None:
    """What the model's chat template puts before and behind a user's words; None where it has no template."""
    mark = "@@text@@"
    try:
        begin, _, end = ChatTemplate.load(directory).render([{"role": "user", "content": mark}]).partition(mark)
    except NotFoundError:
        return None
    return begin, end


class Haystack:
    """Text that needles are hidden in, and how a model is asked."""

    def __init__(self, texts: Sequence[Text], directory: Path) -> None:
        """`texts`: the hay, all of them one after another; `directory`: the model, whose chat template asks."""
        self._tokenizer = Tokenizer.load(directory)
        self._hay = self._tokenizer.encode("\n\n".join(text.text for text in texts if not text.whole), False)
        self._opening, self._ending = self._tokenizer.encode("", True), "\nAnswer:"
        if frame := chat_frame(directory):
            self._opening, self._ending = self._tokenizer.encode(frame[0], False), frame[1]

    def probe(self, needles: Sequence[Needle], length: int, depth: float, generator: random.Random) -> Probe:
        """A prompt of `length` tokens; the first needle lies at `depth` and is asked for, others lie anywhere.

        Raises:
            InvalidArgumentError: question and needles alone take that, or the text is shorter.
        """
        encode = self._tokenizer.encode
        asked = f"\n\n{needles[0].question} Answer with the words of the text above, and nothing else."
        question = encode(asked + self._ending, False)
        hidden = [encode(f"\n{needle.sentence}\n", False) for needle in needles]
        taken = len(self._opening) + len(question) + sum(map(len, hidden))
        room = length - taken
        if room < 1:
            raise InvalidArgumentError(f"a probe of {length} tokens is too short: question and needles take {taken}")
        if room > len(self._hay):
            raise InvalidArgumentError(
                f"a probe of {length} tokens needs {room} of text; the texts have {len(self._hay)}"
            )
        first = generator.randrange(len(self._hay) - room + 1)
        hay = self._hay[first : first + room]
        places = [round(depth * room)] + [generator.randrange(room + 1) for _ in needles[1:]]
        tokens = list(self._opening)
        begin = previous = 0
        for place, number in sorted((place, number) for number, place in enumerate(places)):
            tokens += hay[previous:place]
            if number == 0:
                begin = len(tokens)
            tokens += hidden[number]
            previous = place
        tokens += hay[previous:] + question
        return Probe(tokens, begin, begin + len(hidden[0]), needles[0].answer, length, depth)


def recall(answer: str, expected: str) -> float:
    """ROUGE-1 recall: which share of the expected words the answer has, each as often."""
    found = _words(answer)
    wanted = _words(expected)
    hits = 0
    for word in wanted:
        if word in found:
            found.remove(word)
            hits += 1
    return hits / len(wanted) if wanted else 0.0


def _words(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() else " " for c in text).split()
