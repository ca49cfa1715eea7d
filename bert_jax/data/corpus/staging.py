"""A corpus in a bucket: staged to the local disk, verified by its checksums, and kept for the next start."""

from __future__ import annotations

import pathlib

from bert_jax.data.corpus.integrity import MANIFEST, CorruptedCorpus
from bert_jax.data.corpus.verification import verify
from bert_jax.errors import UserError
from bert_jax.storage.fetching import copy_place, fetch, forget, staging
from bert_jax.storage.objects import listed
from bert_jax.storage.paths import checked, is_remote

KEY = "config.corpus.directory"


def staged(directory: str | pathlib.Path, name: str = KEY) -> pathlib.Path:
    """The local directory of a corpus: `directory` itself, or its copy if it lies in a bucket; `name` is the flag or key.

    A copy of which anything has changed is verified at once, another one as any corpus is (`verification`). Raises UserError
    where there is no corpus, where it does not fit on the disk, and where an object is missing or has changed since it was built.
    """
    text = checked(str(directory), name)
    if not is_remote(text):
        return pathlib.Path(text)
    with staging():
        return _copied(text, name)


def _copied(text: str, name: str) -> pathlib.Path:
    objects = listed(text)
    if MANIFEST not in objects:
        raise UserError(
            f"{name}={text} is no corpus: the bucket has no {MANIFEST} there; build one with python -m bert_jax.corpus "
            f"--output={text} ..., or upload one: `gcloud storage rsync --recursive DIR {text}`"
        )
    copy = copy_place(text)
    if fetch(text, copy, objects):
        try:
            verify(copy)
        except CorruptedCorpus as error:
            forget(copy)
            reason = str(error).partition("; ")[0].removeprefix("corrupted corpus: ").replace(str(copy), text)
            raise UserError(
                f"the corpus {text} is damaged ({reason}); upload it again from where it was built: "
                f"`gcloud storage rsync --recursive --checksums-only DIR {text}`"
            ) from error
    return copy
