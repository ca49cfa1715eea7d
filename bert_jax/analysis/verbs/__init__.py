"""The verbs of `python -m bert_jax.analyse`, a module each.

In: the flags of the command line. Out: files in the directory of --output, lines on the terminal, an exit status.

    verb.py        shared: flags, the reading of texts, the model, the list of files
    attention.py   the attention of every head for one text or pair
    heads.py       statistics of every head over any number of texts
    neighbours.py  the nearest pieces of a word, the nearest words and the senses of a word in context
    dependencies.py  the heads against the relations of a treebank
    coreference.py  the heads against the antecedents of mentions
    probe.py       probes of labels and trees, layer by layer
    compare.py     where two models differ on the same text
    vocabulary.py  the tour of a vocabulary and of the parameters
"""
