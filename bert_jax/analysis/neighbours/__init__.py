"""The pieces nearest to a word, and the words of a text nearest to a word in context.

In: words, and a text. Out: nearest pieces and words by layer, the senses of a word.

    pieces.py    the pieces nearest to a word by their input embeddings
    senses.py    the occurrences of a word as points in the plane and as clusters
    contexts.py  the nearest words of a text, the occurrences of a word, the cosine of any two words
    figures.py   the tables and pictures
"""
