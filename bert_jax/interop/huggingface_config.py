"""Translates between `ModelConfig` and the `config.json` of a Hugging Face BERT."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Collection, Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject
from bert_jax.interface.named import is_in_file, record_of, split_named
from bert_jax.interop.directory import OURS
from bert_jax.model import POSITIONS
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import HEAD_PARTS
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.outputs import OUTPUTS
from bert_jax.model.heads.registry import HEADS, head_class
from bert_jax.model.positions import is_own_transformer

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
"""From fields of `ModelConfig` to equivalent fields of `config.json`. Fields that `config.json` may omit have equal defaults."""

SHAPE_FIELDS = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_position")
"""Fields that `config.json` must have: with an assumed default, the import would fail later with a less clear error."""

ACTIVATIONS = {
    "gelu": "gelu",  # erf in transformers as in ours; the tanh approximation that TensorFlow BERT moved to is `gelu_new`
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
"""From transformers' `hidden_act` to `ModelConfig.activation`; exports use the first name for each activation."""

MODEL_TYPES = {"transformer": "bert", "bilm": "bilm", "static": "static"}
"""From `ModelConfig.encoder` to `model_type`; the last two are ours, and transformers refuses to load them."""

OWN_POSITIONS = "bert_jax"
"""The `model_type` of a Transformer whose positions BERT does not have: transformers refuses it, since it would compute another
function."""

OWN_TYPES = tuple(theirs for theirs in MODEL_TYPES.values() if theirs != "bert")

FIXED: JsonObject = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Fields with the only value that this BERT supports: a `config.json` may have that value or omit the field."""


WRITTEN = (
    *FIELDS.values(), "model_type", "hidden_act", "architectures", "pad_token_id", "tie_word_embeddings", "num_labels",
    "torch_dtype", "dtype", "transformers_version", "use_return_dict",
)  # fmt: skip
"""Fields that this package interprets, or that describe the writer of the file; all other fields are copied unchanged."""

MOST_LABELS = 1_000_000

HEAD_FIELDS = ("id2label", "label2id", "problem_type", "classifier_dropout")
"""Fields that describe a task head; copied unchanged where no head uses them."""

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertModel": (),
    "BertForPreTraining": ("pooler", "mlm_head", "nsp_head"),
    "BertForMaskedLM": ("mlm_head",),
    "BertLMHeadModel": ("mlm_head",),
    "BertForNextSentencePrediction": ("pooler", "nsp_head"),
    **{
        head.architecture: ("pooler", f"{kind}_head") if head.typical().reads_pooler else (f"{kind}_head",)
        for kind, head in HEADS.items()
        if head.architecture
    },
}
"""From transformers' classes to the parts that their files must have besides embeddings and encoder."""

OWN_FIELDS: dict[str, type] = {"kind": str, "pooling": str, "layers": str, "lstm": int}
"""The fields under "head" of a task head without a transformers class; its other fields are where transformers has them."""
LATER_FIELDS: dict[str, type] = {"crf": str, "mix_at": str}
"""Fields of the same place that are left out where they have their default, as in files of earlier versions."""

PROBLEM_TYPES = {
    OUTPUTS[problem].problem_type: problem for problem in ("classification", "multi_label", "regression")
}
"""From transformers' `problem_type` to `TaskHead.problem`."""


def architecture_of(parts: Collection[str], head: TaskHead | None = None, direction: str = "both") -> str:
    """The transformers class with these parts and no others, for a model of this `direction`. A task head takes precedence over
    the pretraining heads, and is ignored where transformers has no class for it."""
    if head is not None and not head.is_plain:
        parts = set(parts) - {head.part}
    for name, needed in ARCHITECTURES.items():
        if needed and needed[-1] in parts and needed[-1] in HEAD_PARTS:
            return name
    parts = {"mlm_head" if part == "softmax" else part for part in parts}
    language_model = "BertForMaskedLM" if direction == "both" else "BertLMHeadModel"
    for name in ("BertForPreTraining", language_model, "BertForNextSentencePrediction"):
        if set(ARCHITECTURES[name]) <= set(parts):
            return name
    return "BertModel"


def config_to_json(
    config: ModelConfig,
    *,
    architecture: str,
    pad_token_id: int,
    head: TaskHead | None = None,
    other_fields: Mapping[str, Json] | None = None,
) -> JsonObject:
    """The `config.json` of a model saved as `architecture` (a transformers class name), with `other_fields` unchanged."""
    carried: JsonObject = dict(other_fields or {})
    hidden_act = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    if ACTIVATIONS.get(carried.get("hidden_act", "")) == config.activation:
        hidden_act = carried["hidden_act"]  # another name of the same function
    fields = carried | {
        "architectures": [architecture],
        "model_type": OWN_POSITIONS if is_own_transformer(config) else MODEL_TYPES[config.encoder],
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS.items()},
        "hidden_act": hidden_act,
        "position_embedding_type": "absolute",
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": config.tied_decoder,
        "torch_dtype": "float32",
    }
    if config.direction == "left_to_right":
        fields["is_decoder"] = True
    return fields | (head_to_json(head) if head else {})


def own_fields(config: ModelConfig, head: TaskHead | None) -> JsonObject:
    """The fields under "bert_jax" in `config.json`: positions that are not learned (transformers reads a fixed table as a learned
    one), with the user's file that computes them, and a task head without a transformers class."""
    fields: JsonObject = {} if config.positions == "learned" else {"positions": config.positions}
    if file := record_of(config.positions, "config.model.positions"):
        fields["positions_file"] = dict(file)
    fields |= {"character_cnn": True} if config.character_cnn else {}
    if head is not None and not (head.is_plain and config.encoder == "transformer"):
        later = [name for name in LATER_FIELDS if getattr(head, name) != getattr(TaskHead, name)]
        fields["head"] = {name: getattr(head, name) for name in (*OWN_FIELDS, *later)}
    return fields


def head_to_json(head: TaskHead) -> JsonObject:
    """The standard fields of a `config.json` that describe a task head."""
    fields: JsonObject = {"classifier_dropout": head.dropout}
    if head.labels:
        fields["id2label"] = {str(i): label for i, label in enumerate(head.labels)}
        fields["label2id"] = {label: i for i, label in enumerate(head.labels)}
    if "problem" in head.settings:
        fields["problem_type"] = head.outputs.problem_type
    return fields


def config_from_json(fields: JsonObject, source: str) -> ModelConfig:
    """The `ModelConfig` of a `config.json`; fields about compilation (dtype, vocabulary padding, ...) have their defaults.

    Raises UserError naming `source` and the field, for a field that is missing, of the wrong type or not representable.
    """
    encoders = {theirs: ours for ours, theirs in MODEL_TYPES.items()} | {OWN_POSITIONS: "transformer"}
    model_type = fields.get("model_type", "bert")
    if not isinstance(model_type, str) or model_type not in encoders:
        raise UserError(f"{source}: model_type={model_type!r} cannot be represented; only model_type='bert' is supported")
    for name, value in FIXED.items():
        if fields.get(name, value) != value:
            raise UserError(f"{source}: {name}={fields[name]!r} cannot be represented; only {name}={value!r} is supported")
    hidden_act = fields.get("hidden_act", "gelu")
    if not isinstance(hidden_act, str) or hidden_act not in ACTIVATIONS:
        raise UserError(f"{source}: hidden_act={hidden_act!r} cannot be represented; known: {', '.join(sorted(ACTIVATIONS))}")
    tied = fields.get("tie_word_embeddings", True)
    if not isinstance(tied, bool):
        raise UserError(f"{source}: tie_word_embeddings={tied!r} must be true or false")
    is_decoder = fields.get("is_decoder", False)
    if not isinstance(is_decoder, bool):
        raise UserError(f"{source}: is_decoder={is_decoder!r} must be true or false")
    positions = _positions(recorded(fields), source)
    direction = "left_to_right" if is_decoder else "both"
    characters = recorded(fields).get("character_cnn", False)
    if not isinstance(characters, bool):
        raise UserError(f'{source}: "character_cnn" under "{OURS}" is {characters!r}, not true or false; export the model again')
    values: JsonObject = {"encoder": encoders[model_type], "character_cnn": characters}
    values |= {"tied_decoder": tied, "direction": direction, "positions": positions}
    for ours, theirs in FIELDS.items():
        if theirs not in fields:
            if ours in SHAPE_FIELDS:
                raise UserError(f"{source}: {theirs} is missing, so the model's shape is unknown; copy the model's whole file")
            continue
        kind = type(getattr(ModelConfig, ours))
        value = fields[theirs]
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
            raise UserError(f"{source}: {theirs}={value!r} must be {'a number' if kind is float else 'a whole number'}")
        values[ours] = kind(value)
    try:
        return ModelConfig(activation=ACTIVATIONS[hidden_act], **values)
    except UserError as error:  # its message has the names of our fields, which are not those of the file
        raise UserError(f"{source}: {error}") from None


def _positions(ours: JsonObject, source: str) -> str:
    """`ModelConfig.positions` of the fields under "bert_jax". Raises UserError for unknown positions, and where the user's file
    that computes them is not there or is not the one that the model was trained with."""
    positions, file = ours.get("positions", "learned"), ours.get("positions_file")
    if positions in POSITIONS:
        return str(positions)
    if not isinstance(positions, str) or not is_in_file(positions) or not isinstance(file, dict):
        raise UserError(f'{source}: "positions" under "{OURS}" is {positions!r}; known: {", ".join(POSITIONS)}')
    _, name, _ = split_named(positions)
    for place in (positions, f"{file.get('path')}:{name}"):
        with contextlib.suppress(UserError):  # there is no such file
            if (found := record_of(place, source)) and found["sha256"] == file.get("sha256"):
                return place
    raise UserError(
        f"{source}: the positions of this model are computed by {positions}, and there is no such file with the content that it "
        f'was trained with (sha256 {str(file.get("sha256"))[:12]}...); restore it at {file.get("path")}: its text is "source" '
        f'under "{OURS}", "positions_file"'
    )


def architecture_from_json(fields: JsonObject, tensor_names: Collection[str], source: str) -> str:
    """The first known class in `config.json`'s "architectures"; without one, the class that follows from the tensors' names. If
    "architectures" has unknown classes only, `model_type` must be "bert", and only the pooler and the pretraining heads are
    looked for: only the unknown class knows the meaning of other tensors.

    Raises UserError for a class that is no BERT, and where several classes fit the tensors.
    """
    named = [] if fields.get("model_type") in OWN_TYPES else fields.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise UserError(f'{source}: architectures={named!r} must be a list such as ["BertModel"]; copy the model\'s whole file')
    if supported := next((name for name in named if name in ARCHITECTURES), None):
        return supported
    if named and fields.get("model_type") != "bert":
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{source}: architectures={named!r} is not a supported class; supported: {known}")
    for module, heads in () if named else sorted(_heads_by_module().items(), key=lambda item: len(item[1])):
        if not any(name.startswith(f"{module}.") for name in tensor_names):
            continue
        if len(heads) == 1:
            return heads[0].architecture
        *kinds, last = (f"{head.kind}s" for head in heads)
        raise UserError(
            f'{source} has no "architectures", and a {module} can be a head for {", ".join(kinds)} or {last}; '
            f'add the class, for example "architectures": ["{heads[0].architecture}"]'
        )
    prefixes = {"mlm_head": "cls.predictions.", "nsp_head": "cls.seq_relationship.", "pooler": "bert.pooler."}
    return architecture_of([part for part, prefix in prefixes.items() if any(name.startswith(prefix) for name in tensor_names)])


def head_from_json(
    fields: JsonObject, architecture: str, source: str, labels: Sequence[str] | None = None
) -> TaskHead | None:
    """The task head of a `config.json`: that of its class, or one under "bert_jax"; None without either. Its labels are the
    `labels` that are given, or those of the file. The default labels are those of transformers, LABEL_0 and LABEL_1.

    Raises UserError where the labels contradict each other or the problem is unknown.
    """
    own = _own_head(fields, source)
    part = next((part for part in ARCHITECTURES[architecture] if part in HEAD_PARTS), "")
    name = own.pop("kind", part.removesuffix("_head"))
    if not name:
        return None
    try:
        head = head_class(name)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    labels = (tuple(labels) if labels else _labels(fields, source)) if head.has_labels else ()
    problem = "classification"
    if "problem" in head.settings:
        stated = fields.get("problem_type")
        unstated = "regression" if len(labels) == 1 else "classification"
        if stated is not None and (not isinstance(stated, str) or stated not in PROBLEM_TYPES):
            raise UserError(f"{source}: problem_type={stated!r} is unknown; known: {', '.join(PROBLEM_TYPES)}")
        problem = unstated if stated is None else PROBLEM_TYPES[stated]
    dropout = fields.get("classifier_dropout")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float, type(None))):
        raise UserError(f"{source}: classifier_dropout={dropout!r} must be a number or null")
    try:
        return head(labels=labels, problem=problem, dropout=dropout, **own)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _heads_by_module() -> dict[str, list[type[TaskHead]]]:
    """The kinds of heads by the name of their layer in transformers, which several kinds may share."""
    found: dict[str, list[type[TaskHead]]] = {}
    for head in HEADS.values():
        if head.architecture:
            found.setdefault(head.module, []).append(head)
    return found


def recorded(fields: JsonObject) -> JsonObject:
    """The fields under "bert_jax" in a `config.json`; empty in files of other writers."""
    ours = fields.get(OURS, {})
    return ours if isinstance(ours, dict) else {}


def untrained_parts(fields: JsonObject, source: str) -> frozenset[str]:
    """The "untrained" parts under "bert_jax" in a `config.json`. Raises UserError where that is not a list of names."""
    names = recorded(fields).get("untrained", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f'{source}: "untrained" under "{OURS}" is {names!r}, not a list of parts; export the model again')
    return frozenset(names)


def _own_head(fields: JsonObject, source: str) -> JsonObject:
    """The fields of OWN_FIELDS under "head"; {} without such a head."""
    own = recorded(fields).get("head") or {}
    later = {name: LATER_FIELDS[name] for name in own if name in LATER_FIELDS}
    if own and (not isinstance(own, dict) or {name: type(value) for name, value in own.items()} != OWN_FIELDS | later):
        raise UserError(
            f'{source}: "head" under "{OURS}" is {own!r}, not an object with {", ".join(OWN_FIELDS)}; export the model again'
        )
    return dict(own)


_ANEW = "`convert --labels=A,B,...` gives the labels anew"


def _labels(fields: JsonObject, source: str) -> tuple[str, ...]:
    by_id = fields.get("id2label")
    if by_id is None:
        number = fields.get("num_labels", 2)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_LABELS:
            raise UserError(f"{source}: num_labels={number!r} must be a whole number up to {MOST_LABELS:,}; copy the model again")
        return tuple(f"LABEL_{i}" for i in range(number))
    try:
        ids = {int(i): str(label) for i, label in by_id.items()}
    except (AttributeError, ValueError) as error:
        raise UserError(
            f'{source}: id2label={str(by_id)[:100]} must be an object such as {{"0": "no", "1": "yes"}}; {_ANEW}'
        ) from error
    if sorted(ids) != list(range(len(ids))):
        raise UserError(f"{source}: the ids of id2label are {sorted(ids)}; they must count 0, 1, 2, ...; {_ANEW}")
    labels = tuple(ids[i] for i in range(len(ids)))
    several = next((label for label, count in collections.Counter(labels).items() if count > 1), None)
    if several is not None:
        same = ", ".join(str(i) for i, label in ids.items() if label == several)
        raise UserError(
            f"{source}: id2label gives the outputs {same} the same label {several!r}; give each another label, or {_ANEW}"
        )
    stated = fields.get("label2id")
    if stated is None:
        return labels
    if not isinstance(stated, dict):
        raise UserError(f'{source}: label2id={str(stated)[:100]} must be an object such as {{"no": 0, "yes": 1}}; remove it')
    swapped = next((label for i, label in enumerate(labels) if str(stated.get(label, i)) != str(i)), None)
    if swapped is not None:  # transformers answers by id2label; names that id2label lacks are left over from another model
        raise UserError(
            f"{source}: label2id gives {swapped!r} the id {stated[swapped]!r}, and id2label the id {labels.index(swapped)}; "
            f"correct one of them, or {_ANEW}"
        )
    return labels
