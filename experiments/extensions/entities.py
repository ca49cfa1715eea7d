"""A mask policy: masks whole entities, which are runs of capitalised words, before other words (as in ERNIE, arXiv:1904.09223).

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py --workdir=runs/entities \
        --config.corpus.directory=runs/cased_corpus --config.examples.masking=experiments/extensions/entities.py:entities

The vocabulary of the corpus must be cased. The first word of a sentence counts as an entity. If entities make up less than
`rate` of the tokens, other words are masked too.
"""


def entities(example, rate, rng):
    """Returns the positions to predict: entities in random order, then single words, until `rate` of the tokens is reached."""
    names, others, end = [], [], None
    for word in example.words:
        if not example.text(word)[:1].isupper():
            others.append(word)
        elif word[0] == end:  # directly after another capitalised word
            names[-1] += word
            end = word[-1] + 1
        else:
            names.append(word)
            end = word[-1] + 1
    wanted, chosen = max(1, round(rate * len(example.ids))), []
    for group in (names, others):
        for i in rng.permutation(len(group)):
            if len(chosen) + len(group[i]) <= wanted:
                chosen += group[i]
    return chosen
