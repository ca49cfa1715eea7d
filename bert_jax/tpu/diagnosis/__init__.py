"""Examines the machines of a run before it starts, for the command `doctor`.

In: the processes, their devices, a workdir and an experiment. Out: checks, each with its figures and its faults. A fault is a
sentence with its remedy.

    flags.py        the flags of `doctor`
    machine.py      the record of a process: versions, host, devices seen and expected, memory, disks
    speed.py        FLOP/s and memory bandwidth of each device, and the bandwidth of the links between them
    judgement.py    the records of all processes -> checks: differences, slow or missing devices; the report
    experiment.py   whether the workdir and the corpus can be used, and the steps fit; a step's time and the estimate of `aot`
"""
