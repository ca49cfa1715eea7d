"""The heads of a model against the dependency relations of a treebank.

In: the sentences of a treebank. Out: for each relation the head that finds it, compared with the best offset.

    flags.py      the options of the command, `Dependencies`, and its flags
    measure.py    how often every head finds the head of a dependent; heads chosen on some sentences and measured on others
    published.py  the published table of Clark et al., and its relations in Universal Dependencies
    figures.py    the tables and the figure
    command.py    `analyse dependencies`
"""
