"""`Family`, the format of a model family in other programs: names and layouts of tensors, keys of config.json, and classes.

A family is data: a table of `Row`s and a table of `Key`s, each read in both directions. `names.py` and `huggingface_config.py`
read the tables. No other module contains names of transformers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.named import load_built_in
from bert_jax.interop.families import FAMILIES, OWN_FAMILIES, READ_AS_BERT
from bert_jax.model.config import Architecture, ModelConfig
from bert_jax.model.positions import fixed_table

if TYPE_CHECKING:  # pretraining runs load no task heads
    from bert_jax.model.heads.head import TaskHead


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of parameter. Layouts are written as axis letters. Letters in brackets are flattened into one axis of the other
    format's tensor.

    A `{}` in `theirs` stands for the index of the layer. Our array then has a leading axis N. A model has the row only if it
    has the parameter, so a table can list all biases that a family may have."""

    ours: str
    our_axes: str
    theirs: str
    their_axes: str
    split: tuple[int, int] = (0, 1)
    """(i, n): the array is the i-th of n equal parts of the other format's tensor, along its first axis."""
    when: Callable[[ModelConfig], bool] | None = None
    """Whether a model stores the parameter under this name. If None, every model with the parameter does."""
    first: int = 0
    """The first layer with the parameter. Files have no entries for earlier layers, and the model does not read the entries of
    our array for these layers."""

    @property
    def stacked(self) -> bool:
        """True if our array is stacked over layers along an axis N."""
        return "{}" in self.theirs

    @property
    def subtree(self) -> str:
        """The top-level subtree of our parameter tree that contains the parameter: embeddings, encoder, pooler or a head."""
        return self.ours.split("/")[0]


def linear(ours: str, inputs: str, outputs: str, theirs: str, split: tuple[int, int] = (0, 1)) -> tuple[Row, Row]:
    """Returns the rows of the kernel and the bias of a dense layer, which PyTorch stores as [out, in]."""
    flat_in, flat_out = (f"({axes})" if " " in axes else axes for axes in (inputs, outputs))
    return (
        Row(f"{ours}/kernel", f"{inputs} {outputs}", f"{theirs}.weight", f"{flat_out} {flat_in}", split),
        Row(f"{ours}/bias", outputs, f"{theirs}.bias", flat_out, split),
    )


def attention(ours: str, theirs: str, inputs: Sequence[str], output: str) -> tuple[Row, ...]:
    """Returns the rows of an attention layer. `inputs` and `output` are the names of the modules inside `theirs`. `inputs` has
    three modules (query, key, value), or one module for all three."""
    rows: list[Row] = []
    for n, (name, heads) in enumerate({"query": "H K", "key": "G K", "value": "G K"}.items()):
        module, split = (inputs[n], (0, 1)) if len(inputs) == 3 else (inputs[0], (n, 3))
        rows += linear(f"{ours}/{name}", "D", heads, f"{theirs}.{module}", split)
    return (*rows, *linear(f"{ours}/output", "H K", "D", f"{theirs}.{output}"))


def classifiers(*kinds: str) -> tuple[Row, ...]:
    """Returns the rows of task heads. The module of each of these heads is named "classifier"."""
    return tuple(row for kind in kinds for row in linear(f"{kind}_head/dense", "D", "Y", "classifier"))


def norm(ours: str, theirs: str, first: int = 0) -> tuple[Row, Row]:
    """Returns the rows of the scale and the bias of a norm."""
    return (
        Row(f"{ours}/scale", "D", f"{theirs}.weight", "D", first=first),
        Row(f"{ours}/bias", "D", f"{theirs}.bias", "D", first=first),
    )


class KeyLike(Protocol):
    """A key of config.json, or several keys that belong together."""

    @property
    def carried(self) -> bool:
        """Whether the original value of a model is kept in `Model.other_fields`. Exports write this value if it still has the
        same meaning."""

    @property
    def names(self) -> tuple[str, ...]:
        """The keys."""

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Reads fields of `ModelConfig` from a config.json. `read` has the fields that the preceding keys have read. Raises
        UserError with `source` if a value is missing, has the wrong type or cannot be represented."""

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the keys for `config`. `ids` has the ids of the special tokens by role. `carried` has the model's original
        fields."""


REQUIRED = object()
"""The default of a key that config.json must have. Without the key, the shape of the model would be unknown."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of config.json that corresponds to one or more fields of `ModelConfig`."""

    theirs: str
    ours: str
    """The names of the fields, separated by spaces. In a model of the family, all these fields must have the same value."""
    default: Any = REQUIRED
    """The value that transformers assumes if the key is missing."""
    values: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    """Value in the other format -> our value. Empty if both formats use the same values. Several values of the other format may
    have the same meaning. If the model was read with one of them, exports write it again. Otherwise, exports write the first of
    them."""
    also: tuple[str, ...] = ()
    """Alternative names of the key. All of them are written, and any of them may be read."""
    unless: Any = REQUIRED
    """The key is not written if it would have this value."""
    carried: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the key in config.json."""
        return (self.theirs, *self.also)

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns the values of the fields. `read` has the fields that the preceding keys have read. Raises UserError with
        `source` if a value is missing, has the wrong type or cannot be represented."""
        name, value = stated(fields, self.names, source)
        if not name:
            if self.default is REQUIRED:
                raise UserError(
                    f"{source}: {self.theirs} is missing, so the shape of the model is unknown; copy the whole file"
                )
            name, value = self.theirs, self.default
        if value is None and self.default is False:
            value = False
        translated = self.translated(name, value, source)
        for field in self.ours.split():
            if read.get(field, translated) != translated:
                raise UserError(
                    f"{source}: {name}={value!r} contradicts another field, which means {read[field]!r}; correct one of them"
                )
        return dict.fromkeys(self.ours.split(), translated)

    def translated(self, name: str, value: Any, source: str) -> Any:
        """Translates a value of the other format to our value. Raises UserError if `value` is unknown or has the wrong type."""
        if self.values:
            known = next((key for key in self.values if key == value and type(key) is type(value)), None)
            if known is None:
                names = ", ".join(sorted(map(str, self.values)))
                raise UserError(f"{source}: {name}={value!r} cannot be represented; known: {names}")
            return self.values[known]
        kind = type(getattr(ModelConfig, self.ours.split()[0]))
        if kind is bool:
            if not isinstance(value, bool):
                raise UserError(f"{source}: {name}={value!r} must be true or false")
            return value
        is_number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        if not is_number or not abs(value) < TOO_LARGE:  # also NaN
            what = "a finite number" if kind is float else "a whole number"
            raise UserError(f"{source}: {name}={value!r} must be {what} below 2**63")
        return kind(value)

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the keys of `config`. `ids` has the ids of the special tokens by role. `carried` has the fields that the
        model was read with. The spelling in `carried` is kept if it has the same meaning."""
        value = getattr(config, self.ours.split()[0])
        if self.values:
            spelt = carried.get(self.theirs)
            same = isinstance(spelt, str) and self.values.get(spelt) == value
            value = spelt if same else next((theirs for theirs, ours in self.values.items() if ours == value), None)
            if value is None and None not in self.values:  # the value is a user's own function
                return {}
        return {} if value == self.unless else dict.fromkeys(self.names, value)


TOO_LARGE = 1 << 63
"""The smallest number that is too large for config.json. Python could not convert a number of 400 digits to a float."""
SIZES = (
    Key("vocab_size", "vocab_size"),
    Key("hidden_size", "hidden_size"),
    Key("intermediate_size", "intermediate_size"),
    Key("num_hidden_layers", "num_layers"),
    Key("num_attention_heads", "num_heads"),
)
"""The size keys that all encoder families share."""
ENCODER_ONLY = {"is_decoder": False, "is_encoder_decoder": False, "quantization_config": None}
"""`Family.fixed` of a family of encoders."""


@dataclasses.dataclass(frozen=True)
class Written:
    """A key that is written on export. No setting depends on it, so it is not read."""

    theirs: str

    @property
    def names(self) -> tuple[str, ...]:
        """The key."""
        return (self.theirs,)

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns no settings."""
        return {}


@dataclasses.dataclass(frozen=True)
class Constant(Written):
    """A key that has the same value in every model."""

    value: Any
    carried: bool = False

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the constant, or the value that the model was read with."""
        return {self.theirs: carried.get(self.theirs, self.value) if self.carried else self.value}


@dataclasses.dataclass(frozen=True)
class OtherNames:
    """Keys that only the files of another program contain. `Family.renamed_keys` translates these keys, and exports do not
    contain them."""

    names: tuple[str, ...]
    carried: bool = False

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns no settings, since the values are read from the translated keys."""
        return {}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns nothing."""
        return {}


@dataclasses.dataclass(frozen=True)
class TokenId(Written):
    """A key with the id of a special token. The tokenizer determines the id."""

    role: str
    carried: bool = False

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the value that the model was read with if the key is `carried`. Otherwise, returns the tokenizer's id of the
        role, if there is one."""
        if self.carried and carried.get(self.theirs) is not None:
            return {self.theirs: carried[self.theirs]}
        return {self.theirs: ids[self.role]} if self.role in ids else {}


def means_only(found: Any, value: Any) -> bool:
    """Returns whether a key has the only supported `value`. null means false, or the usual kind of positions."""
    return bool(found == value) or (found is None and value in (False, "absolute"))


def stated(fields: JsonObject, names: tuple[str, ...], source: str) -> tuple[str, Any]:
    """Returns (name, value) for the first of `names` that is in `fields`, or ("", None) if there is none. Raises UserError if
    two of the names have different values."""
    there = [name for name in names if name in fields]
    for name in there[1:]:
        if fields[name] != fields[there[0]]:
            raise UserError(
                f"{source}: {there[0]}={fields[there[0]]!r} and {name}={fields[name]!r} contradict each other; correct one "
                "of them"
            )
    return (there[0], fields[there[0]]) if there else ("", None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A model family: the models with the same `model_type` in other programs."""

    model_type: str
    title: str
    """The name of the family in text."""
    prefix: str
    """The prefix of the encoder's tensor names, including its dot. A model without heads is stored without this prefix."""
    table: tuple[Row, ...]
    keys: tuple[KeyLike, ...]
    """The keys, in the order in which they are read and written."""
    renamed_keys: Callable[[JsonObject, str], JsonObject] | None = None
    """A function that renames the keys of a config.json to the names in `keys`, if some files have other names. Its arguments
    are the fields of the config.json and the path of the file for messages."""
    always: JsonObject = dataclasses.field(default_factory=dict)
    """The fields of `ModelConfig` that differ from BERT's and are the same in all models of the family."""
    fixed: JsonObject = dataclasses.field(default_factory=dict)
    """Key of config.json -> the only supported value. A file may omit these keys."""
    classes: Mapping[str, tuple[str, ...]]
    """Transformers class -> the parts that its files must have in addition to embeddings and encoder. The first class has no
    heads. Classes with more pretraining heads come before classes with fewer."""
    causal: str = ""
    """The class of a left-to-right language model."""
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name of a copy -> name of the tied tensor. Only some files contain the copies."""
    untied_bias: tuple[str, str] = ("", "")
    """(the name of the decoder's bias, the name from which transformers reads the bias if the decoder is not tied)."""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Old ending of a tensor name -> the current ending."""
    omitted: tuple[str, ...] = ()
    """Biases that some files leave out. A missing bias is read as zeros."""
    buffers: Mapping[str, tuple[str, Callable[[int, ModelConfig], np.ndarray]]] = dataclasses.field(default_factory=dict)
    """Buffers that some versions of transformers saved. Name -> (the first values as text for messages, a function that returns
    all values). The arguments of the function are the size of the buffer and the configuration."""
    special_ids: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"pad_token_id": "pad"})
    """Key with the id of a special token -> the role of the token in the vocabulary. A file with a different id is rejected."""
    position_table: str = ""
    """The name of the position table. Files always contain this table, but we have a parameter for it only if positions are
    learned."""

    @property
    def word_table(self) -> str:
        """The name of the table of word embeddings."""
        return next((row.theirs for row in self.table if row.ours == "embeddings/word_embeddings/embedding"), "")

    def copies(self, config: ModelConfig) -> Mapping[str, str]:
        """Returns the name of a copy -> the name of its tied tensor, for the copies that a model's files may contain."""
        return self.tied if config.tied_decoder else {}

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules other than the encoder. The tensor names of the heads start with these names."""
        return tuple({row.theirs.split(".")[0]: None for row in self.table if not row.theirs.startswith(self.prefix)})

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of config.json that the family reads or writes."""
        return tuple(name for key in self.keys for name in key.names)

    def read(self, fields: JsonObject, source: str) -> JsonObject:
        """Returns the fields of `ModelConfig` that a config.json determines. Raises a UserError that names `source` and the key
        if a value is missing or not supported."""
        fields = fields if self.renamed_keys is None else self.renamed_keys(fields, source)
        for name, value in self.fixed.items():
            if not means_only(fields.get(name, value), value):
                raise UserError(f"{source}: {name}={fields[name]!r} cannot be represented; only {name}={value!r} is supported")
        read: JsonObject = dict(self.always)
        for key in self.keys:
            read |= key.read(fields, read, source)
        return read

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the fields of the config.json of a model with this `config`."""
        return {name: value for key in self.keys for name, value in key.write(config, ids, carried).items()}

    def has_class_for(self, head: TaskHead) -> bool:
        """Returns whether transformers has a class with this head."""
        return head.is_plain and any(row.subtree == head.subtree for row in self.table)

    def represents(self, config: ModelConfig) -> bool:
        """Returns whether the family can represent `config`, i.e. whether writing and reading it preserves it."""
        try:
            return _normal(ModelConfig(**self.read(self.write(config, {}, {}), ""))) == _normal(config)
        except UserError:
            return False


def _normal(config: ModelConfig) -> Architecture:
    """Normalises the architecture of `config`, so that settings with the same meaning are equal."""
    c = config.architecture
    sliding, rotary = "sliding" in c.layer_types, c.positions_kind.is_rotary
    theta = c.rotary_theta if c.sliding_rotary_theta is None else c.sliding_rotary_theta
    return dataclasses.replace(
        c,
        num_key_value_heads=c.key_value_heads,
        norm_bias=c.norm_bias and c.norm_scale and c.norm_kind.has_bias,
        layer_types=c.layer_types if sliding else (),
        sliding_radius=c.sliding_radius if sliding else 0,
        rotary_theta=c.rotary_theta if rotary else 1.0,
        sliding_rotary_theta=theta if sliding and rotary else 1.0,
        rotary_pairing=c.rotary_pairing if rotary else "halves",
    )


def family_named(model_type: Any, source: str) -> Family:
    """Returns the family of a config.json with this "model_type". Raises UserError if there is no such family."""
    if model_type in OWN_FAMILIES:
        from bert_jax.interop.families.bert import own_family  # imported here, since `bert.py` imports this module

        return own_family(model_type)
    known = {**FAMILIES, **READ_AS_BERT}
    if not isinstance(model_type, str) or model_type not in known:
        raise UserError(f"{source}: model_type={model_type!r} cannot be represented; known: {', '.join(known)}")
    family: Family = load_built_in(known[model_type])
    return family


@functools.lru_cache(maxsize=256)
def export_family(config: ModelConfig) -> Family:
    """Returns the family in whose format `config` is exported. A fixed position table is written as an equivalent learned
    table."""
    forms = [config] if fixed_table(config) is None else [config, dataclasses.replace(config, positions="learned")]
    families = (family_named(model_type, "") for model_type in (FAMILIES if config.has_attention else ()))
    own = family_named(config.encoder if config.encoder in OWN_FAMILIES else "bert_jax", "")
    return next((family for family in families if any(map(family.represents, forms))), own)
