"""What a model is trained to do: the losses as sums over tokens, divided once, last.

In: parameters and a batch. Out: sums and counts, and the loss of their totals.

    objective.py      Objective: counts, sums and loss; the objectives of pretraining and of labelled tasks by name
    losses.py         cross-entropy; the losses of masked language modelling and next sentence prediction
    skip_gram.py      skip-gram with negative sampling
    label_losses.py   the losses of labelled tasks
    distillation.py   the losses against a teacher
    flops.py          the operations of a training step, counted by hand
    scores.py         sums -> losses, accuracies, perplexity; unigram and NSP baselines
"""
