"""Measures which heads find the antecedents of pronouns, names and nouns, compared with rules.

In: a file of documents annotated with coreference. Out: for every head and every rule the number of antecedents that it finds.

    flags.py      the options of the command, `Coreference`, and its flags
    mentions.py   Mention: its head word, kind and agreement by tags and parse; rules that choose its antecedent
    documents.py  Document: its mentions, the questions about them, and the windows that the model reads
    readers.py    CoNLL-U with `Entity=`, CoNLL-2012 and GAP -> documents
    measure.py    the candidate that each head attends to most; the head chosen on some documents, scored on others
    figures.py    the tables and figures
    command.py    `analyse coreference`
"""
