"""The tour of a vocabulary and of the parameters.

In: a Model, and a corpus. Out: pieces by kind, script and length; parameters by part.

    tour.py     the pieces and the parameters
    figures.py  the tables and pictures
"""
