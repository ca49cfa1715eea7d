"""The command `attention`: shows the attention of every head for a text or a pair of texts, or for a source and its
translation."""

from __future__ import annotations

import argparse
import itertools
import json
import unicodedata
from collections.abc import Sequence

import numpy as np

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.attention.figures import alignment_figure, head_figure, overview_figure
from bert_jax.analysis.attention.flags import PARTS, AttentionOptions
from bert_jax.analysis.attention.measure import (
    Alignment,
    Attention,
    TranslationAttention,
    attention_arrays,
    read_head,
)
from bert_jax.analysis.attention.page import attention_page
from bert_jax.analysis.command import load_analyser, open_folder, print_written
from bert_jax.analysis.folder import Folder
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.flags import read_options
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.fields import Field, Record
from bert_jax.prediction.streams import Records, read_texts

WIDEST = 100
"""The maximum number of columns of a matrix on the terminal."""
Head = tuple[int, int]
"""(layer, head), counted from 1."""


def run(flags: argparse.Namespace) -> int:
    """Writes the attention of every layer and head as a page, as JSON or as figures. Returns the exit status."""
    options = read_options(AttentionOptions, flags)
    texts = ["\t".join(flags.texts)] if len(flags.texts) == 2 else flags.texts
    records = read_texts(texts, flags.input, (Field("text"), Field("text_b", optional=True)), jsonl=flags.jsonl)
    names = ["attention.npz", "attention.html", "attention.json", "overview.png", *(f"head_{name}.png" for name in options.heads)]
    names += [f"{part}_{name}" for part in PARTS for name in names[3:]]
    folder = open_folder(flags, [*names, "alignment.png", "alignment.tsv", "alignment_weights.tsv"], [records.file])
    record = the_only(records)
    analyser = load_analyser(flags)
    text, second = record.values["text"], record.values["text_b"]
    if analyser.engine.config.translates:
        look_at_translation(flags, options, folder, analyser, text, second)
    else:
        for flag, value in (("part", ",".join(options.parts) or None), ("alignment-layer", options.alignment_layer)):
            if value is not None:
                raise UserError(
                    f"--{flag}={value} is for encoder-decoders, and {analyser.engine.name} has no decoder; leave it out"
                )
        config = analyser.engine.config
        chosen = [read_head(name, config.num_layers, config.num_heads) for name in options.heads]
        found = analyser.attention(text, second)
        write(flags.format, options, folder, [found], chosen, {"text": text, "text_b": second})
        print(f"{counted(len(found.rows.words), 'word')}, {counted(len(found.rows.tokens), 'piece')}, with [CLS] and [SEP]")
    print_written(folder)
    return 0


def look_at_translation(
    flags: argparse.Namespace, options: AttentionOptions, folder: Folder, analyser: Analyser, source: str, target: str | None
) -> None:
    """Writes and prints the attention of an encoder-decoder, and the alignment of the words."""
    config = analyser.engine.config
    parts, layer = options.parts or tuple(PARTS), options.alignment_layer
    if layer is not None and "cross" not in parts:
        raise UserError(f"--alignment-layer={layer} requires the part cross; give --part={','.join([*parts, 'cross'])}")
    if layer is not None and layer > config.decoder_layers:
        raise UserError(f"--alignment-layer={layer} does not exist: the decoder has layers 1 to {config.decoder_layers}")
    chosen = [_head_of_parts(name, parts, config) for name in options.heads]
    found = analyser.translation_attention(source, target)
    some = [found.part(name) for name in parts]
    alignment = None
    if "cross" in parts:
        every = found.alignments()
        alignment = every[layer - 1] if layer else max(every, key=lambda each: each.sharpness)
        _write_alignments(folder, found, every, alignment)
    facts: JsonObject = {"source": source, "target": found.target, "translated": found.is_translated}
    write(flags.format, options, folder, some, chosen, facts | ({"alignment": _as_json(found, alignment)} if alignment else {}))
    of_target = "target, translated by beam search" if found.is_translated else "target"
    for name, text, words in (("source", source, found.cross.columns), (of_target, found.target, found.cross.rows)):
        print(f"{name}: {text}")
        print(f"  {counted(len(words.words), 'word')}, {counted(len(words.tokens), 'piece')}, including the end token")
    if alignment:
        which = "" if layer else ", whose weights are the largest"
        print(f"alignment: the mean of the heads of layer {alignment.layer} of {config.decoder_layers}{which}")
        _print_alignment(found, alignment)


def write(
    formats: Sequence[str],
    options: AttentionOptions,
    folder: Folder,
    parts: Sequence[Attention],
    heads: Sequence[Head],
    facts: JsonObject,
) -> None:
    """Writes the attention of the parts of a model as arrays and in the `formats` of --format. `facts` are additional fields of
    the JSON file."""
    folder.arrays("attention.npz", **attention_arrays(parts))
    if "html" in formats:
        folder.write("attention.html", attention_page(parts, "{}-{}".format(*heads[0]) if heads else None).encode())
    if "json" in formats:
        content: JsonObject = {"model": parts[0].model, "unit": "words" if options.in_words else "pieces", **facts}
        content["attention"] = {each.part or "encoder": _matrices(each, heads, options.in_words) for each in parts}
        folder.write("attention.json", json.dumps(content, ensure_ascii=False).encode())
    for each in parts if folder.formats else ():
        prefix = f"{each.part}_" if each.part else ""
        folder.figure(f"{prefix}overview.png", overview_figure(each, in_words=options.in_words))
        for layer, head in heads:
            folder.figure(f"{prefix}head_{layer}-{head}.png", head_figure(each, layer, head, in_words=options.in_words))


def _head_of_parts(name: str, parts: Sequence[str], config: ModelConfig) -> Head:
    """Returns the (layer, head) of the head `name`. Raises UserError if one of the `parts` has no such head."""
    layers = {part: config.num_layers if part == "encoder" else config.decoder_layers for part in parts}
    first = min(parts, key=lambda part: layers[part])
    try:
        return read_head(name, layers[first], config.num_heads, f"the {'encoder' if first == 'encoder' else 'decoder'}")
    except UserError as error:
        others = [part for part in parts if layers[part] > layers[first]]
        try:
            read_head(name, max(layers.values()), config.num_heads)
        except UserError:
            raise error from None
        raise UserError(f"{error}; or choose --part={','.join(others)}") from error


def _matrices(found: Attention, heads: Sequence[Head], in_words: bool) -> JsonObject:
    """Returns the weights of the named heads, or of all heads if none is named, with the labels of rows and columns."""
    weights = found.weights(in_words)
    layers, count = weights.shape[:2]
    every = heads or [*itertools.product(range(1, layers + 1), range(1, count + 1))]
    matrices = {f"{layer}-{head}": _rounded(weights.values[layer - 1, head - 1]) for layer, head in every}
    return {"rows": [*found.rows.labels(in_words)], "columns": [*found.columns.labels(in_words)], "heads": matrices}


def _rounded(weights: np.ndarray) -> list[list[float]]:
    """Returns the weights rounded to the digits of float32."""
    return [[round(float(x), 7) for x in row] for row in weights]


def _as_json(found: TranslationAttention, alignment: Alignment) -> JsonObject:
    words = [
        {"target": found.cross.rows.words[i], "source": found.cross.columns.words[j], "target_word": i, "source_word": j,
         "weight": round(float(alignment.weights.values[i, j]), 7)}
        for i, j in alignment.pairs
    ]  # fmt: skip
    return {"layer": alignment.layer, "words": words}


def _write_alignments(folder: Folder, found: TranslationAttention, every: Sequence[Alignment], chosen: Alignment) -> None:
    """Writes the alignments of all layers as a table, and the weights of the chosen layer as a table and a figure."""
    rows, columns = found.cross.rows.words, found.cross.columns.words
    lines = ((each.layer, i, rows[i], j, columns[j], each.weights.values[i, j]) for each in every for i, j in each.pairs)
    folder.table("alignment.tsv", ("layer", "target_word", "target", "source_word", "source", "weight"), lines)
    matrix = ((word, *weights) for word, weights in zip(rows, chosen.weights.values, strict=True))
    folder.table("alignment_weights.tsv", ("target", *columns), matrix)
    if folder.formats:
        folder.figure("alignment.png", alignment_figure(found, chosen))


def _print_alignment(found: TranslationAttention, alignment: Alignment) -> None:
    """Prints each word of the target with its source word. Also prints the weights in hundredths if they fit into the line."""
    rows, columns = found.cross.rows.words, found.cross.columns.words
    first = max(map(_width, rows))
    aligned = max(_width(columns[j]) for _, j in alignment.pairs)
    sizes = [max(2, _width(word)) for word in columns]
    fits = first + aligned + 11 + sum(size + 1 for size in sizes) <= WIDEST
    if fits:
        names = (_padded(word, n, ">") for word, n in zip(columns, sizes, strict=True))
        print(f"{' ' * (first + aligned + 12)}{' '.join(names)}")
    for i, j in alignment.pairs:
        weights = alignment.weights.values[i]
        line = f"  {_padded(rows[i], first)}  {_padded(columns[j], aligned)}  {weights[j]:.2f}"
        if fits:
            line += "  " + " ".join(f"{100 * weight:>{n}.0f}" for weight, n in zip(weights, sizes, strict=True))
        print(line)


def _width(text: str) -> int:
    """Returns the number of columns that a text takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter) for letter in text)


def _padded(text: str, width: int, side: str = "<") -> str:
    spaces = " " * (width - _width(text))
    return text + spaces if side == "<" else spaces + text


def the_only(records: Records) -> Record:
    """Returns the only record. Raises UserError if there is no record, if there are several, or if the record cannot be
    read."""
    found = [*itertools.islice(records, 2)]
    if not found:
        raise UserError("there is no text; give one text, or two as a pair")
    if len(found) > 1:
        raise UserError("there are several texts, but a page shows only one; give one text, or two arguments as a pair")
    if found[0].problem:
        raise UserError(f"{found[0].place}{found[0].problem}")
    return found[0]
