"""The state of a run to storage and back, so that a run can resume. The only home of Orbax.

In: a TrainState on devices. Out: checkpoint directories, and the newest one that is whole.

    digests.py   digests of arrays, computed on the devices: whether what is read is what was written
    manager.py   Checkpoints: saves in the background, keeps the newest few, restores the newest whole one
"""
