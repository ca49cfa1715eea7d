"""Text to batches: corpora, tokenizers, pretraining examples (segment pairs, masks, packed rows), and packed rows from labelled
examples. Only batches/ imports jax.

In: sentence lengths and token ids of a corpus, or the features of a labelled task. Out: batches of numpy arrays.

All random numbers are hashes of (seed, epoch, position), see `counter_rng.py`, so every host computes the same row.

    corpus/          raw text to a corpus directory of tokenised documents
    tokenizers/      text to token ids
    config.py        ExampleConfig: lengths, pairs, masking, packing
    counter_rng.py   counter-based random numbers
    chunks.py        sentences -> chunks, from the sentence lengths alone
    pairs.py         chunks -> the token spans of segments A and B
    packing.py       examples -> rows
    blocks.py        large corpora in parts that are planned one after another
    plan.py          EpochPlan: the three steps above for an epoch
    assemble.py      rows of a plan -> arrays
    masking.py       tokens -> masked tokens and targets: where masks are drawn
    labelled.py      features of labelled examples -> packed rows
    batches/         batches as a function of the step, and their transfer to devices
"""
