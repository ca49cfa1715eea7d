"""Compiles the steps of an experiment for TPUs that are not attached (`aot`), and examines machines (`doctor`).

In: an experiment and a topology (`aot`), or machines (`doctor`). Out: programs and costs (`aot`), or faults (`doctor`).

    programs.py   lowers the steps of an experiment for devices that need not be attached
    costs/        estimates memory, time, traffic and price of a compiled program
    diagnosis/    checks the machines of a run before it starts
"""
