"""Measures statistics of every head's attention over texts of any number and length.

In: windows of words. Out: means over all words, tables, figures.

    flags.py    the options of the command, `Heads`, and its flags
    measure.py  the statistics, summed on the devices batch by batch
    figures.py  the tables and figures
    command.py  `analyse heads`
"""
