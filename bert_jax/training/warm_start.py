"""Loads the model that a run starts from (`config.init_from`), for pretraining and fine-tuning."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, NewParts, import_model, part_names, without_parts

log = logging.getLogger(__name__)


def load_start(init_from: str, *, init_new: str, init_drop: str = "", seed: int, vocab_multiple: int) -> Model:
    """Loads the model. Its parts `init_new` start from random weights drawn from the `seed`, and those in `init_drop` are left
    out. Raises UserError for other missing or unknown parts."""
    new = NewParts(part_names(init_new), seed=seed)
    return import_model(init_from, vocab_multiple=vocab_multiple, new=new, drop=part_names(init_drop))


def trained_parts(
    model: Model,
    init_from: str,
    *,
    trained: Collection[str],
    needed: Sequence[str],
    init_new: str,
    why_needed: str = "",
    why_unused: str,
) -> Model:
    """`model` with the parts that a run has, `trained`; others are left out, which is logged with the reason `why_unused`.

    Raises UserError if one of the `needed` parts is neither there nor in `init_new`; `why_needed` continues that sentence.
    """
    if absent := [part for part in needed if part not in model.params]:
        them = "them" if len(absent) > 1 else "it"
        raise UserError(
            f"config.init_from={init_from} has no {' and no '.join(absent)}{why_needed}; to start {them} from random "
            f"weights, give --config.init_new={','.join((*part_names(init_new), *absent))}"
        )
    unused = [part for part in model.parts if part not in trained]
    if unused:
        log.info("%s, left out: %s", why_unused, ", ".join(unused))
    return without_parts(model, unused)


def same_vocabulary(one: VocabularyInfo, other: VocabularyInfo) -> bool:
    """Returns whether two models read a text as the same tokens."""
    return (one.sha256, one.lowercase) == (other.sha256, other.lowercase)
