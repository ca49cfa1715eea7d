"""Makes pairs one by one in plain Python by the original's published rules, as a reference for the vectorised plan."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class Example:
    a: list[int]
    b: list[int]
    random_next: bool
    document: int


def examples_of(documents: list[list[list[int]]], max_tokens: int, short_probability: float, rng: random.Random) -> list[Example]:
    """Returns the examples of one pass over `documents[d][s]` = tokens of a sentence."""
    return [example for d in range(len(documents)) for example in _of_document(documents, d, max_tokens, short_probability, rng)]


def flat(sentences: list[list[int]]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def _of_document(documents, d, max_tokens, short_probability, rng):
    target = rng.randint(2, max_tokens) if rng.random() < short_probability else max_tokens
    queue = list(documents[d])
    while queue:
        chunk = []
        while queue and sum(map(len, chunk)) < target:
            chunk.append(queue.pop(0))
        for_a = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        a, rest = flat(chunk[:for_a]), chunk[for_a:]
        random_next = not rest or rng.random() < 0.5
        if random_next:
            queue = rest + queue
            other = rng.choice([i for i in range(len(documents)) if i != d])
            b = []
            for sentence in documents[other][rng.randrange(len(documents[other])) :]:
                b = b + sentence
                if len(b) >= target - len(a):
                    break
        else:
            b = flat(rest)
        a, b = list(a), list(b)
        while len(a) + len(b) > max_tokens:
            longer = a if len(a) > len(b) else b
            longer.pop(0 if rng.random() < 0.5 else -1)
        yield Example(a, b, random_next, d)
