"""Saves and restores the training state, so that a run can resume. The only folder that imports Orbax.

In: a TrainState on devices. Out: checkpoint directories, and the newest intact state.

    digests.py   digests of arrays, computed on the devices, to detect damaged checkpoints
    manager.py   Checkpoints: saves in the background, keeps the newest few, restores the newest intact one
"""
