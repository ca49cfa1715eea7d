"""Measures which heads find the antecedents of pronouns, names and nouns, and compares these heads with rules.

In: a file of documents annotated with coreference. Out: the number of antecedents that each head and each rule finds.

    flags.py      the options of the command, `Coreference`, and its flags
    mentions.py   Mention: its head word, kind and traits, from tags and parse; rules that choose its antecedent
    documents.py  Document: its mentions, the questions about them, and the windows that the model reads
    readers.py    CoNLL-U with `Entity=`, CoNLL-2012 and GAP -> documents
    measure.py    the candidate that each head attends to most; heads are chosen on some documents and scored on others
    figures.py    the tables and figures
    command.py    `analyse coreference`
"""
