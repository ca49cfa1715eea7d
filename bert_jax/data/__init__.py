"""Turns text into batches. This folder has corpora, tokenizers, pretraining examples (segment pairs, masks, packed rows), and
packed rows of labelled examples. Only batches.py imports jax.

In: the sentence lengths and token ids of a corpus, or the features of a labelled task. Out: batches, on the host or on devices.

All random numbers are hashes of (seed, epoch, position). Every host therefore computes the same rows (see `counter_rng.py`).

    corpus/             raw text to a corpus directory of tokenised documents
    tokenizers/         text to token ids
    config.py           ExampleConfig: lengths, pairs, masking, packing
    counter_rng.py      counter-based random numbers
    plan.py             sentence lengths -> the examples in every row of an epoch: chunks, segment pairs, blocks of a large corpus
    example_packing.py  examples -> rows
    masking.py          tokens -> masked tokens and targets; this module draws the masks
    kinds_of_rows.py    Rows: which arrays the rows of an objective have, and how they are made
    rows.py             rows of a plan, or features of labelled examples -> arrays
    batches.py          batches as a function of the step, and their transfer to devices
    prefetch.py         batches from background threads, by grain
"""

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
"""The arrays of a batch that an encoder reads, int32 [B, L]."""
ROWS = {
    "masked": "bert_jax.data.kinds_of_rows:Masked",
    "next": "bert_jax.data.kinds_of_rows:Next",
    "centres": "bert_jax.data.kinds_of_rows:Centres",
    "translated": "bert_jax.data.kinds_of_rows:Translated",
}
"""The kinds of rows (`config.examples.targets`). An objective names its kind in `Objective.rows`. To add a kind, write its class
and list it here."""
DECODER = "decoder_"
DECODER_INPUTS = tuple(f"{DECODER}{name}" for name in INPUTS)
"""The arrays of a batch that a decoder reads."""
MASKING = {
    "tokens": "bert_jax.data.masking:mask_tokens",
    "whole_words": "bert_jax.data.masking:mask_whole_words",
    "words": "bert_jax.data.masking:mask_words",
    "spans": "bert_jax.data.masking:mask_spans",
}
"""The mask policies of `config.examples.masking`. A policy is a function of one example (see `masking.Example`), or declares
that it handles all examples at once (`masking.of_all`). To add a policy, write its function and list it here."""
