"""Task heads: the layer that a labelled task puts on top of the encoder, and its loss.

In: hidden states of packed rows, and their labels. Out: logits, the loss and the accuracy of every label.

A kind of head is a class in a file of its own. It defines the positions that it reads, the arrays of its labels, its loss and
accuracy, and its names in other formats; all other folders call its methods and never compare kinds. To add a kind: a file such
as `token.py`, its class in the list of `registry.py`, and its line below.

    pretraining.py      the pooler and the heads of pretraining: masked language modelling, next sentence prediction
    outputs.py          Outputs: classification, multi-label classification or regression: loss, accuracy, predictions
    head.py             TaskHead: the interface of all kinds, with the defaults of a head on the [CLS] of each text
    sequence.py         SequenceHead: classification or regression of a text or a pair
    token.py            TokenHead: a label for every token
    span.py             SpanHead: the first and the last token of an answer
    choice.py           ChoiceHead: a score for each candidate
    mention.py          MentionHead: the name that a pronoun refers to
    registry.py         HEADS: the kinds by name
    bert_with_head.py   BertWithHead: the encoder with a task head, and its initial parameters
"""
