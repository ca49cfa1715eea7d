"""Training objectives: losses as sums over tokens, which are divided once, at the end.

In: parameters and a batch. Out: sums and counts, the loss of their totals, and scores.

    config.py            PretrainingDistillation: the keys of `config.distillation`
    objective.py         Objective: the contract of all of them, and all that follows from it
    model.py             Model: what an objective builds its parameters with, and computes hidden states and logits with
    losses.py            cross-entropies and correct predictions
    scores.py            Score: how a score is computed and shown; formulas and baselines
    flops.py             the model FLOPs of a row, counted by hand or in a program
    word_prediction.py   WordPrediction: what the next three share
    mlm_nsp.py           masked language modelling and next sentence prediction
    next_token.py        the next token, by a left-to-right model
    bilm.py              the token before and the token after, by two LSTMs
    translation.py       the words of a translation, by an encoder and a decoder
    skip_gram.py         skip-gram with negative sampling
    labels.py            the losses of labelled tasks
    distillation.py      another objective with the losses against a teacher
"""

OBJECTIVES = {
    "bert": "bert_jax.objectives.mlm_nsp:MlmNsp",
    "next_token": "bert_jax.objectives.next_token:NextToken",
    "bilm": "bert_jax.objectives.bilm:Bilm",
    "skip_gram": "bert_jax.objectives.skip_gram:SkipGram",
    "translation": "bert_jax.objectives.translation:Translation",
}
"""Name in `config.objective` -> the class; FILE.py:NAME is one in a file of the user. To add one, add its file and its line."""
