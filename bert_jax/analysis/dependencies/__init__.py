"""Measures which heads find the dependency relations of a treebank.

In: the sentences of a treebank. Out: for each relation the head that finds it best, compared with the best fixed offset.

    flags.py      the options of the command, `Dependencies`, and its flags
    measure.py    how often each head finds a dependent's head; heads are chosen on some sentences and scored on others
    published.py  the published table of Clark et al., and its relations in Universal Dependencies
    figures.py    the tables and the figure
    command.py    `analyse dependencies`
"""
