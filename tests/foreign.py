"""Environment variables of the user, which do not affect the tests."""

from __future__ import annotations

from collections.abc import MutableMapping

FOREIGN = (
    *("BERT_JAX_", "JAX_", "HF_", "HUGGINGFACE_", "TFDS_", "XDG_", "MPL", "WANDB_", "MLFLOW_", "GOOGLE_", "STORAGE_EMULATOR"),
    *("TPU_", "LIBTPU_", "CLOUD_TPU_", "MEGASCALE_", "SKYPILOT_", "SLURM_", "OMPI_", "WORKER_ID"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
"""How their names begin, in capitals. The second line has those of a machine in a cluster; a proxy would get the requests to
the bucket of the tests."""
KEPT = ("BERT_JAX_PEER_PYTHON", "TPU_SKIP_MDS_QUERY")


def remove_foreign(environment: MutableMapping[str, str]) -> None:
    """Removes the user's variables."""
    for name in [name for name in environment if name.upper().startswith(FOREIGN) and name not in KEPT]:
        del environment[name]
