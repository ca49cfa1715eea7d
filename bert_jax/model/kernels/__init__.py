"""Pallas kernels: fused attention and the residual with its LayerNorm.

In: the arrays of `attention.py` and `residual_norm.py`. Out: the same values, without length x length arrays in memory.

    dispatch.py            which implementation runs on a device, and why
    attention_plan.py      blocks, tiles and on-chip memory of a call
    attention.py           fused attention with its gradient, over a mesh
    attention_tpu.py       its TPU kernels
    attention_gpu.py       its GPU kernels
    residual_norm.py       the fused residual norm with its gradient, over a mesh
    residual_norm_tpu.py   the TPU kernels of the residual norm
"""
