"""The parts of fine-tuning beside its loop, which is `bert_jax/finetune.py`.

In: an experiment, a task, a model to start from. Out: trained weights, log lines, compared runs, results.

    warm_start.py     the model that fine-tuning starts from, the head it gets, the teacher
    data.py           the task's examples as one model reads them, and their fingerprints
    job.py            Job: one run of a sweep: batches, program, evaluation, on its devices
    best_weights.py   BestWeights: kept on disk while a run goes on, then exported
    log.py            FinetuningLog: lines, metrics.jsonl, the picture
    results.py        results.json of one run
    sweep.py          several runs side by side, their comparison, the best of them
"""
