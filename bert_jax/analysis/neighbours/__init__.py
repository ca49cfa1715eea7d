"""Finds the pieces nearest to a word, and the words of a text nearest to a word in context.

In: words, and a text. Out: nearest pieces and words by layer, the senses of a word.

    flags.py    the options of the command, `Neighbouring`, and its flags
    measure.py  nearest pieces; nearest words of a text, the occurrences of a word and their clusters, the mean cosine
    figures.py  the tables and figures
    command.py  `analyse neighbours`
"""
