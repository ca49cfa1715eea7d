"""Changes the positions, token types, layers or vocabulary of a model, and averages models. The functions that change a model
are pure and return a new `Model`.

Rows that are kept do not change in any bit, so outputs are the same for texts that only use these rows."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from bert_jax.data.tokenizers.json_tokenizer import BRACKETED
from bert_jax.data.tokenizers.tokenizer import Tokenizer, VocabularyInfo, with_added_tokens
from bert_jax.data.tokenizers.tokenizer_files import SPECIAL_NAMES
from bert_jax.data.tokenizers.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS, WORD_START, WordPiece, basic_words
from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.files import JsonObject
from bert_jax.interface.named import by_content, is_in_file
from bert_jax.interface.words import counted
from bert_jax.interop import NEW_POSITIONS
from bert_jax.interop.families.electra import DISCRIMINATOR
from bert_jax.interop.families.family import Row
from bert_jax.interop.huggingface import Model
from bert_jax.interop.names import rows
from bert_jax.model.layers import initializer
from bert_jax.storage.records import read_text


def with_positions(model: Model, positions: int, new: str = "copied", seed: int = 0) -> Model:
    """Resizes the position table to `positions` rows. A smaller table keeps the first rows.

    `new` determines the new rows of a larger table. "copied" repeats the learned table, so neighbouring positions stay
    neighbours except at the seams (Longformer, arXiv 2004.05150, section 5). "random" draws the new rows as at the start of
    training. A limit of text vectors that equals the old size is removed, and limits of translations are lowered to the new size.
    Raises UserError if `new` has another value, or if `positions` is less than 1."""
    if new not in NEW_POSITIONS:
        raise UserError(f"new positions cannot be {new!r}; {nearest(new, NEW_POSITIONS)}")
    config = dataclasses.replace(model.config, max_position=positions)
    old = model.config.max_position

    def change(table: np.ndarray) -> np.ndarray:
        rows = table[np.arange(positions) % old]
        if new == "random":
            rows[old:] = initializer(config)(jax.random.key(seed), rows[old:].shape)
        return rows

    tokenizer = model.tokenizer
    if tokenizer.max_length:
        tokenizer = copy.copy(tokenizer)
        tokenizer.max_length = positions
    vectors = model.vectors
    if vectors and vectors.longest and vectors.longest >= old:
        vectors = dataclasses.replace(vectors, longest=None)
    longest = {"max_length": positions, "max_new_tokens": positions - 1}  # a translation starts with the start token

    def lowered(fields: JsonObject) -> JsonObject:
        stated = ((name, fields.get(name)) for name in longest)
        return fields | {name: longest[name] for name, value in stated if isinstance(value, int) and value > longest[name]}

    return dataclasses.replace(
        model,
        params=_changed(model, lambda row: _leads(row, "S"), change),
        config=config,
        tokenizer=tokenizer,
        vectors=vectors,
        other_fields=lowered(model.other_fields),
        generation=lowered(model.generation),
    )


def with_rotary_theta(model: Model, full: float, sliding: float | None = None) -> Model:
    """Changes the base of rotary positions to `full` in full layers, and to `sliding` in sliding layers. If `sliding` is None,
    sliding layers keep their base. Raises UserError if the model's positions are not rotary."""
    if not model.config.positions_kind.is_rotary:
        raise UserError(
            "--rope-theta is for rotary positions, but "
            f"{model.source} has positions={model.config.positions!r}; leave the flag out"
        )
    config = dataclasses.replace(model.config.with_sliding_theta(), rotary_theta=full)
    if sliding is not None:
        config = dataclasses.replace(config, sliding_rotary_theta=sliding)
    return dataclasses.replace(model, config=config)


def with_window(model: Model, tokens: int) -> Model:
    """Sets the window of sliding layers. `tokens` is the size of both sides together, as in ModernBERT's configuration. Raises
    UserError if the model has no sliding layers, or if `tokens` is odd or below 2."""
    if "sliding" not in model.config.layer_types:
        raise UserError(f"--window is for sliding layers, but {model.source} has none; leave the flag out")
    if tokens < 2 or tokens % 2:
        raise UserError(
            f"a window of {counted(tokens, 'token')} cannot be divided into two equal sides; give an even number, such as 128"
        )
    return dataclasses.replace(model, config=dataclasses.replace(model.config, sliding_radius=tokens // 2))


def with_token_types(model: Model, types: int) -> Model:
    """Returns `model` with a token type table of `types` rows. New rows are copies of type 0. A smaller table keeps the first
    rows. Raises UserError if the model has no token types."""
    if not model.config.type_vocab_size:
        raise UserError(f"--token-types={types}: {model.source or 'this model'} has no table of token types; leave the flag out")
    config = dataclasses.replace(model.config, type_vocab_size=types)
    chosen = [i if i < model.config.type_vocab_size else 0 for i in range(types)]
    return dataclasses.replace(model, params=_changed(model, lambda row: _leads(row, "T"), lambda x: x[chosen]), config=config)


def with_layers(model: Model, keep: Sequence[int]) -> Model:
    """Keeps only the layers with the indices `keep`, which must be in ascending order. Layer 0 is the first layer after the
    embeddings. Raises UserError if `keep` is invalid, or if the layers of this model cannot be removed."""
    layers = model.config.num_layers
    if not layers or is_in_file(model.config.encoder) or "layers" not in model.params["encoder"]:
        raise UserError(f"a {model.config.encoder} model has no layers to keep or remove; leave the flag out")
    if model.config.decoder_layers:
        raise UserError(
            f"{model.source or 'this model'} has an encoder and a decoder, but only one list of layers can be given; keep all "
            "layers, or train a model with fewer layers"
        )
    unknown = [i for i in keep if not 0 <= i < layers]
    if unknown:
        raise UserError(
            f"there is no layer {unknown[0]} to keep; the model has {counted(layers, 'layer')}, from 0 to {layers - 1}"
        )
    if not keep or list(keep) != sorted(set(keep)):
        listed = ", ".join(map(str, keep)) or "none"
        raise UserError(f"the layers to keep are {listed}; name one or more, each once, in ascending order")
    if model.head and model.head.layers == "scalar_mix":
        raise UserError(
            f"the {model.head.subtree} has a weight for each of {counted(layers, 'layer')}, so no layer can be removed; "
            "drop the head, or add a new one"
        )
    if not model.config.first_attention_norm and keep[0]:
        raise UserError(
            f"layer 0 of {model.source or 'this model'} cannot be removed, because it is the only layer without a norm before "
            "attention; keep layer 0"
        )
    types = tuple(model.config.layer_type(n) for n in keep) if model.config.layer_types else ()
    config = dataclasses.replace(model.config, num_layers=len(keep), layer_types=types)
    return dataclasses.replace(model, params=_changed(model, lambda row: row.stacked, lambda x: x[list(keep)]), config=config)


@dataclasses.dataclass(frozen=True)
class Sources:
    """The old rows from which each row of a new vocabulary is computed."""

    of: tuple[tuple[int, ...], ...]
    """For each new id, the old ids whose rows are averaged. If a piece is in both vocabularies, there is only one id."""
    kept: int
    """The number of pieces in both vocabularies, including special tokens of the same role."""
    spelt: int
    """The number of other new pieces that the old tokenizer encodes without the unknown token."""
    unknown: int
    """The number of new pieces that the old tokenizer encodes with the unknown token."""
    removed: int
    """The number of old pieces that are not in the new vocabulary."""


def find_sources(old: Tokenizer, new: Tokenizer) -> Sources:
    """Returns, for each piece of `new`, the corresponding ids of `old`. A special token corresponds to the old token of the
    same role. A piece that is in both vocabularies corresponds to its old id. The old tokenizer encodes any other piece.

    If both vocabularies are of the same kind, pieces are compared directly. Otherwise, they are compared by their text and by
    whether they continue a word, so WordPiece's "##ing" equals SentencePiece's "ing"."""
    old_ids = {written: i for i, written in enumerate(_written(old)) if i not in old.special_ids}
    roles = {getattr(new, f"{role}_id"): getattr(old, f"{role}_id") for role in reversed(SPECIAL_NAMES)}
    same_kind = old.vocabulary.kind == new.vocabulary.kind
    spelt = {piece: i for i, piece in enumerate(old.pieces) if piece and i not in old.special_ids} if same_kind else {}
    inside = _inside_words(old)
    of: list[tuple[int, ...]] = []
    kept: set[int] = set()
    same_pieces = unknown = 0
    for i, written in enumerate(_written(new)):
        same = roles.get(i, spelt.get(new.pieces[i], old_ids.get(written)))
        if same is not None:
            of.append((same,))
            kept.add(same)
            same_pieces += 1
            continue
        text, continues = written
        follows_space = old.distinguishes_spaces and text[:1].isalnum()
        spelling = tuple(inside(text) if continues else old.encode(f" {text}" if follows_space else text)) or (old.unk_id,)
        unknown += old.unk_id in spelling
        of.append(spelling)
    return Sources(tuple(of), same_pieces, len(of) - same_pieces - unknown, unknown, old.size - len(kept))


_OF_IDS = ("token_id", "token_ids", "words_ids")
"""The endings of the keys of config.json and generation_config.json that hold ids of a vocabulary."""


def with_vocabulary(model: Model, tokenizer: Tokenizer, sources: Sources) -> Model:
    """Returns `model` with the vocabulary of `tokenizer`. The rows of the word embeddings, of the MLM head's bias and of an
    untied decoder are means of old rows, as listed in `sources` (from `find_sources`). Settings that hold ids of the old
    vocabulary are dropped, unless the new vocabulary starts with the old one. Raises UserError if the model is an
    encoder-decoder with two vocabularies."""
    if model.config.decoder_vocab_size:
        raise UserError(
            f"the vocabulary of {model.source or 'this model'} cannot be changed here, because each language has its own; "
            "train a model with the new words"
        )
    config = dataclasses.replace(model.config, vocab_size=tokenizer.size)
    padding = config.padded_vocab_size - config.vocab_size

    def change(table: np.ndarray) -> np.ndarray:
        rows = np.stack([table[list(ids)].mean(0, dtype=np.float64) for ids in sources.of]).astype(np.float32)
        return np.pad(rows, [(0, padding)] + [(0, 0)] * (rows.ndim - 1))

    params = _changed(model, lambda row: _leads(row, "V") or _leads(row, "W"), change)
    changed = dataclasses.replace(model, params=params, config=config, tokenizer=tokenizer)
    if tuple(tokenizer.pieces[: model.tokenizer.size]) == tuple(model.tokenizer.pieces):
        return changed
    fields, generation = (
        {name: value for name, value in kept.items() if not name.endswith(_OF_IDS)}
        for kept in (model.other_fields, model.generation)
    )
    return dataclasses.replace(changed, other_fields=fields, generation=generation)


def extended(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """Returns `tokenizer` with added whole words. A word in brackets, such as "[E1]", is recognised in every text, before its
    other rules.

    Afterwards, WordPiece also uses an added word as the first piece of longer words. In a tokenizer.json, added tokens take the
    ids of [unused0], [unused1], ..., which already have rows. Such tokens are found anywhere in a text, as in transformers.
    Raises UserError if a token is already in the vocabulary. Also raises UserError if no text can produce a token, because the
    text rules change or split it."""
    info = tokenizer.vocabulary
    if info.marks_words:
        there = set(tokenizer.pieces)
        for token in tokens:
            if token in there:
                raise UserError(f"the token {token!r} is in the vocabulary already, or named twice; leave it out")
            there.add(token)
        return with_added_tokens(tokenizer, tokens)
    if info.kind != "wordpiece":
        raise UserError(
            f"tokens cannot be added to a {info.kind} model, because each piece has a probability; train a new vocabulary"
        )
    limit = tokenizer.max_word_characters
    assert limit is not None, "WordPiece has a limit"
    there = set(tokenizer.pieces)
    for token in tokens:
        words = _words(info, token)
        if token in there:
            raise UserError(f"the token {token!r} is in the vocabulary already, or named twice; leave it out")
        if words != [token] and not BRACKETED.fullmatch(token):
            made = f"change it to {words[0]!r}; add {words[0]!r} instead" if words else "remove it; leave it out"
            if len(words) > 1:
                made = f"split it into {', '.join(map(repr, words[:8]))}{', ...' if len(words) > 8 else ''}; add only whole words"
            raise UserError(f"the token {token!r} cannot occur in a tokenised text, because the vocabulary's rules {made}")
        if len(token) > limit:
            raise UserError(
                f"the token {token!r} cannot occur in a tokenised text, because words have at most "
                f"{counted(limit, 'character')}; leave it out"
            )
        there.add(token)
    specials = {role: tokenizer.pieces[getattr(info, f"{role}_id")] for role in SPECIAL_NAMES}
    added = (*tokenizer.added, *(token for token in tokens if BRACKETED.fullmatch(token)))
    wordpiece = _wordpiece(tokenizer, [*tokenizer.pieces, *tokens])
    return Tokenizer(wordpiece, specials=specials, added=added, max_length=tokenizer.max_length)


def read_tokens(path: pathlib.Path) -> list[str]:
    """Returns the tokens of a file with one token per line, in order, without repetitions. Raises UserError if the file cannot
    be read or is empty."""
    if not path.exists():
        raise UserError(f"there is no {missing_path(path)}; give a file with one token per line")
    return list(dict.fromkeys(line.strip() for line in read_text(path).replace("\r", "\n").split("\n") if line.strip()))


def average(models: Iterable[Model]) -> Model:
    """Returns the arithmetic mean of the weights of `models`. The models are read one at a time, and must only differ in their
    weights.

    The sum is in float64, so the order of the models only affects its rounding. If a part is untrained in any of the models, it
    is marked as untrained in the mean. Raises a UserError that lists the differences if the models differ in more than their
    weights."""
    taken = iter(models)
    first = next(taken)
    untrained, count = set(first.untrained), 1
    total = jax.tree.map(lambda x: np.asarray(x, np.float64), (first.params, first.discriminator))
    for model in taken:
        differences = _differences(first, model)
        if differences:
            listed = "; ".join(differences)
            raise UserError(
                f"{first.source} and {model.source} cannot be averaged: {listed}; name models of the same architecture"
            )
        total = jax.tree.map(lambda mine, x: mine + x, total, (model.params, model.discriminator))
        untrained |= model.untrained
        count += 1
    params, discriminator = jax.tree.map(lambda x: (x / count).astype(np.float32), total)
    return dataclasses.replace(first, params=params, discriminator=discriminator, untrained=frozenset(untrained))


def _differences(a: Model, b: Model) -> list[str]:
    pairs: list[tuple[str, object, object]] = []
    architectures = [model.config.with_sliding_theta().architecture for model in (a, b)]
    for mine, other in (architectures, (a.tokenizer.vocabulary, b.tokenizer.vocabulary)):
        for name in (field.name for field in dataclasses.fields(mine)):
            x, y = (by_content(x, name) if isinstance(x := getattr(one, name), str) else x for one in (mine, other))
            pairs.append((name, x, y))
    ours, theirs = (", ".join([*one.parts, *([DISCRIMINATOR] if one.discriminator else [])]) or "none" for one in (a, b))
    pairs += [("parts", ours, theirs), ("head", a.head, b.head)]
    return [f"{name} is {x} and {y}" for name, x, y in pairs if x != y]


def _leads(row: Row, axis: str) -> bool:
    return not row.stacked and row.our_axes.startswith(axis)


def _changed(
    model: Model, which: Callable[[Row], bool], change: Callable[[np.ndarray], np.ndarray]
) -> dict[str, PyTree[np.ndarray]]:
    """Applies `change` to some arrays of the parameter tree, and returns the changed tree. `which` selects the rows of these
    arrays in `names.rows`."""
    chosen = {row.ours for row in rows(model.config, model.head) if which(row)}
    flat = flatten_dict(model.params, sep="/")
    return model.params | unflatten_dict({path: change(x) if path in chosen else x for path, x in flat.items()}, sep="/")


def _written(tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """Returns each piece as (its text, whether it continues a word)."""
    mark = CONTINUATION if tokenizer.vocabulary.kind == "wordpiece" else WORD_START
    continues = tokenizer.continuation_table.tolist()
    return [(piece.removeprefix(mark), continues[i]) for i, piece in enumerate(tokenizer.tokens(range(tokenizer.size)))]


def _inside_words(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Returns a function that encodes a text as the continuation of a word. The function follows the rules of `tokenizer`, but
    only uses pieces that continue a word. If `tokenizer` is not WordPiece, the function is `tokenizer.encode`."""
    info = tokenizer.vocabulary
    if info.kind != "wordpiece":
        return tokenizer.encode
    continuing = np.flatnonzero(tokenizer.continuation_table).tolist()
    marked = [tokenizer.pieces[i] for i in continuing]
    unknown = tokenizer.pieces[info.unk_id]
    wordpiece = _wordpiece(tokenizer, [*(piece.removeprefix(CONTINUATION) for piece in marked), *marked, unknown])
    ids = [*continuing, *continuing, info.unk_id]
    return lambda text: [ids[i] for word in _words(info, text) for i in wordpiece.encode_word(word)]


def _wordpiece(like: Tokenizer, pieces: Sequence[str]) -> WordPiece:
    """Returns a WordPiece tokenizer with new pieces and the text rules of `like`."""
    info = like.vocabulary
    return WordPiece(
        pieces,
        lowercase=info.lowercase,
        strip_accents=info.strip_accents,
        split_cjk=info.split_cjk,
        max_word_characters=like.max_word_characters or MAX_WORD_CHARACTERS,
        unknown=like.pieces[info.unk_id],
    )


def _words(info: VocabularyInfo, text: str) -> list[str]:
    return basic_words(text, info.lowercase, info.strip_accents, info.split_cjk)
