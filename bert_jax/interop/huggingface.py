"""Reads and writes Hugging Face model directories without PyTorch, like transformers' `from_pretrained`.

- `config.json`: the model configuration, the labels, and under "bert_jax" the vocabulary's hash and the exporter's own fields;
- `model.safetensors`: the tensors under transformers' names;
- `vocab.txt` (or `spiece.model`), `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import flax.linen as nn
import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict
from jaxtyping import PyTree

from bert_jax import __version__
from bert_jax.data.tokenizers.tokenizer import CONFIG_FILE as TOKENIZER_CONFIG
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.tokenizer_files import BACKENDS, vocabulary_files
from bert_jax.data.tokenizers.tokenizer_files import JSON_FILE as TOKENIZER_JSON
from bert_jax.errors import UserError, nearest
from bert_jax.files import Json, JsonObject, read_object, write_json
from bert_jax.interface.words import counted
from bert_jax.interop import DTYPES, PARTS, TEXT_POOLINGS
from bert_jax.interop.card import Training, model_card
from bert_jax.interop.directory import CONFIG, FORMATS, GENERATION, MODULES, OURS, TEXT_VECTORS, replaced_when_complete
from bert_jax.interop.families import READ_AS_BERT
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.electra import CLASS, DISCRIMINATOR, ELECTRA, HEAD, electra_tensors, read_discriminator
from bert_jax.interop.families.family import TOO_LARGE, Family, TokenId, export_family, family_named
from bert_jax.interop.huggingface_config import (
    HEAD_FIELDS,
    WRITER_FIELDS,
    architecture_from_json,
    architecture_name,
    config_from_json,
    config_to_json,
    head_from_json,
    head_to_json,
    own_fields,
    recorded,
    untrained_parts,
)
from bert_jax.interop.names import (
    OWN_PREFIX,
    REQUIRED_PARTS,
    axis_sizes,
    canonical_names,
    find_subtree,
    list_some,
    matching,
    params_from_tensors,
    reading_notes,
    rows,
    tensors_from_params,
    their_names,
)
from bert_jax.interop.weights import WEIGHTS, check_finite, read_weights, weights_file
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import HEAD_PARTS
from bert_jax.model.pretraining import (
    NEVER_TRAINED,
    ParameterCounts,
    abstract_parameters,
    initial_parameters,
    with_fixed_tables,
    word_head,
)

if TYPE_CHECKING:  # these modules are loaded only for models that need them
    from bert_jax.interop.sentence_transformers import TextVectors
    from bert_jax.model.heads.head import TaskHead

log = logging.getLogger(__name__)

FILES = FORMATS["huggingface"][1]
METADATA = {"format": "pt"}  # transformers 4 rejects a file whose metadata names no framework
ROLES = {"pad": "padding", "sep": "end token"}
"""The names of special tokens in messages, by role."""
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A model in memory, independent of the format that it was read from or is written to."""

    params: dict[str, PyTree[np.ndarray]]
    """The unboxed parameter tree as float32 numpy arrays, with the parts that the model has."""
    config: ModelConfig
    tokenizer: Tokenizer
    discriminator: PyTree[np.ndarray] | None = None
    """The head of a model that was pretrained to find replaced tokens."""
    head: TaskHead | None = None
    """The task head in `params`, if any."""
    of_pairs: bool | None = None
    """Whether a sequence head was trained on pairs of texts. None if this is unknown, or if the head was trained on both single
    texts and pairs."""
    columns: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)
    """Text field -> the name(s) of its column(s), if the head was trained on a user's table."""
    reading: JsonObject = dataclasses.field(default_factory=dict)
    """The settings with which the head's texts were read in training, if they are not the defaults: the `delimiter`, `quotes`,
    `separator`, column `sentence` and `first_choice` of a user's table, and the `length`, `doc_stride`, `max_question`,
    `max_answer`, `n_best`, `may_be_unanswerable` and tuned `no_answer_threshold` of a span task."""
    vectors: TextVectors | None = None
    """The settings of text vectors for sentence-transformers. None if the model states no pooling."""
    untrained: frozenset[str] = frozenset()
    """Parts that still have random initial weights and are not used for predictions."""
    other_fields: JsonObject = dataclasses.field(default_factory=dict)
    """Fields of config.json that this package does not use and writes unchanged to an export."""
    generation: JsonObject = dataclasses.field(default_factory=dict)
    """The settings with which transformers translates. They are the content of generation_config.json. If a translator has no
    such file, they come from config.json."""
    source: str = ""
    """The path or name that the model was read from, for messages."""
    notes: tuple[str, ...] = ()
    """Clauses for messages about assumed, renamed or ignored content of the source."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts other than embeddings and encoder, in the order of PARTS."""
        return tuple(part for part in PARTS if part in self.params)

    @property
    def is_electra(self) -> bool:
        """True if the model is exported as transformers' ElectraForPreTraining, i.e. if it is a BERT encoder with a
        `discriminator` and no other parts."""
        return self.discriminator is not None and not self.parts and export_family(self.config) is BERT

    @property
    def family(self) -> Family:
        """The family in whose format the model is exported."""
        return ELECTRA if self.is_electra else export_family(self.config)

    @property
    def architecture(self) -> str:
        """The class of the family for the model, without a task head that transformers has no class for."""
        if self.is_electra:
            return CLASS
        return architecture_name(self.params, self.head, self.config.direction, export_family(self.config))

    @property
    def counts(self) -> ParameterCounts:
        """The number of parameters that a file of this model holds. The padding rows of the vocabulary are not counted. If the
        first layer has no norm before its attention, the unused entry for this norm is not counted."""
        table = {row.ours: row for row in rows(self.config, self.head)}
        sizes, wanted = dict[str, int](), axis_sizes(self.config, self.head)
        for path, array in flatten_dict(self.params, sep="/").items():
            row = table.get(path)  # None if the settings of the head leave this parameter out
            kept = array[row.first :] if row and row.first else array
            sizes[path] = int(kept.size)
            for axis, letter in enumerate(row.our_axes.split() if row and not row.stacked else ()):
                if letter in "VW":
                    sizes[path] = sizes[path] // array.shape[axis] * wanted[letter]
        if self.is_electra:
            sizes |= {f"{DISCRIMINATOR}/{path}": int(x.size) for path, x in flatten_dict(self.discriminator, sep="/").items()}
        fixed = sum(size for path, size in sizes.items() if path in NEVER_TRAINED)
        return ParameterCounts(sum(sizes.values()) - fixed, fixed)


def export_model(
    directory: str | os.PathLike[str],
    model: Model,
    extra: Mapping[str, Json] | None = None,
    dtype: str = "float32",
    *,
    card: str = "",
) -> None:
    """Writes a model directory. An existing directory is replaced when the new one is complete.

    Every array of `model.params` must be whole on this process (not sharded). `extra` is stored under "bert_jax" in
    config.json, for example the step. `card` is the text of the model card. The default card does not describe the training.
    The transformers class in config.json depends on the model's heads. A task head without a transformers class is written with
    names of this package, which transformers ignores. Raises UserError if a value is not finite, and Unwritable if the
    directory cannot be written."""
    directory = pathlib.Path(directory)
    if dtype not in DTYPES:
        raise UserError(f"weights cannot be written with dtype {dtype!r}: {nearest(dtype, DTYPES)}")
    config, tokenizer = model.config, model.tokenizer
    check_vocabulary(tokenizer, config, model.source or str(directory))
    family, architecture = model.family, model.architecture
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "cls", "sep", "mask")}
    fields = config_to_json(
        config, architecture=architecture, ids=ids, head=model.head, other_fields=model.other_fields, family=family
    )
    fields["torch_dtype"] = dtype
    if config.direction == "left_to_right":  # transformers' `generate` then ends a text at the same point as ours
        fields |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    fields[OURS] = {"version": __version__, "vocabulary_sha256": tokenizer.vocabulary.sha256, **(extra or {})}
    if model.untrained:
        fields[OURS]["untrained"] = sorted(model.untrained)
    fields[OURS] |= own_fields(config, model.head)
    if model.head and model.of_pairs is not None and model.head.reads_pairs:
        fields[OURS]["of_pairs"] = model.of_pairs
    if model.head and model.columns:
        fields[OURS]["columns"] = dict(model.columns)
    if model.head and model.reading:
        fields[OURS]["reading"] = dict(model.reading)
    tensors = tensors_from_params(model.params, config, model.head)
    check_finite(
        {**tensors, **flatten_dict(model.discriminator or {}, sep=".")},
        f"nothing is written to {directory}: {{found}}; the model is unusable",
    )
    bias, read = family.untied_bias
    if not config.tied_decoder and bias in tensors:  # transformers reads this bias for an untied decoder
        tensors[read] = tensors[bias]
    # transformers accepts names with or without the prefix, but other loaders only accept names without it
    if model.is_electra:
        tensors = electra_tensors(tensors, model.discriminator, config)
    elif not family.classes[architecture]:
        tensors = {name.removeprefix(family.prefix): x for name, x in tensors.items()}
    if family.model_type == "bert_jax":
        tensors = {f"{OWN_PREFIX}{name}": x for name, x in tensors.items()}
        log.info("%s: no class of transformers supports this model, so only bert_jax can load it, not transformers", directory)
    elif family.model_type == "encoder_decoder":
        from bert_jax.interop.families.marian import MARIAN

        lacking = f"Marian does not support {MARIAN.lacks(config)}"
        log.info("%s: transformers' %s, so only bert_jax can load this model, not transformers", directory, lacking)
    tensors = {name: x.astype(np.dtype(dtype)) for name, x in tensors.items()} if dtype != "float32" else tensors
    card = card or model_card(model, Training())
    with replaced_when_complete(directory, "huggingface", card) as incomplete:
        write_json(incomplete / CONFIG, fields)
        if config.translates:
            from bert_jax.interop.families.marian import generation_settings

            write_json(incomplete / GENERATION, generation_settings(config, ids) | model.generation)
        tokenizer.save(incomplete)
        _adapt_tokenizer(incomplete, model)
        if model.vectors is not None and model.head is None:
            from bert_jax.interop.sentence_transformers import write_text_vectors

            write_text_vectors(incomplete, model.vectors, config)
        _save(tensors, incomplete / WEIGHTS)
        # safetensors makes the file readable only by its owner
        (incomplete / WEIGHTS).chmod((incomplete / CONFIG).stat().st_mode)


def _save(tensors: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """Writes a safetensors file. If the write fails, raises the original OSError, which safetensors hides in its own
    exception."""
    try:
        safetensors.numpy.save_file(dict(tensors), path, metadata=METADATA)
    except safetensors.SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


@dataclasses.dataclass(frozen=True)
class NewParts:
    """Parts of a model that get random weights, drawn as at the start of training."""

    names: Collection[str] = ()
    head: TaskHead | None = None
    """The new task head, if its part is among `names`."""
    seed: int = 0


def import_model(
    path: str | os.PathLike[str],
    *,
    vocab_multiple: int = 1,
    new: NewParts = NewParts(),
    drop: Collection[str] = (),
    vocabulary: str | os.PathLike[str] | None = None,
    lowercase: bool | None = None,
    labels: Sequence[str] | None = None,
) -> Model:
    """Reads a BERT from a Hugging Face directory, the workdir of a run, or the hub.

    Missing or unexpected parts are errors unless they are declared. The parts `new` get random weights. `drop` lists the parts
    and tensors to remove. Tensors are given by name, in which `*` is a wildcard. The word embeddings are padded to a multiple
    of `vocab_multiple` rows. A directory without a tokenizer needs a `vocabulary`. A directory whose files do not state the
    casing needs `lowercase`. `labels` replace the labels in config.json. Raises a UserError that lists every tensor that is
    missing, is unexpected or has another shape."""
    from bert_jax.interop.locate import find_model_directory

    check_parts(new.names)
    directory = find_model_directory(path)
    fields = read_model_config(directory)
    source = str(directory / CONFIG)
    config = dataclasses.replace(config_from_json(fields, source), vocab_multiple=vocab_multiple)
    tokenizer = load_tokenizer(pathlib.Path(vocabulary) if vocabulary else directory, lowercase=lowercase)
    check_vocabulary(tokenizer, config, str(directory))
    renamed = _renamed_pieces(fields, tokenizer, directory) if vocabulary else ()
    _check_recorded({} if renamed else recorded(fields), fields, export_family(config), tokenizer, str(directory))
    weights = weights_file(directory)
    if weights is None:
        raise UserError(f"{directory} holds no weights; copy the whole model")
    tensors = read_weights(weights)
    named = fields.get("model_type")
    family = family_named(named, source) if named in READ_AS_BERT else export_family(config)
    patterns = [what for what in drop if what not in PARTS]
    left_out = {name for pattern in patterns for name in matching(tensors, pattern, str(weights))}
    found = {name: x for name, x in tensors.items() if family is ELECTRA and name.startswith(HEAD)}
    tensors = {name: x for name, x in tensors.items() if name not in found}
    found = {name: x for name, x in found.items() if name not in left_out}
    discriminator = read_discriminator(found, config)
    names = canonical_names(tensors, config)
    architecture = architecture_from_json(fields, [names[name] for name in tensors if name not in left_out], source)
    if architecture == "MarianModel":
        raise UserError(
            f"{source}: a MarianModel has no output layer (lm_head), so it cannot translate; save the whole MarianMTModel instead"
        )
    own = _own_head(fields, architecture, source, labels, drop)
    expected = {name: row for row in rows(config, own) for name in their_names(row, config)}
    parts = {name: find_subtree(names[name], expected) for name in tensors}
    tensors = {name: x for name, x in tensors.items() if name not in left_out}
    emptied = {parts[name] for name in left_out & parts.keys()} - {parts[name] for name in tensors} - {*REQUIRED_PARTS}
    dropped = {*(what for what in drop if what in PARTS), *new.names, *emptied}
    needed = (word_head(config) if part == "mlm_head" else part for part in family.classes[architecture])
    required = {*needed, *_read_by(own, config)} - dropped
    if own is not None and own.subtree not in dropped:
        _check_outputs(own, config, tensors, names, str(weights), labels)
    params = params_from_tensors(tensors, config, str(weights), head=own, required=required, drop=dropped)
    notes = _config_notes(fields, family, architecture, own if own and own.subtree in params else None)
    notes += (f"dropped: {list_some(sorted(left_out))}",) if left_out else ()
    notes += (f"{HEAD.rstrip('.')}, the head of an {family.title}, was left out",) if found and not discriminator else ()
    untrained = untrained_parts(fields, source) & set(params)
    kept_head = own if own and own.subtree in params else None
    of_pairs = recorded(fields).get("of_pairs") if kept_head else None
    model = Model(
        params=params,
        config=config,
        tokenizer=tokenizer,
        discriminator=discriminator,
        head=kept_head,
        of_pairs=of_pairs if isinstance(of_pairs, bool) else None,
        columns=_columns(fields) if kept_head else {},
        reading=_reading(fields) if kept_head else {},
        vectors=(vectors := _text_vectors(directory, tokenizer)),
        untrained=untrained,
        other_fields=_other_fields(fields, family, kept_head, keep_vocabulary=not vocabulary),
        generation=_generation(directory, fields, config),
        source=str(directory),
        notes=tokenizer.notes
        + renamed
        + rows_without_pieces(tokenizer, config)
        + reading_notes(tensors, config, own, dropped)
        + notes
        + _files_left(directory, vectors),
    )
    if not new.names:
        return model
    head = new.head or (own if own and own.subtree in new.names else None)
    return with_new_parts(model, dataclasses.replace(new, head=head))


def _generation(directory: pathlib.Path, fields: JsonObject, config: ModelConfig) -> JsonObject:
    """Returns `Model.generation` of a model directory. `fields` are the content of config.json."""
    if (directory / GENERATION).is_file():
        return read_object(directory / GENERATION)
    if not config.translates:
        return {}
    from bert_jax.interop.families.marian import older_settings

    return older_settings(fields)


def _columns(fields: JsonObject) -> dict[str, str | Sequence[str]]:
    """Returns `Model.columns` as recorded in config.json. Entries with invalid values are left out."""
    stated = recorded(fields).get("columns")
    return {
        name: column
        for name, column in (stated.items() if isinstance(stated, dict) else ())
        if isinstance(column, str) or (isinstance(column, list) and column and all(isinstance(part, str) for part in column))
    }


def _reading(fields: JsonObject) -> JsonObject:
    """Returns `Model.reading` as recorded in config.json. Entries with invalid values are left out."""
    stated = recorded(fields).get("reading")
    valid: dict[str, Callable[[Json], bool]] = {
        "delimiter": lambda value: isinstance(value, str) and len(value) == 1,
        "quotes": lambda value: isinstance(value, bool),
        "separator": lambda value: isinstance(value, str) and value != "",
        "sentence": lambda value: isinstance(value, str) and value != "",
        "first_choice": lambda value: type(value) is int and 0 <= value < TOO_LARGE,
        **dict.fromkeys(
            ("length", "doc_stride", "max_question", "max_answer", "n_best"),
            lambda value: type(value) is int and 0 < value < TOO_LARGE,
        ),
        "may_be_unanswerable": lambda value: isinstance(value, bool),
        "no_answer_threshold": lambda value: (
            isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < TOO_LARGE
        ),
    }
    known = stated if isinstance(stated, dict) else {}
    return {name: known[name] for name, is_valid in valid.items() if name in known and is_valid(known[name])}


def with_new_parts(model: Model, new: NewParts) -> Model:
    """Adds the parts `new` with random weights, marked as untrained. Raises UserError if this kind of model cannot have one of
    the parts."""
    names, head, config = new.names, new.head, model.config
    pretrained, written = abstract_parameters(config), {row.subtree for row in rows(config)}
    # an MLM head without parameters has no rows
    possible = [part for part in PARTS if part in written or pretrained.get(part) == {}]
    if not config.cls_reads_text:
        possible = [part for part in possible if part not in ("pooler", "nsp_head")]
    kind = f"{'left-to-right ' * (config.direction == 'left_to_right')}{config.encoder} model"
    if unfit := [part for part in names if part not in (*REQUIRED_PARTS, *possible, *HEAD_PARTS)]:
        known = f"the parts of its pretraining are {', '.join(possible)}"
        raise UserError(f"{model.source} is a {kind}, which has no {unfit[0]}; {known}")
    labelled = [part for part in names if part in HEAD_PARTS]
    if labelled:
        if head is None or head.subtree != labelled[0]:
            raise UserError(f"a new {labelled[0]} needs labels; name the labels")
        if model.head is not None:
            raise UserError(f"{model.source} already has a {model.head.subtree}; to replace it with a new head, drop it first")
        model = with_classifier_layers(model, head)
        lacks = head.has_pooler(config) and "pooler" not in {*model.params, *names}
        unseen = head.reads_pooler and not config.cls_reads_text and config.classifier_pooling not in ("mean", "late")
        if lacks or unseen:
            remedy = f"a {kind} cannot {'have' if lacks else 'use'} a pooler; name a BERT that reads both sides of a token"
            if "pooling" in head.settings:
                pooling = "last_token" if config.direction == "left_to_right" else "concat"
                remedy += f", or fine-tune with config.head.pooling={pooling}, which reads other tokens"
            if "pooler" in possible:
                remedy = f"add a pooler with --new={','.join(('pooler', *names))}"
            reason = f"but {model.source} has no pooler" if lacks else f"but the [CLS] of {model.source} sees no text"
            raise UserError(f"a {head.subtree} reads the pooler, {reason}; {remedy}")

    added = _drawing(model.config, head if labelled else None, tuple(names))(jax.random.key(new.seed))
    return dataclasses.replace(
        model,
        params=model.params | with_fixed_tables(jax.tree.map(np.asarray, added), model.params),
        head=head if labelled else model.head,
        of_pairs=None if labelled else model.of_pairs,
        columns={} if labelled else model.columns,
        reading={} if labelled else model.reading,
        untrained=model.untrained | set(names),
        other_fields={k: v for k, v in model.other_fields.items() if not labelled or k not in HEAD_FIELDS},
    )


def with_classifier_layers(model: Model, head: TaskHead) -> Model:
    """Adds the layers before a classifier that `classifier_pooling` needs, if the model lacks them. As in transformers, these
    layers are copies of the dense layer and the norm in the MLM head."""
    config, words = model.config, model.params.get("mlm_head")
    begins = config.classifier_pooling != "pooler" and config.mlm_head == "bert" and bool(head.has_pooler(config))
    if not begins or words is None or "pooler" in model.params:
        return model
    copied = {"dense": words["transform"]} | ({"layer_norm": words["layer_norm"]} if "layer_norm" in words else {})
    return dataclasses.replace(model, params=model.params | {"pooler": copied})


@functools.cache
def _drawing(
    config: ModelConfig, head: TaskHead | None, parts: tuple[str, ...]
) -> Callable[[jax.Array], dict[str, PyTree[jax.Array]]]:
    """Returns a jitted function that draws the initial weights of `parts`, given a random key. jit removes the initialisation
    of all other parts."""

    def draw(key: jax.Array) -> dict[str, PyTree[jax.Array]]:
        parameters = {} if head is not None and parts == (head.subtree,) else initial_parameters(config, key)
        if head is not None:
            from bert_jax.model.heads.bert_with_head import initial_label_parameters  # pretraining does not load it

            parameters |= initial_label_parameters(config, head, key)
        return nn.unbox({part: parameters[part] for part in parts})

    return jax.jit(draw)


def without_parts(model: Model, drop: Collection[str]) -> Model:
    """Removes parts of `model`."""
    kept = {part: tree for part, tree in model.params.items() if part not in drop}
    head = model.head if model.head and model.head.subtree not in drop else None
    return dataclasses.replace(model, params=kept, head=head, untrained=model.untrained - set(drop))


def _own_head(
    fields: JsonObject, architecture: str, source: str, labels: Sequence[str] | None, drop: Collection[str]
) -> TaskHead | None:
    """Returns the task head that config.json describes. If `drop` contains the head, its labels need not be valid."""
    try:
        return head_from_json(fields, architecture, source, labels)
    except UserError:
        unlabelled = head_from_json(fields, architecture, source, ("A", "B"))
        if unlabelled is None or unlabelled.subtree not in drop:
            raise
        return unlabelled


def _check_outputs(
    head: TaskHead,
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    source: str,
    given: Sequence[str] | None,
) -> None:
    """Raises UserError if the number of outputs of a labelled head differs from the number of labels. The labels are `given`,
    or are read from config.json."""
    own = next(row.theirs for row in rows(config, head) if row.ours == f"{head.subtree}/dense/bias")
    module = own.removesuffix(".bias")
    bias = next((x for name, x in tensors.items() if names[name] == own), None)
    if head.has_labels and bias is not None and bias.ndim == 1 and len(bias) != head.num_outputs:
        if given:
            raise UserError(labels_needed(len(given), head.subtree, len(bias)))
        raise UserError(
            f"{source}: the {module} has {counted(len(bias), 'output')}, but config.json has "
            f"{counted(len(head.labels), 'label')}; name all {counted(len(bias), 'label')} with `convert --labels=A,B,...`, or "
            f"remove the head with `convert --drop={head.subtree}`"
        )


def labels_needed(given: int, part: str, outputs: int) -> str:
    """Returns the error message for a head whose number of `outputs` differs from the number of labels, `given`."""
    return f"the {part} needs {counted(outputs, 'label')}, one for each output, not {given}"


def _config_notes(fields: JsonObject, family: Family, architecture: str, head: TaskHead | None) -> tuple[str, ...]:
    """Returns clauses that report ignored entries of config.json, such as an unknown class, or a label2id that differs from
    id2label."""
    notes = []
    named = fields.get("architectures") or [] if family.table else []  # without a table, no class of transformers is read
    if isinstance(named, list) and fields.get("model_type") == family.model_type and architecture not in named and named:
        notes.append(f"the class {named[0]} in config.json is unknown, so the model was read as a {architecture}")
    own = {label: str(i) for i, label in enumerate(head.labels)} if head else {}
    stated = fields.get("label2id")
    if own and isinstance(stated, dict) and {label: str(i) for label, i in stated.items()} != own:
        notes.append("label2id of config.json was not used, because it differs from id2label")
    return tuple(notes)


def check_parts(new: Collection[str]) -> None:
    """Raises UserError if a part is unknown, or if there is more than one new task head."""
    for part in new:
        if part not in PARTS:
            raise UserError(f"a model has no part {part!r}; {nearest(part, PARTS)} (parts: {', '.join(PARTS)})")
    labelled = [part for part in new if part in HEAD_PARTS]
    if len(labelled) > 1:
        raise UserError(f"a model has at most one task head, but {' and '.join(labelled)} are requested; choose one of them")


def read_model_config(directory: pathlib.Path) -> JsonObject:
    """Returns the fields of the directory's `config.json`. Raises UserError if the file is missing, or is not a JSON object."""
    return read_object(directory / CONFIG, "copy the model again")


def check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, where: str) -> None:
    """Raises UserError if the vocabulary has more pieces than the model has word embeddings. Fewer pieces are common, since
    embedding tables are padded to a round size."""
    if tokenizer.size > config.vocab_size:
        raise UserError(
            f"{where}: the vocabulary has {counted(tokenizer.size, 'entry')}, but the vocab_size of the model is "
            f"{config.vocab_size:,}; use the vocabulary that the model was trained with (to change the vocabulary, use convert "
            "--add-tokens or --replace-vocab)"
        )


def rows_without_pieces(tokenizer: Tokenizer, config: ModelConfig) -> tuple[str, ...]:
    """Returns a clause about unused rows of the word embeddings, or () if there are none."""
    if config.vocab_size == tokenizer.size:
        return ()
    return (
        f"the word embeddings have {counted(config.vocab_size, 'row')} for {counted(tokenizer.size, 'piece')}; the unused rows "
        "are kept, but never predicted",
    )


def check_same_vocabulary(ours: JsonObject, tokenizer: Tokenizer, where: str) -> None:
    """Raises UserError if the model was exported with another vocabulary, since ids would then mean different words. `ours` has
    the fields under "bert_jax", including the hash of the model's vocabulary."""
    found = tokenizer.vocabulary.sha256
    written = ours.get("vocabulary_sha256", found)
    if written != found:
        raise UserError(
            f"{where}: the model was trained with another vocabulary (sha256 {str(written)[:12]}...) than the vocabulary in "
            f"this directory ({found[:12]}...); restore the model's own vocabulary file (to change the vocabulary, use "
            "convert --add-tokens or --replace-vocab)"
        )


def _renamed_pieces(fields: JsonObject, tokenizer: Tokenizer, directory: pathlib.Path) -> tuple[str, ...]:
    """Compares `tokenizer` with the vocabulary of `directory`. If they differ only in the names of unused pieces ([unused0],
    ...), returns a clause about the renamed pieces. Otherwise, returns (). BERT's authors recommend such renaming to add
    words."""
    if not vocabulary_files(directory):
        return ()
    pieces = load_tokenizer(directory, lowercase=tokenizer.vocabulary.lowercase).pieces
    changed = [(old, new) for old, new in itertools.zip_longest(pieces, tokenizer.pieces) if old != new]
    if not changed or not all(old and new and _UNUSED.fullmatch(old) for old, new in changed):
        return ()
    listed = ", ".join(f"{old} is now {new!r}" for old, new in changed[:3])
    return (f"{counted(len(changed), 'unused piece')} renamed ({listed}); their rows are kept",)


def _check_recorded(ours: JsonObject, fields: JsonObject, family: Family, tokenizer: Tokenizer, where: str) -> None:
    """Raises UserError if the model was trained with another vocabulary, or with other special tokens."""
    check_same_vocabulary(ours, tokenizer, where)
    for name, role in family.special_ids.items():
        found, wanted = fields.get(name), getattr(tokenizer, f"{role}_id")
        # BERTs with the vocabulary of XLM-R, such as multilingual-e5-small, keep the default of BertConfig
        is_default = name == "pad_token_id" and found == 0 and not ours and tokenizer.pieces[:2] == ["<s>", "<pad>"]
        if found is not None and found != wanted and not is_default:
            raise UserError(
                f"{where}: {CONFIG} has {name}={found!r}, but the vocabulary's {ROLES[role]} has the id {wanted}; correct "
                "one of the files"
            )


def _text_vectors(directory: pathlib.Path, tokenizer: Tokenizer) -> TextVectors | None:
    """Returns the settings of a directory's text vectors. Returns None if the directory names no pooling. Also returns None if
    it names a pooling that is not implemented here, which `embed` reports."""
    from bert_jax.interop.sentence_transformers import read_text_vectors

    with contextlib.suppress(UserError):
        found = read_text_vectors(directory, tokenizer)
        return found if found and found.pooling in TEXT_POOLINGS else None
    return None


def _files_left(directory: pathlib.Path, vectors: TextVectors | None) -> tuple[str, ...]:
    """Returns a clause about JSON files and folders of the directory that are not read, such as an additional module of
    sentence-transformers."""
    from bert_jax.interop.locate import transformer_folder

    read = [name for name in FILES if vectors or name not in TEXT_VECTORS]
    left = [path.name for path in directory.iterdir() if (path.suffix == ".json" or path.is_dir()) and path.name not in read]
    above = directory.absolute().parent
    # `above` holds the other modules of an old sentence-transformers model
    if transformer_folder(above) == directory.absolute():
        others = [path.name for path in above.iterdir() if path.name == MODULES or re.match(r"\d_", path.name)]
        left += [f"../{name}" for name in others if name not in (*read, directory.absolute().name)]
    names = sorted(name for name in left if not name.startswith(".") or name.startswith("../"))
    names = [name for name in names if not name.endswith(".index.json")]
    return (f"these files are neither read nor copied: {', '.join(names)}",) if names else ()


def _read_by(head: TaskHead | None, config: ModelConfig) -> tuple[str, ...]:
    """Returns the parts whose output a task head needs."""
    if head is None:
        return ()
    return ("pooler", head.subtree) if head.has_pooler(config) else (head.subtree,)


def _other_fields(fields: JsonObject, family: Family, head: TaskHead | None, *, keep_vocabulary: bool) -> JsonObject:
    """Returns the fields of config.json that exports copy. These are the fields that this package does not use, and the fields
    whose spelling an export keeps. For example, `hidden_act` has several names for the same function. Without a task head, the
    fields about labels are copied. `auto_map` is never copied, because it names code that is not exported. If the vocabulary
    has changed, the tokenizer class and the ids of special tokens are not copied."""
    left = {*WRITER_FIELDS, OURS, "auto_map", *(head_to_json(head) if head else ())}
    for key in family.keys:
        left |= set(key.names) if not key.carried or (isinstance(key, TokenId) and not keep_vocabulary) else set()
    left |= set() if keep_vocabulary else {"tokenizer_class"}
    return {name: x for name, x in fields.items() if name not in left}


def _adapt_tokenizer(directory: pathlib.Path, model: Model) -> None:
    """Adapts the saved tokenizer files to the model, for transformers.

    Writes the size of the position table as `model_max_length`, the length to which transformers' tokenizers truncate. Without
    this setting, they do not truncate, and longer texts raise an IndexError in the model. If the model has no token types, the
    tokenizer is set to return none, since the model would not accept them. The texts of a translator end with [SEP] and do not
    start with [CLS]. This rule is written to tokenizer.json, since no other file can express it."""
    config, tokenizer, rules = model.config, model.tokenizer, directory / TOKENIZER_JSON
    settings = read_object(directory / TOKENIZER_CONFIG) | {"model_max_length": config.max_position}
    inputs = settings.get("model_input_names")
    if not config.type_vocab_size and (inputs is None or "token_type_ids" in inputs):
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    if config.translates and "decoder" in model.params and rules.is_file():
        end = tokenizer.pieces[tokenizer.sep_id]
        texts: list[list[Json]] = [
            [{"Sequence": {"id": name, "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}] for name in ("A", "B")
        ]
        framing: JsonObject = {
            "type": "TemplateProcessing", "single": texts[0], "pair": [*texts[0], *texts[1]],
            "special_tokens": {end: {"id": end, "ids": [tokenizer.sep_id], "tokens": [end]}},
        }  # fmt: skip
        write_json(rules, read_object(rules) | {"post_processor": framing})
        settings |= {"tokenizer_class": BACKENDS[0], "eos_token": end}
    write_json(directory / TOKENIZER_CONFIG, settings)


def part_names(text: str) -> tuple[str, ...]:
    """Splits a comma-separated list of parts: "mlm_head, nsp_head"."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
