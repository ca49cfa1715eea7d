"""Programs for machines that need not be here: what `aot` estimates and `doctor` examines.

In: an experiment, a topology or machines. Out: programs, costs, faults.

    lowered.py   the steps of pretraining and fine-tuning, lowered for a mesh of described devices
    costs/       memory, time, traffic and price of a compiled program
    diagnosis/   the machines of a run, before it begins
"""
