"""Devices and who holds what: the mesh, and one table from the model's axis names to mesh axes.

In: axis names of parameters and activations, a list of devices. Out: a Mesh and a NamedSharding for every array.

    mesh.py            the mesh of axes `data`, `fsdp`, `tensor`
    rules.py           the table, and the shardings that follow from it
    out_of_memory.py   a device's or the host's memory ran out: the figures, and an error with remedies
"""
