"""A TPU program's text to memory, time, network and money: what `aot` reports.

In: a lowered step and a topology. Out: bytes, seconds, utilisation, price.

    cases.py             the steps of an experiment whose cost is asked for
    examination.py       one of them compiled: its cost, or the settings that make it fit
    chips.py             the TPU generations by their data sheets
    topologies.py        a slice by name, and devices to compile for
    compiling.py         a lowered program -> the compiler's memory figures and text
    hlo.py               the text of an optimized module -> instructions
    places.py            an instruction's name -> a place in the model
    kernel_compiler.py   a Pallas kernel -> the schedule that the compiler made
    kernels.py           the schedule -> cycles
    collectives.py       time and bytes of collectives on the slice's network
    memory.py            what fills a chip's memory
    estimate.py          the time of one step
    calibration.py       two programs of known speed, estimated in the same way
    fit.py               settings that make a program fit
    report.py            the report, for people and as JSON
"""
