"""Estimates memory, time, network traffic and price of a compiled TPU program, for the report of `aot`.

In: a lowered step and a topology. Out: memory, seconds, utilisation, price.

    flags.py             the flags of `aot`
    examination.py       compiles one step; returns its cost, or searches for settings with which it fits
    topologies.py        the name of a slice -> its chips, and devices to compile for
    compiler.py          compiles a lowered program; calibrates the estimates
    hlo.py               the text of an optimized module -> instructions; the name of an instruction -> a part of the model
    kernel_compiler.py   compiles a Pallas kernel alone, and returns its schedule
    kernel_cycles.py     the schedule of a kernel -> cycles
    collectives.py       time and bytes of collectives on the network of a slice
    memory.py            the bytes of arguments and temporaries in the memory of a chip
    estimate.py          the time of one step
    step_report.py       the report, as text and as JSON
"""
