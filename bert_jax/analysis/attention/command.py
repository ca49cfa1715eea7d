"""The command `attention`: the attention of every head for one text or pair."""

from __future__ import annotations

import argparse
import itertools

from bert_jax.analysis.attention.figures import head_figure, overview_figure
from bert_jax.analysis.attention.measure import attention_arrays, read_head
from bert_jax.analysis.attention.page import attention_page
from bert_jax.analysis.command import load_analyser, open_folder, print_written
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.prediction.fields import Field, Record
from bert_jax.prediction.streams import Records, read_texts


def run(flags: argparse.Namespace) -> int:
    """Writes the attention of every layer and head as a page or as figures. Returns the exit status."""
    texts = ["\t".join(flags.texts)] if len(flags.texts) == 2 else flags.texts
    records = read_texts(texts, flags.input, (Field("text"), Field("text_b", optional=True)), jsonl=flags.jsonl)
    names = ["attention.npz", "attention.html", "overview.png", *(f"head_{name}.png" for name in flags.head)]
    folder = open_folder(flags, names, [records.file])
    record = the_only(records)
    analyser = load_analyser(flags)
    config = analyser.engine.config
    chosen = [read_head(name, config.num_layers, config.num_heads) for name in flags.head]
    found = analyser.attention(record.values["text"], record.values["text_b"])
    folder.arrays("attention.npz", **attention_arrays(found))
    if "html" in flags.format:
        folder.write("attention.html", attention_page(found, "{}-{}".format(*chosen[0]) if chosen else None).encode())
    if folder.formats:
        folder.figure("overview.png", overview_figure(found, in_words=not flags.pieces))
        for layer, head in chosen:
            folder.figure(f"head_{layer}-{head}.png", head_figure(found, layer, head, in_words=not flags.pieces))
    print(f"{counted(len(found.word_texts), 'word')}, {counted(len(found.tokens), 'piece')}, with [CLS] and [SEP]")
    print_written(folder)
    return 0


def the_only(records: Records) -> Record:
    """Returns the only record. Raises UserError if there are none or several, or if it cannot be read."""
    found = [*itertools.islice(records, 2)]
    if not found:
        raise UserError("there is no text; give one, or two as a pair")
    if len(found) > 1:
        raise UserError("there are several texts, and a page shows one; give one, or two arguments as a pair")
    if found[0].problem:
        raise UserError(f"{found[0].place}{found[0].problem}")
    return found[0]
