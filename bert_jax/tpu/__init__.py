"""Compiles the steps of an experiment for TPUs that are not attached, and examines machines: `aot` and `doctor`.

In: an experiment, a topology or machines. Out: programs, costs, faults.

    programs.py   the steps of an experiment, lowered for a mesh of described devices
    costs/        memory, time, traffic and price of a compiled program
    diagnosis/    the machines of a run, before it begins
"""
