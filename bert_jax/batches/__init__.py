"""Rows to batches on devices. A batch is a pure function of (corpus, config, seed, step, shard): the data position is the step.

In: rows of `examples/`. Out: global jax.Arrays, sharded over the mesh.

    source.py     BatchSource: training batches, epoch after epoch
    heldout.py    the held-out rows, each exactly once
    labelled.py   batches of labelled examples, for training and for evaluation
    prefetch.py   batches made in the background (the only home of grain)
    device.py     numpy -> global jax.Array
"""
