"""BERT in JAX: pretraining from raw text, fine-tuning, and analysis, on one CPU, one GPU or a TPU pod.

Every command is a module: `python -m bert_jax.COMMAND --help`, or `tpu_scripts/run.sh COMMAND --help` from a fresh checkout.
"""

__version__ = "0.1.0"
