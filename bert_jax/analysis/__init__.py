"""Measures the attention, the heads, the vectors and the vocabulary of a model, as tables, figures and arrays.

In: a Model, and texts. Out: arrays with named axes, TSV tables, figures, the files of a directory.

    named.py       NamedArray: an array whose axes have names
    windows.py     texts -> words with their pieces, in windows of the position table's length
    reading.py     reads texts and annotated files, reports problems, shows progress; Treebank
    maps.py        the attention of every layer and head, and the vectors, between pieces and between words
    divergence.py  Jensen-Shannon divergences between heads, their dendrogram and their coordinates in the plane
    bootstrap.py   intervals from a bootstrap over sentences, in one pass
    controls.py    random weights, shuffled words, permuted heads
    folder.py      the directory of --output
    attention/     the weights of every head for one text
    heads/         statistics of every head over any number of texts
    dependencies/  the heads that find each relation of a treebank
    coreference/   the heads that find antecedents
    probe/         probes of the vectors and the attention of words: labels, trees, heads
    vocabulary/    the pieces of a vocabulary; the parameters of the model by part
    neighbours/    the pieces and the words in context that are nearest to a word
    compare/       where two models differ: heads, layers, predictions
    analyser.py    Analyser: the same from Python
    flags.py       the commands, and the flags that several of them have
    command.py     the steps that the commands share

A question is a folder: `measure.py`, `figures.py`, and the command of its name, `flags.py` and `command.py`.
"""
