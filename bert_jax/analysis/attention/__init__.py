"""Computes the attention of every layer and head, for a text or a pair of texts, or for a source and its translation
(encoder-decoder).

In: a window of words, or a source and a target. Out: the weights between pieces and between words, the word alignment of source
and target, a page for the browser, JSON, figures.

    flags.py    the flags of the command
    measure.py  the weights of all heads for one text, or for a source and a target
    page.py     writes the weights into page.html, a page for the browser
    figures.py  the figure of one head, the overview of all heads, and the figure of an alignment
    command.py  `analyse attention`
"""
