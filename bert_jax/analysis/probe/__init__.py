"""Trains probes: small models on the vectors and the attention of a frozen model.

In: an Engine, and files of annotated words. Out: accuracies and tree scores by layer, as arrays with named axes.

    flags.py         the options of the command, `Probing`, and its flags
    annotated.py     reads CoNLL-U or CoNLL files as sentences with labels and trees; numbers the labels; the control task
    word_vectors.py  the vectors of words at every layer; for a whole file, in float16
    linear.py        linear probes of labels on each layer and on a learned mix of all layers
    structural.py    structural probes: distances and depths in trees after a linear map, and their scores
    parser.py        parsers that read attention, attention and words, or the distance between words
    measure.py       all probes of a model, and their results
    figures.py       the tables and figures
    command.py       `analyse probe`
"""
