"""Compiles the steps of an experiment for TPUs that are not attached (`aot`), and examines machines (`doctor`).

In: an experiment and a topology, or machines. Out: programs, costs, faults.

    programs.py   the steps of an experiment, lowered for a mesh of described devices
    costs/        memory, time, traffic and price of a compiled program
    diagnosis/    checks the machines of a run before it starts
"""
