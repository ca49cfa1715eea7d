"""The keys of config.json that several families share: rotary positions, layers with a window, and heads.

transformers 4 and 5 spell these keys differently. If version 4 finds only the new spelling, it silently uses its defaults.
Therefore, both spellings are written. Either spelling is read, and contradictions are rejected.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.interop.families.family import TOO_LARGE, stated
from bert_jax.model.config import ModelConfig

PARAMETERS = ("rope_theta", "rope_type", "type", "partial_rotary_factor")
"""The keys of a group of rotary parameters."""
AS_GLOBAL = (None, -1)
"""The values for sliding layers that mean "same as full layers": null in transformers 4, -1 in ModernBERT's own files."""


@dataclasses.dataclass(frozen=True)
class RotaryTheta:
    """The base of rotary positions, if it is the same in all layers. The base is stored in "rope_parameters" and in an older
    key."""

    default: float
    old: str = "rope_theta"
    carried: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The keys."""
        return ("rope_parameters", self.old, "rope_scaling")

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns the base. Raises UserError if the type of rotary positions is not "default", or if two keys give different
        bases."""
        found = {
            "rope_parameters": read_theta(fields.get("rope_parameters"), "rope_parameters", source),
            "rope_scaling": read_theta(fields.get("rope_scaling"), "rope_scaling", source),
            self.old: _positive(fields.get(self.old), self.old, source),
        }
        return {"rotary_theta": _agreed(found, self.default, source)}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns both spellings."""
        return {"rope_parameters": _parameters(config.rotary_theta), self.old: config.rotary_theta}


@dataclasses.dataclass(frozen=True)
class RotaryThetas:
    """The bases of full and of sliding layers. The bases are stored in "rope_parameters", which has a group for each type of
    layer, and in two older keys."""

    full: float
    sliding: float
    carried: bool = False
    names: ClassVar[tuple[str, ...]] = ("rope_parameters", "global_rope_theta", "local_rope_theta", "rope_scaling")

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns both bases. The base of sliding layers is None if it is stated as the base of full layers, or if it is equal
        and no layer is sliding. A stated number is kept, because a later phase may change the base of full layers. Raises
        UserError if the type of rotary positions is not supported, if the name of a group is unknown, or if two keys give
        different bases for the same layers. A base outside of the groups, which transformers does not use, must be the base of
        full layers, and the other keys must state both bases."""
        scaling = read_theta(fields.get("rope_scaling"), "rope_scaling", source)  # transformers 5 uses this key for all layers
        groups = fields.get("rope_parameters") or {}
        known = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
        flat = {name: groups[name] for name in PARAMETERS if name in groups} if isinstance(groups, dict) else {}
        is_known = isinstance(groups, dict) and groups.keys() <= {*known, *flat}
        bases = {group for group, held in groups.items() if isinstance(held, dict) and "rope_theta" in held} if is_known else ()
        if not is_known or ("rope_theta" in flat and not all(group in bases or old in fields for group, old in known.items())):
            raise UserError(
                f"{source}: rope_parameters={str(groups)[:100]} must have the two groups full_attention and sliding_attention; "
                "write the rope_theta of these layers into each group"
            )
        new = {layers: f"rope_parameters.{layers}" for layers in sorted(known)}
        full = _agreed(
            {
                new["full_attention"]: read_theta(groups.get("full_attention"), new["full_attention"], source),
                "rope_scaling": scaling,
                "global_rope_theta": _positive(fields.get("global_rope_theta"), "global_rope_theta", source),
                "rope_parameters": read_theta(flat, "rope_parameters", source),
            },
            self.full,
            source,
        )
        group = groups.get("sliding_attention")
        found: dict[str, float | None] = {"rope_scaling": scaling}
        as_full = False
        if isinstance(group, dict) and group.get("rope_theta", 0) in AS_GLOBAL:
            as_full = True
            found[new["sliding_attention"]] = full
            group = {name: value for name, value in group.items() if name != "rope_theta"}
        stated_theta = read_theta(group, new["sliding_attention"], source)
        if stated_theta is not None:
            found[new["sliding_attention"]] = stated_theta
        if "local_rope_theta" in fields:
            old = fields["local_rope_theta"]
            as_full = as_full or old in AS_GLOBAL
            found["local_rope_theta"] = full if old in AS_GLOBAL else _positive(old, "local_rope_theta", source)
        sliding = _agreed(found, self.sliding, source)
        has_own = (not as_full and "sliding" in read["layer_types"]) or sliding != full
        return {"rotary_theta": full, "sliding_rotary_theta": sliding if has_own else None}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns both spellings."""
        full = config.rotary_theta
        sliding = full if config.sliding_rotary_theta is None else config.sliding_rotary_theta
        groups = {"full_attention": _parameters(full), "sliding_attention": _parameters(sliding)}
        return {"rope_parameters": groups, "global_rope_theta": full, "local_rope_theta": sliding}


@dataclasses.dataclass(frozen=True)
class LayerTypes:
    """The attention of each layer. "layer_types" lists all layers. If "global_attn_every_n_layers" is n, layers 0, n, 2n, ...
    are full."""

    every: int
    carried: bool = True
    names: ClassVar[tuple[str, ...]] = ("layer_types", "global_attn_every_n_layers")

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns the type of each layer, or () if all layers are full. Raises UserError if a type is unknown, if the number of
        types is not the number of layers, or if the two keys contradict each other. In files of transformers 5, only
        "layer_types" counts, because early versions also wrote the default of the other key."""
        layers, types, every = read["num_layers"], fields.get("layer_types"), fields.get("global_attn_every_n_layers")
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise UserError(f"{source}: global_attn_every_n_layers={every!r} must be a whole number from 1")
        if types is None:
            return {"layer_types": _every(every or self.every, layers)}
        names = {"full_attention": "full", "sliding_attention": "sliding"}
        if not isinstance(types, list) or not all(isinstance(name, str) and name in names for name in types):
            raise UserError(f"{source}: layer_types={str(types)[:100]} must be a list of {' and '.join(names)}")
        if len(types) != layers:
            raise UserError(
                f"{source}: layer_types names {counted(len(types), 'layer')}, but num_hidden_layers={layers}; correct one of them"
            )
        ours = tuple(names[name] for name in types)
        ours = ours if "sliding" in ours else ()
        older = not re.match(r"[5-9]|\d\d", str(fields.get("transformers_version")))
        if every is not None and older and _every(every, layers) != ours:
            raise UserError(
                f"{source}: layer_types and global_attn_every_n_layers={every} contradict each other; correct one of them"
            )
        return {"layer_types": ours}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns both spellings. If the older key cannot express the layer types, it is written as null. Older programs then
        fail instead of silently computing a different function."""
        ours = config.layer_types if "sliding" in config.layer_types else ()
        usual = carried.get("global_attn_every_n_layers") or self.every
        numbers = (n for n in (usual, *range(1, config.num_layers + 1)) if _every(n, config.num_layers) == ours)
        types = [f"{config.layer_type(n)}_attention" for n in range(config.num_layers)]
        return {"layer_types": types, "global_attn_every_n_layers": next(numbers, None)}


@dataclasses.dataclass(frozen=True)
class Window:
    """The key "local_attention", the number of tokens on both sides together. It is twice `sliding_radius`."""

    default: int
    carried: bool = True
    names: ClassVar[tuple[str, ...]] = ("local_attention", "sliding_window")

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns the radius. Raises UserError if "local_attention" is not a whole number. Also raises UserError if
        "sliding_window" differs from the radius, since transformers would use "sliding_window"."""
        value = fields.get("local_attention", self.default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{source}: local_attention={value!r} must be a whole number from 0")
        radius = fields.get("sliding_window")
        if radius is not None and radius != value // 2:
            raise UserError(
                f"{source}: sliding_window={radius!r} and local_attention={value} contradict each other, because "
                "local_attention must be twice sliding_window; correct one of them"
            )
        return {"sliding_radius": value // 2}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns twice the radius, or the model's original number if it means the same radius. "sliding_window" is only returned
        if the model was read with it."""
        came = carried.get("local_attention")
        same = isinstance(came, int) and came // 2 == config.sliding_radius
        radius = {} if carried.get("sliding_window") is None else {"sliding_window": config.sliding_radius}
        return {"local_attention": came if same else 2 * config.sliding_radius, **radius}


@dataclasses.dataclass(frozen=True)
class KeyValueHeads:
    """The key `num_key_value_heads`. If it is null or missing, the number of attention heads is used."""

    carried: bool = False
    names: ClassVar[tuple[str, ...]] = ("num_key_value_heads",)

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns the number of key-value heads, or 0 if each head has its own keys and values. Raises UserError if the value
        is not a whole number from 1."""
        value = fields.get("num_key_value_heads")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"{source}: num_key_value_heads={value!r} must be a whole number from 1, or null")
        return {"num_key_value_heads": 0 if value in (None, read["num_heads"]) else value}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the number of key-value heads."""
        return {"num_key_value_heads": config.key_value_heads}


@dataclasses.dataclass(frozen=True)
class HeadWidth:
    """The key "head_dim", which must be hidden_size / num_attention_heads."""

    carried: bool = False
    names: ClassVar[tuple[str, ...]] = ("head_dim",)

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns no settings. Raises UserError if the head width is different."""
        value, width, heads = fields.get("head_dim"), read["hidden_size"], read["num_heads"]
        if value is not None and value * heads != width:
            raise UserError(
                f"{source}: head_dim={value!r} cannot be represented; it must be {width / heads:g}, which is hidden_size / "
                "num_attention_heads"
            )
        return {}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the head width."""
        return {"head_dim": config.head_width}


def read_theta(parameters: Any, name: str, source: str) -> float | None:
    """Returns the base in a group of rotary parameters, or None if it is missing. Raises UserError if the parameters have a
    type other than "default" or another unsupported setting."""
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise UserError(f"{source}: {name}={parameters!r} must be an object such as {{'rope_type': 'default'}}")
    kind, share = parameters.get("rope_type", parameters.get("type", "default")), parameters.get("partial_rotary_factor", 1)
    if kind != "default":
        raise UserError(f"{source}: rope_type={kind!r} in {name} cannot be represented; only rope_type='default' is supported")
    if share != 1:
        raise UserError(f"{source}: partial_rotary_factor={share!r} in {name} cannot be represented; only 1.0 is supported")
    nested = next((key for key, value in parameters.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise UserError(f"{source}: {name} has a group {nested!r}, but all layers have the same positions; remove the groups")
    return _positive(parameters.get("rope_theta"), f"{name}.rope_theta", source)


def _positive(value: Any, name: str, source: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < TOO_LARGE:  # also NaN
        raise UserError(f"{source}: {name}={value!r} must be a positive number below 2**63")
    return float(value)


def _agreed(found: Mapping[str, float | None], default: float, source: str) -> float:
    """Returns the common value of the keys, or the default if none is set. Raises UserError if two of them differ."""
    there = {name: value for name, value in found.items() if value is not None}
    name, _ = stated(there, tuple(there), source)
    return there[name] if name else default


def _parameters(theta: float) -> JsonObject:
    return {"rope_type": "default", "rope_theta": theta}


def _every(n: int, layers: int) -> tuple[str, ...]:
    types = tuple("sliding" if layer % n else "full" for layer in range(layers))
    return types if "sliding" in types else ()
