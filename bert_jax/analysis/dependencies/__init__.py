"""Measures which heads find the dependency relations of a treebank.

In: the sentences of a treebank. Out: the attention head that finds each relation best, compared with the best fixed offset.

    flags.py            the options of the command, `Dependencies`, and its flags
    measure.py          how often each attention head finds the syntactic head of a word; chosen on some, scored on others
    published_heads.py  the published table of Clark et al., and its relations in Universal Dependencies
    figures.py          the tables and the figure
    command.py          `analyse dependencies`
"""
