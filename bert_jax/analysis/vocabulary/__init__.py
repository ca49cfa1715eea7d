"""The tour of a vocabulary and of the parameters.

In: a Model, and a corpus. Out: pieces by kind, script and length; parameters by part.

    tour.py     the pieces and the parameters
    splits.py   the words of a corpus that the vocabulary splits
    figures.py  the tables and pictures
"""
