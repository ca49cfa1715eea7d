"""Training objectives: losses as sums over tokens, divided once at the end.

In: parameters and a batch. Out: sums and counts, the loss of their totals, and scores.

    config.py            PretrainingDistillation: the keys of `config.distillation`
    objective.py         Objective: the interface of all objectives, and everything derived from it
    model.py             Model: builds an objective's parameters, and computes hidden states and logits
    losses.py            cross-entropies and correct predictions
    scores.py            Score: how a score is computed and shown; formulas and baselines
    flops.py             the model FLOPs of a row, counted by hand or in a program
    word_prediction.py   WordPrediction: the base class of the next three
    mlm_nsp.py           masked language modelling and next sentence prediction
    next_token.py        the next token, by a left-to-right model
    bilm.py              the token before and the token after, by two LSTMs
    translation.py       the words of a translation, by an encoder and a decoder
    skip_gram.py         skip-gram with negative sampling
    labels.py            the losses of labelled tasks
    cross_view.py        the losses of a tagger, and of auxiliary modules that see parts of unlabelled sentences
    distillation.py      adds losses against a teacher to another objective
"""

OBJECTIVES = {
    "bert": "bert_jax.objectives.mlm_nsp:MlmNsp",
    "next_token": "bert_jax.objectives.next_token:NextToken",
    "bilm": "bert_jax.objectives.bilm:Bilm",
    "skip_gram": "bert_jax.objectives.skip_gram:SkipGram",
    "translation": "bert_jax.objectives.translation:Translation",
}
"""Name in the `config.objective` of pretraining -> location of the class. FILE.py:NAME is a user's own class. To add an
objective, add its file and a line here."""
TASK_OBJECTIVES = {
    "labels": "bert_jax.objectives.labels:Labels",
    "cross_view": "bert_jax.objectives.cross_view:CrossView",
}
"""The same for fine-tuning. The classes inherit from `Labels`."""
