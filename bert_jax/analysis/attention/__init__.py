"""The attention of every layer and head for one text or pair.

In: a window of words. Out: the weights between pieces and between words, a page for the browser, figures.

    flags.py    the flags of the command
    measure.py  the weights of all heads for one text
    page.py     the weights -> a page for the browser, from page.html
    figures.py  the figure of one head, and the overview of all heads
    command.py  `analyse attention`
"""
