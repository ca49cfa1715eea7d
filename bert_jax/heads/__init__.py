"""Task heads: the layer that a labelled task puts on top of the encoder, and its loss.

In: hidden states of packed rows, and their labels. Out: logits, the loss of every label, and whether an answer is right.

A kind of head is one class in one file. It knows which positions it reads, the arrays of its labels, its loss and its accuracy,
its names in other formats, and what `predict` asks it; every other folder asks the head, and compares no kinds. To add a kind:
a file like `token.py`, and its class in the list of `registry.py`.

    outputs.py     Outputs: one label, several labels or a value: loss, right or wrong, predictions
    head.py        TaskHead: what every kind answers
    sequence.py    SequenceHead: an answer for each text or pair
    token.py       TokenHead: a label for every token
    span.py        SpanHead: the first and the last token of an answer
    choice.py      ChoiceHead: a score for each candidate
    mention.py     MentionHead: which of two names a pronoun means
    registry.py    the kinds by their names
    labelling.py   BertForLabels: the encoder with a task head, and fresh parameters for it
"""
