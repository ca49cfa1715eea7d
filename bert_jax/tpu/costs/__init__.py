"""Estimates memory, time, network traffic and price of a compiled TPU program, for the report of `aot`.

In: a lowered step and a topology. Out: memory, seconds, utilisation, price.

    flags.py             the flags of `aot`
    examination.py       compiles one step: its cost, or a search for the settings that make it fit
    topologies.py        the name of a slice -> its chips, and devices to compile for
    compiler.py          a lowered program -> the compiler's memory figures, text and schedules; the calibration of estimates
    hlo.py               the text of an optimized module -> instructions; an instruction's name -> a place in the model
    kernel_compiler.py   a Pallas kernel -> the compiler's schedule
    kernels.py           the schedule -> cycles
    collectives.py       time and bytes of collectives on the slice's network
    memory.py            the use of a chip's memory: arguments and temporaries
    estimate.py          the time of one step
    report.py            the report, as text and as JSON
"""
