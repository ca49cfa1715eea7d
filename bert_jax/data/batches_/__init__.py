"""Batches, and their transfer to devices. A batch is a pure function of (corpus, config, seed, step, shard): there is no iterator
state to save, since the data position is the step.

In: rows of `examples/`. Out: global jax.Arrays, sharded over the mesh.

    source.py     BatchSource: pretraining batches
    heldout.py    held-out batches: each row exactly once
    labelled.py   LabelledBatches and EvaluationBatches: batches of labelled examples
    prefetch.py   batches from background threads, by grain
    device.py     numpy arrays -> global jax.Arrays
"""
