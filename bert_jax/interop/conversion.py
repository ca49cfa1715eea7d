"""Implements the steps of `convert`. Reads a model in any format, makes the changes that the flags request, writes the model,
and describes each step."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.data.corpus.hub import find_vocabulary, is_hub_name
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, aside
from bert_jax.interface.words import byte_unit, counted
from bert_jax.interop import NEW_POSITIONS, PARTS, TEXT_POOLINGS
from bert_jax.interop.card import BEFORE_CHANGES, model_card, read_training
from bert_jax.interop.directory import check_replaceable, exported_formats
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.electra import DISCRIMINATOR
from bert_jax.interop.families.family import export_family
from bert_jax.interop.families.marian import MARIAN
from bert_jax.interop.huggingface import (
    Model,
    NewParts,
    check_parts,
    export_model,
    import_model,
    labels_needed,
    with_new_parts,
    without_parts,
)
from bert_jax.interop.locate import local_model, refuse_file
from bert_jax.interop.sentence_transformers import TextVectors
from bert_jax.interop.stablehlo import export_stablehlo, natural_function, parts_used
from bert_jax.interop.surgery import (
    extended,
    find_sources,
    read_tokens,
    with_layers,
    with_positions,
    with_rotary_theta,
    with_token_types,
    with_vocabulary,
    with_window,
)
from bert_jax.interop.tensor_bundle import index_path
from bert_jax.interop.tensorflow import export_tf1, import_tf1
from bert_jax.interop.weights import weights_file
from bert_jax.interop.word2vec import export_word2vec, find_vectors, import_word2vec
from bert_jax.model import ENCODERS
from bert_jax.model.config import Architecture
from bert_jax.model.heads import HEAD_PARTS, head_class
from bert_jax.model.heads.head import TaskHead
from bert_jax.storage.objects import listed
from bert_jax.storage.paths import checked, is_remote


def load_model(path: str | os.PathLike[str]) -> Model:
    """Returns the model at `path`: a Hugging Face directory, the workdir of a run, a name on the hub, a checkpoint of the
    original BERT, or word vectors.

    If a checkpoint of the original BERT only states "gelu", the exact form is assumed, and `Model.notes` reports this.
    """
    path = local_model(path)
    if find_vectors(pathlib.Path(path)):
        return import_word2vec(pathlib.Path(path))
    if _is_tf1(pathlib.Path(path)):
        return _read_tf1(os.fspath(path))
    refuse_file(pathlib.Path(path))
    return import_model(path)


def read(path: str, flags: argparse.Namespace) -> Model:
    """Reads the model at `path`. Leaves out the parts of --drop, and adds the parts of --new with random weights."""
    path = os.fspath(local_model(path))
    new = NewParts(flags.new, _new_head(flags), flags.seed)
    lowercase = None if flags.replace_vocab else flags.lowercase
    if flags.vocab and _is_tf1(pathlib.Path(path)):
        raise UserError(
            f"--vocab={flags.vocab}: a checkpoint of the original BERT needs the vocabulary in its own directory; copy the "
            "vocabulary there"
        )
    vocabulary = None if flags.vocab is None else find_vocabulary(flags.vocab)
    if flags.activation and not _is_tf1(pathlib.Path(path)):
        raise UserError(f"--activation={flags.activation} is for checkpoints of the original BERT; leave it out for {path}")
    if find_vectors(pathlib.Path(path)):
        if unknown := [what for what in flags.drop if what not in PARTS]:
            raise UserError(f"--drop={unknown[0]}: word vectors have no such part; leave it out")
        model = import_word2vec(pathlib.Path(path), vocabulary=vocabulary, lowercase=lowercase)
        return with_new_parts(model, new) if flags.new else model
    if not _is_tf1(pathlib.Path(path)):
        refuse_file(pathlib.Path(path))
        labels = None if new.head else flags.labels  # --labels is then for the model's own head
        model = import_model(path, new=new, drop=flags.drop, vocabulary=vocabulary, lowercase=lowercase, labels=labels)
        family = export_family(model.config)
        carried = sorted(set(model.other_fields) - {*family.names, *family.fixed})
        notes = (f"fields of config.json that bert_jax does not use: {', '.join(carried)}",) if carried else ()
        return dataclasses.replace(model, notes=model.notes + notes)
    check_parts(flags.new)
    dropped = {*flags.drop, *flags.new}
    model = _read_tf1(path, drop=dropped, activation=flags.activation, lowercase=lowercase)
    return with_new_parts(model, new) if flags.new else model


def _read_tf1(path: str, **options: Any) -> Model:
    """Loads a checkpoint of the original BERT. `options` are passed to `import_tf1`."""
    params, config, tokenizer, found = import_tf1(path, **options)
    return Model(
        params=params,
        config=config,
        tokenizer=tokenizer,
        head=found.head,
        other_fields=found.other_fields,
        source=path,
        notes=found.messages,
    )


def model_lines(model: Model, new: Sequence[str] = ()) -> list[str]:
    """Returns output lines that describe `model` as it was read. `model` already contains the `new` parts, but the lines leave
    them out."""
    config, words = model.config, model.tokenizer.vocabulary
    read = {part: tree for part, tree in model.params.items() if part not in new}
    parts = [part for part in ("embeddings", "encoder", *model.parts) if part in read]
    casing = "lower-cased" if words.lowercase else "cased"
    other = "" if config.positions == Architecture.positions else f" ({config.positions})"
    reads = "" if config.direction == "both" else ", left to right"
    return [
        f"{model.source}: {dataclasses.replace(model, params=read).counts.in_words}",
        *part_lines(model, [*parts, *([DISCRIMINATOR] if model.discriminator else [])]),
        config.in_words
        if config.translates or not config.has_attention
        else f"{config.in_words}, {counted(config.max_position, 'position')}{other}, "
        f"{counted(config.type_vocab_size, 'token type')}, activation {config.activation}{reads}",
        f"vocabulary: {counted(words.size, 'piece')} ({words.kind}, {casing}, sha256 {words.sha256[:12]}...)",
    ]


def part_lines(model: Model, parts: Sequence[str]) -> list[str]:
    """Returns output lines with the names of `parts`. If the task head is one of the parts, the lines also describe the
    head."""
    if not parts:
        return []
    head = model.head
    if head is None or head.subtree not in parts:
        return [f"parts: {', '.join(parts)}"]
    outputs = f"labels {', '.join(head.labels)}" if head.labels else f"{counted(head.num_outputs, 'output')} without names"
    return [f"parts: {', '.join(parts)}", f"{head.subtree}: {head.problem}, {outputs}"]


def changed(model: Model, flags: argparse.Namespace) -> tuple[Model, list[str]]:
    """Makes the changes that the flags request. Returns (the changed model, output lines that describe the changes)."""
    notes, old = [], model.config
    keep = flags.keep_layers
    if flags.layers:
        if flags.layers > old.num_layers:
            raise UserError(
                f"--layers={flags.layers} is too many: the model has {counted(old.num_layers, 'layer')}, and layers cannot "
                "be added"
            )
        keep = list(range(flags.layers))
    if keep is not None:
        model = with_layers(model, keep)
        notes.append(f"layers: {old.num_layers} -> {len(keep)} (kept: {', '.join(map(str, keep))})")
    if flags.new_positions and not (old.kind.has_positions and old.positions_kind.is_learned):
        are = f"this model has {old.positions} ones" if old.kind.has_positions else f"a {old.encoder} model has none"
        raise UserError(f"--new-positions is for learned positions, but {are}; leave the flag out")
    if flags.token_types and not old.kind.has_positions:
        raise UserError(f"--token-types={flags.token_types}: a {old.encoder} model reads no token types; leave the flag out")
    if flags.max_position and not old.kind.has_positions:
        model = with_positions(model, flags.max_position)
        notes.append(f"longest text: {old.max_position:,} -> {counted(flags.max_position, 'token')}")
    elif flags.max_position:
        model = with_positions(model, flags.max_position, flags.new_positions or NEW_POSITIONS[0], flags.seed)
        kind = "position table" if old.positions_kind.has_rows else "positions"
        added = flags.new_positions or (NEW_POSITIONS[0] if old.positions_kind.is_learned else old.positions)
        grown = f" (new rows: {added})" if flags.max_position > old.max_position and kind == "position table" else ""
        unit = "row" if kind == "position table" else "token"
        notes.append(f"{kind}: {old.max_position:,} -> {counted(flags.max_position, unit)}{grown}")
        if model.vectors and model.vectors.longest and model.vectors.longest < flags.max_position:
            notes.append(
                f"texts of sentence-transformers are still cut at {counted(model.vectors.longest, 'token')}; to change this, set "
                "max_seq_length in sentence_bert_config.json"
            )
    if flags.rope_theta:
        model = with_rotary_theta(model, *flags.rope_theta)
        bases = [f"{x:,.0f}" for x in (model.config.rotary_theta, model.config.sliding_rotary_theta) if x is not None]
        notes.append(
            f"base of rotary positions: {' in full layers, '.join(bases)}{' in sliding layers' if len(bases) > 1 else ''}"
        )
    if flags.window:
        model = with_window(model, flags.window)
        notes.append(f"window of sliding layers: {2 * old.sliding_radius:,} -> {counted(flags.window, 'token')}")
    if flags.token_types:
        model = with_token_types(model, flags.token_types)
        grown = " (new types: copies of type 0)" if flags.token_types > old.type_vocab_size else ""
        notes.append(f"token types: {old.type_vocab_size} -> {flags.token_types}{grown}")
    if flags.replace_vocab:
        tokenizer = load_tokenizer(find_vocabulary(flags.replace_vocab), lowercase=flags.lowercase)
        model, note = _with_words(model, tokenizer)
        notes += [note, *tokenizer.notes]
    if flags.add_tokens:
        tokens = read_tokens(pathlib.Path(flags.add_tokens))
        there = set(model.tokenizer.pieces)
        missing = [token for token in tokens if token not in there]
        model, note = _with_words(model, extended(model.tokenizer, missing))
        notes += [note, f"tokens that the vocabulary already had: {len(tokens) - len(missing):,} of {len(tokens):,}"]
    if flags.pooling or flags.normalise:
        if model.head is not None:
            raise UserError(
                f"--pooling does not apply to {model.source}, because its {model.head.subtree} returns labels; to export "
                "text vectors, remove the head with --drop"
            )
        if export_family(model.config).model_type in ("bert_jax", *ENCODERS):
            raise UserError(
                "--pooling and --normalise are for sentence-transformers, but no class of transformers can load "
                f"{model.source}; leave the two flags out here, and pass them to `predict embed`"
            )
        before = model.vectors or TextVectors(TEXT_POOLINGS[0])
        pooling = flags.pooling or before.pooling
        model = dataclasses.replace(model, vectors=TextVectors(pooling, flags.normalise or before.normalise, before.longest))
        notes.append(f"vectors of texts: {pooling}{', scaled to length 1' if model.vectors and model.vectors.normalise else ''}")
    if (flags.labels or flags.problem) and _new_head(flags) is None:
        model = _relabelled(model, flags)
        notes.append(f"{model.head.subtree if model.head else 'head'}: labels and problem replaced according to the flags")
    return model, notes


def written(model: Model, flags: argparse.Namespace, changes: Sequence[str] = ()) -> list[str]:
    """Writes `model` and returns output lines that describe the files. The model card lists the `changes`. Raises UserError if
    the format cannot hold a part of the model."""
    target, notes = pathlib.Path(flags.to), list[str]()
    if model.discriminator and not (model.is_electra and target_form(flags) == "huggingface"):
        model = dataclasses.replace(model, discriminator=None)
        notes.append(f"{DISCRIMINATOR} is not exported")
    card = _converted_card(model, flags, changes)
    if flags.format in ("huggingface", "bert_jax"):
        if flags.format == "huggingface":
            _check_marian(model)
        dtype = flags.dtype or "float32"
        _check_range(model, dtype)
        export_model(target, model, dtype=dtype, card=card)
        notes.append(f"weights in {dtype}")
    elif flags.format == "word2vec":
        export_word2vec(target, model, card=card)
        notes += [f"{part} is not exported" for part in model.parts]
        model = without_parts(model, model.parts)
    elif flags.format == "tf1":
        _check_tf1(model)
        export_tf1(
            target, model.params, model.config, model.tokenizer, head=model.head, other_fields=model.other_fields, card=card
        )
    else:
        function = flags.function or natural_function(model)
        lost = sorted(set(model.parts) - set(parts_used(model, function)))
        if lost and not flags.function:
            raise UserError(
                f"the function {function} does not use {', '.join(lost)}; confirm with --function={function} or "
                f"--drop={','.join(lost)}"
            )
        model = without_parts(model, lost)
        signature = export_stablehlo(
            target,
            model,
            function=function,
            length=flags.length,
            platforms=flags.platforms or ("cpu", "cuda", "tpu"),
            card=card,
        )
        notes.append(f"function: {function}, for the platforms {', '.join(signature['platforms'])}")
        notes += [f"{kind} {x['name']} {x['dtype']} {_shape(x)}" for kind, x in _arrays(signature)]
        notes += [f"{part} is not exported" for part in lost]
    size = sum(path.stat().st_size for path in target.iterdir() if path.is_file())
    files = ", ".join(sorted(path.name for path in target.iterdir()))
    scale, unit = byte_unit(size)
    summary = f"{target} (format {flags.format}): {model.counts.in_words}, {size / scale:,.1f} {unit}"
    return [summary, f"files: {files}", *notes]


def _converted_card(model: Model, flags: argparse.Namespace, changes: Sequence[str]) -> str:
    """Returns the card of a converted model. If somebody has written or edited the source's card, this card is kept. Otherwise, a
    new card is made with the training facts of the source's card. If there are `changes`, the heading of the scores says that
    they are from before the changes."""
    training, text = read_training(pathlib.Path(model.source))
    if text:
        return text
    of_hub = _is_of_hub(flags.source)
    how = f"Converted from {flags.source if of_hub else pathlib.PurePath(flags.source).name}{': ' if changes else ''}"
    training = dataclasses.replace(
        training,
        changes=(*training.changes, f"{how}{'; '.join(changes)}."),
        scored=BEFORE_CHANGES if changes else training.scored,
        base_model=training.base_model or (flags.source if of_hub else ""),
    )
    return model_card(model, training, target_form(flags))


def _arrays(signature: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    yield from (("input", x) for x in signature["inputs"])
    yield from (("output", {"name": name, **x}) for name, x in signature["outputs"].items())


def _shape(array: JsonObject) -> str:
    return f"[{', '.join(map(str, array['shape']))}]"


def target_form(flags: argparse.Namespace) -> str:
    """Returns the key of FORMATS for --format. `bert_jax` has the files of `huggingface`."""
    return "huggingface" if flags.format == "bert_jax" else str(flags.format)


def check_target(flags: argparse.Namespace) -> None:
    """Raises UserError if the output directory is the current directory, contains it, or has files that are not from an export
    of this package in the same format. The export checks the files again, but only after a model was downloaded or restored."""
    target = pathlib.Path(flags.to)
    if pathlib.Path.cwd().is_relative_to(os.path.realpath(target)):  # the user's shell would remain in the replaced directory
        raise UserError(
            f"--to={flags.to} is the current directory or a directory above it, and would be replaced; name another directory"
        )
    # the local copy of a directory in a bucket lacks some of its files, such as weights
    if is_remote(flags.remote) and not exported_formats(target) and (files := sorted(listed(flags.remote))):
        raise UserError(
            f"--to={flags.remote} holds files that bert_jax did not export ({files[0]}), so it is not overwritten; name another "
            "directory, or remove this one if its upload was interrupted"
        )
    check_replaceable(target, target_form(flags), f"--to={flags.remote}")


def check_words(flags: argparse.Namespace) -> None:
    """Raises UserError if the file of --add-tokens, or a vocabulary, does not exist."""
    if flags.add_tokens:
        read_tokens(pathlib.Path(flags.add_tokens))
    for name in filter(None, (flags.vocab, flags.replace_vocab)):
        find_vocabulary(name)


def check_sources(flags: argparse.Namespace) -> None:
    """Raises UserError if the output directory is one of the sources, as far as the paths show this. `read_all` compares the
    output directory with the local directories that were read, such as the model of a run. It cannot do this if a source is in a
    bucket, or if its weights come from a checkpoint, because both are read from a temporary copy. A name on the hub is not a
    path, so the output directory may have the same name."""
    of_checkpoint = flags.step is not None or flags.last is not None
    for path in (flags.source, *flags.average):
        source = checked(path, "--from")
        if _is_of_hub(source):
            continue
        near = [source, f"{source}/model"]
        if is_remote(source):
            same = flags.remote in (*near, source.rpartition("/")[0])  # the last is the directory of a checkpoint's files
        else:
            place = pathlib.Path(source)
            near = near if of_checkpoint else [str(place.parent if _is_file_or_prefix(place) else place)]
            same = os.path.realpath(flags.remote) in map(os.path.realpath, near)
        if same:
            raise UserError(f"--to={flags.remote} is the directory of the source {path}; name another directory")


def read_all(sources: Sequence[str], flags: argparse.Namespace) -> Iterator[Model]:
    """Yields the models of `sources`, with one in memory at a time, so that averaging many models needs little memory. Raises
    UserError if the output directory is one of the sources. Also raises UserError if a head reads the pooler and the model has
    no pooler."""
    target = os.path.realpath(flags.to)
    for path in sources:
        model = read(path, flags)
        source = pathlib.Path(model.source)
        if target == os.path.realpath(source.parent if _is_file_or_prefix(source) else source):
            raise UserError(f"--to={flags.to} is the directory of the source {path}; name another directory")
        reading = ["nsp_head", *([model.head.subtree] if model.head and model.head.has_pooler(model.config) else [])]
        lacking = [part for part in reading if part in model.params and "pooler" not in model.params]
        if lacking:
            remedy = f"--new={','.join(('pooler', *flags.new))}"
            if not set(lacking) & set(flags.new):
                remedy = f"--drop={','.join(lacking)} or {remedy}"
            raise UserError(f"{' and '.join(lacking)} reads the pooler, but the model has none; add {remedy}")
        yield model


def _is_file_or_prefix(source: pathlib.Path) -> bool:
    """Returns whether `source` is a file, or the common prefix of the files of a checkpoint."""
    return source.is_file() or (bool(source.name) and index_path(source).is_file())


def _is_of_hub(source: str) -> bool:
    """Returns whether `source` is the name of a model on the hub, not a path or the common prefix of a checkpoint's files."""
    return is_hub_name(source) and not _is_file_or_prefix(pathlib.Path(source))


def _is_tf1(path: pathlib.Path) -> bool:
    """Returns whether `path` is a checkpoint of the original BERT. Such a path has the files or the configuration of a
    TensorFlow checkpoint, and no weights in another format."""
    if path.name and not path.exists() and aside(path).is_dir():  # an export was killed while it exchanged the directories
        path = aside(path)
    if path.is_dir():
        if weights_file(path) or weights_file(path / "model"):
            return False
        return (path / "bert_config.json").is_file() or any(path.glob("*.index"))
    return bool(path.name) and (path.suffix in (".index", ".meta") or path.with_name(f"{path.name}.index").is_file())


def _with_words(model: Model, tokenizer: Tokenizer) -> tuple[Model, str]:
    if model.config.spells_words:
        raise UserError(f"{model.source} computes word vectors from characters; train a model with the new vocabulary instead")
    words = find_sources(model.tokenizer, tokenizer)
    casing = "lower-cased" if tokenizer.vocabulary.lowercase else "cased"
    note = (
        f"vocabulary: {model.tokenizer.size:,} -> {counted(tokenizer.size, 'piece')} ({casing}); embeddings: {words.kept:,} "
        f"kept, {words.spelt + words.unknown:,} new (each the mean of its old pieces; {words.unknown:,} with unknown pieces), "
        f"{words.removed:,} removed"
    )
    return with_vocabulary(model, tokenizer, words), note


def _relabelled(model: Model, flags: argparse.Namespace) -> Model:
    if model.head is None:
        raise UserError(
            "--labels and --problem need a task head, but the model has none; add one with --new=sequence_head or "
            "--new=token_head"
        )
    if flags.problem and "problem" not in model.head.settings:
        raise UserError(f"--problem={flags.problem} is for a sequence head, not for a {model.head.kind} head; leave it out")
    if flags.labels and not model.head.has_labels:
        raise UserError(f"--labels={','.join(flags.labels)}: a {model.head.kind} head has no labels; leave them out")
    labels = flags.labels or model.head.labels
    if len(labels) != model.head.num_outputs:
        raise UserError(labels_needed(len(labels), model.head.subtree, model.head.num_outputs))
    head = dataclasses.replace(model.head, labels=tuple(labels), problem=flags.problem or model.head.problem)
    return dataclasses.replace(model, head=head)


def _new_head(flags: argparse.Namespace) -> TaskHead | None:
    """Returns the new task head that --new names, or None if --new names no task head. Also returns None if the head needs
    labels and --labels is not given, because the labels may then come from the model's own head."""
    kinds = [head_class(part.removesuffix("_head")) for part in flags.new if part in HEAD_PARTS]
    if not kinds or (kinds[0].has_labels and not flags.labels):
        return None
    return kinds[0](labels=tuple(flags.labels or ()), problem=flags.problem or "classification")


def _check_tf1(model: Model) -> None:
    """Raises UserError if `model` has properties that `export_tf1` cannot represent."""
    if model.config.encoder != "transformer":
        raise UserError(
            f"the format tf1 supports only BERT, but {model.source} is a {model.config.encoder} model; choose another --format"
        )
    if model.untrained:
        parts = ",".join(sorted(model.untrained))
        raise UserError(f"{parts} was never trained, but the format tf1 cannot record this; remove it with --drop={parts}")
    if (model.config.direction, model.config.positions) != ("both", "learned"):
        raise UserError(
            "the format tf1 supports only direction=both and positions=learned, but the model has "
            f"direction={model.config.direction} and positions={model.config.positions}; choose another --format"
        )
    if not BERT.represents(model.config):
        written = BERT.read(BERT.write(model.config, {}, {}), "")
        values = ((field.name, written.get(field.name, field.default)) for field in dataclasses.fields(Architecture))
        name, only = next((name, only) for name, only in values if getattr(model.config, name) != only)
        has = f"{name}={getattr(model.config, name)}"
        raise UserError(f"the format tf1 supports only {name}={only}, but the model has {has}; choose another --format")
    if model.tokenizer.added:
        raise UserError(f"the format tf1 has no added tokens such as {model.tokenizer.added[0]}; choose another --format")


def _check_marian(model: Model) -> None:
    """Raises UserError if `model` is an encoder-decoder that transformers' Marian does not support. Marian is the only class of
    encoder-decoders that can be exported."""
    if model.config.translates and export_family(model.config) is not MARIAN:
        raise UserError(
            f"transformers' Marian does not support {MARIAN.lacks(model.config)}, so this model cannot be written for "
            "transformers; choose --format=bert_jax, which this package can read"
        )


def _check_range(model: Model, dtype: str) -> None:
    """Raises UserError if `dtype` is float16 and a weight exceeds 65,504, since this weight would become infinite."""
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves((model.params, model.discriminator)))
    if dtype == "float16" and largest > float(np.finfo(np.float16).max):
        raise UserError(f"a weight is {largest:,.0f}, above float16's maximum of 65,504; choose --dtype=bfloat16")
