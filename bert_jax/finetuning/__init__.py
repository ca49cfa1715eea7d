"""The parts of the training loop for `bert_jax/finetune.py`.

In: an experiment, a task, a model to start from. Out: trained weights, log lines, compared runs, results.

    start.py           loads the pretrained model, adds the task's head, loads the teacher
    data.py            the features of a task's examples, and the fingerprints of data and weights
    program.py         the objective, steps, logits and teacher of a run
    job.py             Job: one run of a sweep on its devices, with its batches, program and evaluation
    best_weights.py    BestWeights: the weights with the best dev score, saved during a run and exported at its end
    finetuning_log.py  FinetuningLog: log lines, metrics.jsonl, the plot of the curves
    sweep.py           trains the runs of a sweep in parallel, compares them and chooses the best
"""
