"""The glossary of axes: every letter and word in a shape, as in `Float[Array, "B L D"]`, has the one meaning given here.

Signatures of examples, batches, model, training and prediction state shapes and dtypes by `jaxtyping`, whose syntax adds to these
names: `*name` any number of axes, `...` any axes, `_` any axis, a number that size, "" a scalar. Within one call the same name is
the same size. A test refuses names that are missing here, and the tests of the package run with all shapes checked.
"""

from __future__ import annotations

AXES = {
    # a batch
    "B": "rows of a batch; in a step that is split over devices or microbatches, the rows at hand",
    "L": "length: tokens of a row; in attention the tokens that are keys",
    "Q": "queries: tokens of a row for which a layer is computed, which are all L or chosen ones",
    "M": "predicted positions of a row (masked language modelling)",
    "P": "packed sequences of a row: examples in pretraining, or the sequences of its features in a labelled task",
    "U": "features of a row in a labelled task: what the model reads at once of one example",
    "E": "examples of an epoch or of a block of one",
    # the model
    "D": "model width; in a kernel the width of the heads at hand, padded to whole tiles",
    "H": "attention heads",
    "K": "width of an attention head",
    "F": "feed-forward width",
    "V": "vocabulary, padded rows included",
    "N": "layers",
    "S": "hidden states: the embeddings, then the output of every layer; N + 1",
    "C": "classes: outputs of a head",
    "W": "width of each direction of an LSTM",
    "I": "input width: of what a layer or a head reads of one token or sequence",
    "O": "output width of a layer",
    "R": "rows of a matrix: the tokens of a batch one after the other",
    # kernels
    "G": "groups of lanes of the TPU kernel of attention: several narrow heads or one wide head",
    "J": "heads of one such group",
    # prediction
    "T": "texts of a batch, whatever rows they lie in",
    "X": "places asked about in a batch: masked tokens, scored tokens, mentions",
    # data
    "candidates": "sequences of one feature of a choice",
    "tokens": "tokens of one sequence or feature, without padding",
    "chunks": "chunks of sentences, each of which becomes an example",
    "sentences": "sentences of a stretch of the corpus",
    "sentence_bounds": "sentences of the corpus and one more: where each begins, and where the last ends",
    "document_bounds": "documents of the corpus and one more: where each begins, and where the last ends",
    "plan_rows": "rows of an epoch's plan",
    "lengths": "lengths of an example, from 0",
    "shape": "any axes, the same wherever it stands in a signature",
    "chosen": "elements chosen from an array, or asked for",
    "legal": "ids that may replace a masked token at random",
    "words": "words of one text",
    "pieces": "pieces of words of one text",
    "texts": "all texts that were asked about",
}
