"""Measures where two models differ.

In: two models, and texts. Out: heads matched by behaviour, the similarity of layers, predictions of the same masked words.

    flags.py    the options of the command, `Comparing`, and its flags
    aligned.py  the same words for two models, each with its own pieces
    cka.py      centred kernel alignment of layers, from sums over words
    masked.py   the predictions of two models for the same masked words
    measure.py  all measurements for two models
    figures.py  the tables and figures
    command.py  `analyse compare`
"""
