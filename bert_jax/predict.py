"""A trained model answers on the command line.

    python -m bert_jax.predict fill-mask --model=DIR "The capital of France is [MASK]."
    python -m bert_jax.predict fill-mask --model=DIR --input=FILE --json > answers.jsonl

DIR is a Hugging Face model directory or the workdir of a run. Texts come as arguments, from --input=FILE or from standard input,
one a line (blank lines are skipped), and the answers keep their order.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.corpus.tokenizer import Tokenizer
from bert_jax.interop.huggingface import import_model
from bert_jax.model.attention import attention_mask
from bert_jax.model.embeddings import check_ids
from bert_jax.model.heads import gather_positions
from bert_jax.model.layers import Array
from bert_jax.model.pretraining import BertForPreTraining
from bert_jax.model.settings import ModelConfig
from bert_jax.terminal import FlagParser, UserError, nearest, run_verb

BATCH_TOKENS = 4096
BATCH_ROWS = 32
WINDOW = 1024
"""Texts read ahead, to put those of like length in one batch."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One word the model would put in a [MASK]."""

    token: str
    id: int
    probability: float


class Predictor:
    """A loaded model that answers any number of texts, compiling once for each shape of batch it meets.

    Lengths and numbers of rows are padded to powers of two, the [MASK]s of a row to powers of four; BATCH_TOKENS and BATCH_ROWS
    bound a batch. So a long mixed input compiles a handful of programs, and a short one does no more work than it needs.
    """

    def __init__(self, params: Mapping[str, Any], config: ModelConfig, tokenizer: Tokenizer):
        self.params, self.tokenizer = jax.device_put(params), tokenizer
        self.config = dataclasses.replace(config, scan_unroll=1)  # one layer compiles: Base's first answer in 0.9 s, not 1.8

    @classmethod
    def load(cls, model: str | os.PathLike) -> Predictor:
        """From a Hugging Face directory or a workdir; UserError when it is neither."""
        return cls(*import_model(model))

    def fill_mask(self, texts: Sequence[str], top_k: int = 5, places: Sequence[str] | None = None) -> list[list[list[Candidate]]]:
        """For every text, for every [MASK] in it, its `top_k` most probable tokens, best first; each [MASK] is judged on its own.

        Raises UserError for a text with no [MASK] or longer than the position table, naming it by its entry of `places`, and for
        a model without an MLM head.
        """
        if "mlm_head" not in self.params:
            raise UserError("this model has no masked-language-model head, so it cannot fill a [MASK]; name a model that has one")
        if not 1 <= top_k <= self.config.vocab_size:
            raise UserError(f"--top-k={top_k} must be between 1 and the vocabulary's {self.config.vocab_size:,}")
        encoded = [self._encode_masked(text, place) for text, place in zip(texts, places or [""] * len(texts), strict=True)]
        answers: list[list[list[Candidate]]] = [[] for _ in texts]
        for shape, members in _batches([self._shape(ids) for ids in encoded]):
            batch = self._batch([encoded[i] for i in members], *shape)
            ids, probabilities = jax.device_get(_fill_mask(self.params, batch, self.config, top_k))
            tokens = np.array(self.tokenizer.tokens(ids.ravel().tolist()), object).reshape(ids.shape)
            for row, i in enumerate(members):
                for m in range(encoded[i].count(self.tokenizer.mask_id)):
                    columns = (tokens[row, m], ids[row, m].tolist(), probabilities[row, m].tolist())
                    answers[i].append([Candidate(*candidate) for candidate in zip(*columns, strict=True)])
        return answers

    def filled(self, text: str, masks: Sequence[Sequence[Candidate]]) -> str:
        """`text` with every [MASK] replaced by its best candidate; a `##` piece joins the word before it."""
        mask = self.tokenizer.pieces[self.tokenizer.mask_id]
        for candidates in masks:
            before, _, after = text.partition(mask)
            token = candidates[0].token
            text = f"{before.rstrip()}{token[2:]}{after}" if token.startswith("##") else f"{before}{token}{after}"
        return text

    def _encode_masked(self, text: str, place: str) -> list[int]:
        tokenizer, limit = self.tokenizer, self.config.max_position
        ids = [tokenizer.cls_id, *tokenizer.encode_with_specials(text), tokenizer.sep_id]
        if tokenizer.mask_id not in ids:
            mask = tokenizer.pieces[tokenizer.mask_id]
            remedy = "write it in capitals" if mask.lower() in text.lower() else "put one where a word is to be guessed"
            raise UserError(f"{place}no {mask} in {_shortened(text)}; {remedy}")
        if len(ids) > limit:
            raise UserError(
                f"{place}{_shortened(text)} is {len(ids)} tokens with its [CLS] and [SEP], more than the {limit} of the model's "
                "position table; shorten or split it"
            )
        return ids

    def _shape(self, ids: list[int]) -> tuple[int, int]:
        """(padded length, padded number of masks) of a text: with the number of rows, what a compiled program is made for."""
        length = min(max(16, _power_of_two(len(ids))), self.config.max_position)
        masks = 4
        while masks < ids.count(self.tokenizer.mask_id):
            masks *= 4
        return length, min(masks, length)

    def _batch(self, rows: Sequence[list[int]], length: int, masks: int) -> dict[str, np.ndarray]:
        """The model's inputs, int32 [B, length] and [B, masks]; spare rows are all padding."""
        count = _power_of_two(len(rows))
        input_ids = np.full((count, length), self.tokenizer.pad_id, np.int32)
        sequence_ids = np.zeros((count, length), np.int32)
        masked_positions = np.zeros((count, masks), np.int32)
        for row, ids in enumerate(rows):
            input_ids[row, : len(ids)] = ids
            sequence_ids[row, : len(ids)] = 1
            places = np.flatnonzero(np.equal(ids, self.tokenizer.mask_id))
            masked_positions[row, : len(places)] = places
        check_ids(self.config, input_ids=input_ids)
        return {"input_ids": input_ids, "sequence_ids": sequence_ids, "masked_positions": masked_positions}


@functools.partial(jax.jit, static_argnames=("config", "top_k"))
def _fill_mask(params: Mapping[str, Any], batch: Mapping[str, Array], config: ModelConfig, top_k: int) -> tuple[Array, Array]:
    """The `top_k` likeliest ids int32 [B, M, top_k] at the masked positions, and their probabilities over the vocabulary."""
    logits: Any = BertForPreTraining(config).apply({"params": params}, batch, method=_masked_logits)
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), top_k)
    return ids, probabilities


def _masked_logits(model: BertForPreTraining, batch: Mapping[str, Array]) -> Array:
    """The forward pass as far as the MLM head: a model saved without pooler or NSP head has all it needs."""
    input_ids = batch["input_ids"]
    positions = jax.lax.broadcasted_iota(jnp.int32, input_ids.shape, 1)
    embedded = model.embeddings(input_ids, jnp.zeros_like(input_ids), positions, None)
    last, _ = model.encoder(embedded, attention_mask(batch["sequence_ids"]), None)
    return model.mlm_head(gather_positions(last, batch["masked_positions"]), model.embeddings.word_embeddings.embedding)


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


def _batches(shapes: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """(shape, indices) of batches that hold texts of one shape each."""
    by_shape: dict[tuple[int, int], list[int]] = {}
    for i, shape in enumerate(shapes):
        by_shape.setdefault(shape, []).append(i)
    for shape, members in sorted(by_shape.items()):
        rows = max(1, min(BATCH_ROWS, BATCH_TOKENS // shape[0]))
        for start in range(0, len(members), rows):
            yield shape, members[start : start + rows]


def _shortened(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else f"{text[: most - 3]}...")


# The command line


@dataclasses.dataclass(frozen=True)
class Verb:
    """One thing a model can be asked on the command line."""

    summary: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def add_fill_mask_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `fill-mask` alone."""
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="candidates for each [MASK] (5)")


def fill_mask(flags: argparse.Namespace) -> None:
    """The verb: reads texts, prints the most probable words for each of their masks."""
    predictor = Predictor.load(flags.model)
    for window in _windows(_texts(flags)):
        texts = [text for _, text in window]
        for text, masks in zip(texts, predictor.fill_mask(texts, flags.top_k, [place for place, _ in window]), strict=True):
            print(fill_mask_json(predictor, text, masks) if flags.json else fill_mask_text(text, masks), flush=True)


def fill_mask_json(predictor: Predictor, text: str, masks: Sequence[Sequence[Candidate]]) -> str:
    """One answer as a line of JSON: the text, the text with the best words filled in, and every mask's candidates."""
    record = {"text": text, "filled": predictor.filled(text, masks), "masks": [[dataclasses.asdict(c) for c in m] for m in masks]}
    return json.dumps(record, ensure_ascii=False)


def fill_mask_text(text: str, masks: Sequence[Sequence[Candidate]]) -> str:
    """One answer for a person: the text, then a line per candidate."""
    lines = [text]
    for number, candidates in enumerate(masks, 1):
        lines += [f"  [MASK] {number}"] if len(masks) > 1 else []
        lines += [f"  {candidate.probability:7.2%}  {candidate.token}" for candidate in candidates]
    return "\n".join(lines)


VERBS = {"fill-mask": Verb("guess the words behind each [MASK] of a text", add_fill_mask_flags, fill_mask)}


def main(argv: Sequence[str] | None = None) -> None:
    """The verb; `argv` stands for the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbs = "\n".join(f"  {name:12} {verb.summary}" for name, verb in VERBS.items())
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\nVerbs (each has --help):\n{verbs}")
        return
    name = arguments[0]
    if name not in VERBS:
        raise UserError(f"unknown verb {name!r}: {nearest(name, VERBS)}; python -m bert_jax.predict --help")
    parser = FlagParser(prog=f"python -m bert_jax.predict {name}", description=VERBS[name].summary)
    parser.add_argument("--model", required=True, metavar="DIR", help="Hugging Face model directory, or the workdir of a run")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, standard input is read, one a line")
    parser.add_argument("--input", metavar="FILE", help="texts from a file, one a line")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text for people")
    VERBS[name].add_flags(parser)
    flags = parser.parse_args(arguments[1:])
    VERBS[name].run(flags)


def _texts(flags: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(where it stands, text) of every text to answer, as it is read; blank lines are skipped."""
    if flags.texts and flags.input:
        raise UserError("both texts and --input are given; give the texts as arguments, or --input=FILE, not both")
    if flags.texts:
        yield from (("", text) for text in flags.texts)
    elif flags.input:
        try:
            with pathlib.Path(flags.input).open("rb") as lines:
                yield from _lines(lines, flags.input)
        except OSError as error:
            raise UserError(f"--input={flags.input} cannot be read: {error.strerror}") from error
    else:
        if sys.stdin.isatty():
            print("one text a line; end with Ctrl-D", file=sys.stderr)
        yield from _lines(sys.stdin.buffer, "standard input")


def _lines(lines: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UserError(f"{name}, line {number}: byte {error.start + 1} is not UTF-8; convert the text with iconv") from error
        if text:
            yield f"{name}, line {number}: ", text


def _windows(texts: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """`texts` in lists of WINDOW; one at a time from a person who types and waits for each answer."""
    waiting = iter(texts)
    size = 1 if sys.stdin.isatty() else WINDOW
    while window := list(itertools.islice(waiting, size)):
        yield window


if __name__ == "__main__":
    run_verb(main)
