"""Documents to rows: segment pairs for next sentence prediction, packing, and masking for the masked language model.

numpy only. Everything random is a hash of (seed, epoch, place), see `counter.py`, so a row is the same whoever builds it.

    settings.py   ExampleConfig: what an example is
    counter.py    random numbers as a function of their place
    chunks.py     sentences -> chunks          (from the sentence lengths alone)
    pairs.py      chunks -> spans of A and B
    packing.py    examples -> rows
    plan.py       the three above: one epoch   (EpochPlan)
    assemble.py   plan rows -> arrays
    masking.py    arrays -> masked arrays
"""
