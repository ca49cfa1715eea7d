"""Lists the pieces of a vocabulary and the parameters of a model.

In: a Model, and a corpus. Out: pieces by kind, script and length; parameters by part.

    flags.py    the flags of the command
    measure.py  the pieces and the parameters; the words of a corpus that the vocabulary splits
    figures.py  the tables and figures
    command.py  `analyse vocabulary`
"""
