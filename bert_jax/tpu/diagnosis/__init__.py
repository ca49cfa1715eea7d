"""Examines the machines of a run before it begins, for the verb `doctor`.

In: the processes, their devices, a workdir and an experiment. Out: checks, each with its figures and its faults; a fault is a
sentence with the remedy.

    checks.py        Check: one line of the report with its faults; the report as text and as JSON
    machine.py       the record of a process: versions, host, devices seen and expected, memory, disks
    speed.py         FLOP/s and memory bandwidth of each device, and the bandwidth of the links between them
    published.py     the figures of the makers' data sheets to compare them with
    judgement.py     the records of all processes -> checks: what differs, what is slow, what is missing
    directories.py   whether the workdir and the corpus can be used, from every process
    fit.py           whether the steps of an experiment fit in memory; a measured step beside the estimate of `aot`
"""
