"""Documents to rows: segment pairs for next sentence prediction, packing, masking; and labelled examples to rows.

In: sentence lengths and token ids of a corpus, or the features of a labelled task. Out: batches of numpy arrays.
numpy only. Everything random is a hash of (seed, epoch, place), see `counter.py`, so a row is the same whoever builds it.

    config.py     ExampleConfig: lengths, pairs, masking, packing
    counter.py    random numbers as a function of their place
    chunks.py     sentences -> chunks          (from the sentence lengths alone)
    pairs.py      chunks -> spans of A and B
    packing.py    examples -> rows
    plan.py       the three above: one epoch   (EpochPlan)
    assemble.py   plan rows -> arrays
    masking.py    arrays -> masked arrays      (where masks are drawn)
    labelled.py   the features of labelled examples -> packed rows
"""
