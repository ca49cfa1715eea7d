"""The heads of a model that find the antecedent of a pronoun, of a name and of a noun, beside rules that do.

In: a file of documents with coreference. Out: for every head and every rule the number of antecedents that it finds.

    mentions.py       Mention, Question, Text, TextFile: what all formats are read into
    grammar.py        the head, the kind and the agreement of a mention, by its tags
    rules.py          the nearest mention, the same head word, a sieve of rules
    documents.py      Document: every mention may be an antecedent of a later one
    brackets.py       the brackets that open and close mentions -> a document
    corefud.py        CoNLL-U with `Entity=` -> documents
    phrases.py        the parse column of CoNLL-2012 -> constituents and their heads
    conll2012.py      CoNLL-2012 -> documents
    pronouns.py       GAP -> documents
    files.py          the reader of a file by its first line
    sections.py       documents -> windows of the position table's length with the questions that are asked in them
    antecedents.py    compiled: the candidate that each head attends to most; counts by document
    choice.py         the best head of some documents on others, with bootstrap intervals
    figures.py        tables and pictures
"""
