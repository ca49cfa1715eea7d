"""The glossary of axes: the meaning of every letter and word in a shape such as `Float[Array, "B L D"]`.

Signatures declare shapes and dtypes with `jaxtyping`. In addition to the names below, its syntax has `*name` for any number of
axes, `...` for any axes, `_` for any axis, a number for a fixed size, and "" for a scalar. Within a call, the same name has the
same size. A test rejects names that are missing here, and the test suite checks all shapes."""

from __future__ import annotations

AXES = {
    # a batch
    "B": "rows of a batch; in a step split over devices or microbatches, the local rows",
    "L": "length: tokens of a row; in attention the tokens that are keys",
    "Q": "queries: tokens of a row for which a layer is computed: all L, or selected ones",
    "M": "predicted positions of a row (masked language modelling)",
    "source": "source tokens of a row, which a decoder reads in addition to its own L tokens",
    "P": "packed sequences of a row: examples in pretraining, or the sequences of its features in a labelled task",
    "U": "features of a row in a labelled task: inputs of the model, one or more per example",
    "E": "examples of an epoch, of a block of an epoch, or of a split of a labelled task",
    # the model
    "D": "model width; in a kernel the total width of its heads, padded to whole tiles",
    "H": "attention heads",
    "K": "width of an attention head",
    "F": "feed-forward width; in an LSTM the width of its cell",
    "V": "vocabulary, padded rows included",
    "N": "layers",
    "S": "hidden states: the embeddings, then the output of every layer; N + 1",
    "C": "classes: outputs of a head",
    "W": "width of each direction of an LSTM",
    "I": "input width of a layer or a head, per token or sequence",
    "O": "output width of a layer",
    "R": "rows of a matrix: the concatenated tokens of a batch",
    # kernels
    "G": "groups of heads in the TPU attention kernel: as many heads as fill 128 lanes, or one wider head",
    "J": "heads of one such group",
    # prediction
    "T": "texts of a batch, independent of the rows that hold them",
    "X": "queried positions of a batch: masked tokens, scored tokens, mentions",
    # analysis
    "A": "probes: one for every hidden state, and one for their learned weighted average (ELMo's scalar mix); S + 1",
    "Z": "words of a row, each at the column of its first token; the other columns are empty",
    "heads": "heads of all layers, first layer first",
    "relations": "relations of a treebank by their index, from 1; 0 marks words that are not counted",
    "dependents": "words of a batch whose relation is counted",
    "groups": "groups of relations of a treebank (a relation, all its subtypes, all relations), or of mentions (all, one kind)",
    "units": "units of a bootstrap, which are drawn as a whole: sentences, documents",
    "replicates": "replicates of a bootstrap",
    # data
    "candidates": "sequences of one feature of a choice",
    "tokens": "tokens of one sequence or feature, without padding",
    "chunks": "chunks (windows of consecutive sentences), each of which becomes an example",
    "sentences": "sentences of a contiguous part of the corpus",
    "sentence_bounds": "sentences of the corpus + 1: the start offsets, then the end of the last sentence",
    "document_bounds": "documents of the corpus + 1: the start offsets, then the end of the last document",
    "plan_rows": "rows of an epoch's plan",
    "lengths": "lengths of an example, from 0",
    "shape": "any axes, the same throughout a signature",
    "chosen": "elements selected from an array, or requested",
    "legal": "ids that may replace a masked token at random",
    "words": "words of one text",
    "pieces": "subwords (pieces of the vocabulary) of one text",
    "texts": "all texts of a request",
}
