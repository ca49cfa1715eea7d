"""Programs for machines that need not be here: what `aot` estimates and `doctor` examines.

In: an experiment, a topology or machines. Out: programs, costs, faults.

    programs.py   the steps of an experiment, lowered for a mesh of described devices
    costs/        memory, time, traffic and price of a compiled program
    diagnosis/    the machines of a run, before it begins
"""
