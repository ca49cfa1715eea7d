"""Pallas kernels: fused attention and the residual with its LayerNorm.

In: the inputs of `model/attention.py` and `model/residual_norm.py`. Out: the same results, without an array of length x length in
memory.

    dispatch.py            the choice of the implementation on a device, with its reason
    attention_plan.py      the blocks, tiles and on-chip memory of a call, and the arguments of all kernels
    attention.py           fused attention with its gradient, over a mesh
    attention_tpu.py       its TPU kernels
    attention_gpu.py       its GPU kernels
    residual_norm.py       the fused residual norm with its gradient, over a mesh
    residual_norm_tpu.py   the TPU kernels of the residual norm
    agreement.py           compares each kernel with the plain path on the device at hand
    first_contact.py       does so once for each kind of chip and version of JAX, and remembers the verdict
"""
