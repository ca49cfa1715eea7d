"""Measures a model's attention, heads, word vectors and vocabulary, and writes tables, figures and arrays.

In: a Model, and texts. Out: arrays with named axes, TSV tables, figures, the files of a directory.

    named_array.py  NamedArray: an array whose axes have names
    windows.py      splits texts into words with their pieces, in windows that fit the position table
    reading.py      reads texts and annotated files, reports problems, shows progress; Treebank
    maps.py         the attention of every layer and head between pieces or words, and word vectors
    divergence.py   Jensen-Shannon divergences between heads, their dendrogram and their coordinates in the plane
    bootstrap.py    confidence intervals from a bootstrap over sentences, in one pass
    controls.py     random weights, shuffled words, permuted heads
    folder.py       writes the directory of --output
    attention/      the weights of every head for one text, or for a source and its translation
    heads/          statistics of every head over any number of texts
    dependencies/   which heads find each relation of a treebank
    coreference/    which heads find antecedents
    probe/          probes on word vectors and attention: labels, trees, heads
    vocabulary/     the pieces of a vocabulary; the parameters of the model by part
    neighbours/     the pieces that are nearest to a word, and the nearest words in context
    compare/        differences between two models: heads, layers, predictions
    analyser.py     Analyser: the same measurements from Python
    flags.py        the commands, and the flags that several commands share
    command.py      the steps that the commands share

Each command has a folder with `measure.py`, `figures.py`, `flags.py` and `command.py`.
"""
