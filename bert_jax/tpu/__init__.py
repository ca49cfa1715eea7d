"""Compiles the steps of an experiment for TPUs that are not attached (`aot`), and examines machines (`doctor`).

The input of `aot` is an experiment and a topology, and the output is programs and costs. `doctor` examines the machines of a
run and reports faults.

    programs.py   lowers the steps of an experiment for devices that need not be attached
    costs/        estimates memory, time, traffic and price of a compiled program
    diagnosis/    checks the machines of a run before it starts
"""
