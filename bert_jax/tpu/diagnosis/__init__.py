"""Examines the machines of a run before it starts, for the command `doctor`.

In: the processes, their devices, a workdir and an experiment. Out: checks with figures and faults. A fault is a sentence with a
remedy.

    flags.py        the flags of `doctor`
    machine.py      records the facts about a process: versions, host, devices seen and expected, memory, disks
    speed.py        measures FLOP/s and memory bandwidth of each device, and the bandwidth of the links between devices
    judgement.py    makes checks from the records of all processes: differences, slow or missing devices; formats the report
    experiment.py   checks the workdir, the corpus, and the memory and time of the steps
"""
