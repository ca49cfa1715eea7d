"""Probes: small models that are trained on the vectors and the attention of a model, which stays as it is.

In: an Engine, and files of annotated words. Out: accuracies and tree scores by layer, as arrays with named axes.

    annotated.py      CoNLL-U or CoNLL files -> sentences with labels and trees, spread evenly over the file
    features.py       compiled: the vectors of words at every layer; those of a file, in float16
    control.py        the control task and the baseline of a label: one label for each word type
    linear.py         linear probes of labels, of all layers and a learned mix together
    trees.py          distances and depths in trees; spanning trees, UUAS, rank correlations
    structural.py     structural probes: distances and depths under a linear map
    parser.py         parsers on attention, on attention and words, and on the distance between words
    measurement.py    all probes of a model: options and results
    figures.py        the tables and the picture of the results
"""
