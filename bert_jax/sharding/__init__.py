"""The device mesh, one table of rules from the model's logical axis names to mesh axes, and kernels over the mesh.

In: axis names of parameters and activations, a list of devices. Out: a Mesh and a NamedSharding for every array.

    config.py          AXES, MeshConfig: the axes of the mesh and the keys of `config.mesh`
    mesh.py            makes the mesh with the axes `data`, `fsdp` and `tensor`
    rules.py           the table of rules; shardings of parameters, optimizer state and batches
    kernels.py         the kernels that a model calls on a mesh; each device computes its own rows
    device_errors.py   recognises device errors; explains out-of-memory errors with figures and remedies
"""
