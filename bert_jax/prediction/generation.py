"""`generate`: continues texts with a left-to-right model."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Int

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.model.embeddings import check_ids
from bert_jax.prediction.commands import GenerateOptions
from bert_jax.prediction.decoding import Decoding, Knobs, Prompts, check_beams, continued
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.packing import Item, power_of_two, row_length
from bert_jax.prediction.questions import encoded, shortened


@dataclasses.dataclass(frozen=True)
class Generate(GenerateOptions):
    """Generates up to `tokens` new tokens per text, until the model ends the text with [SEP].

    The default is greedy decoding. With `temperature`, `top_k` or `top_p`, tokens are sampled. The logits are divided by
    `temperature`. Then only the `top_k` most probable tokens are kept. Of these, only the nucleus is kept: the smallest set of
    most probable tokens whose probabilities sum to `top_p` (arXiv:1904.09751). Beam search keeps `beams` hypotheses. Keys and
    values of earlier tokens are cached, so each new token is one row in the model's matrix products."""

    fields = (Field("text"),)

    @functools.cached_property
    def _numbers(self) -> Iterator[int]:
        """Yields the index of each text, counted over all calls of `answer`. The sampled tokens of a text depend on this index
        and on `seed`. They do not depend on the other texts of the batch, because timing decides which texts of a pipe
        share a batch."""
        return itertools.count()

    @property
    def sample(self) -> bool:
        """Whether tokens are sampled."""
        return any(option is not None for option in (self.temperature, self.top_k, self.top_p))

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model is not left-to-right or has no MLM head, or if options contradict each other."""
        engine.require_direction("left_to_right", "generate text")
        if not engine.config.has_attention or is_in_file(engine.config.encoder):
            kind = engine.config.encoder
            raise UserError(f"{engine.name} is a {kind} model, which cannot generate text; name a left-to-right BERT")
        engine.require("mlm_head", "generate text")
        most = engine.config.max_position - 2
        if not 1 <= self.tokens <= most:
            raise UserError(
                f"--tokens={self.tokens} must be between 1 and {most}, so that [CLS] and one token of the text fit into the "
                f"model's {counted(engine.config.max_position, 'position')}; extend them with convert --max-position=N"
            )
        if self.beams > 1 and self.sample:
            raise UserError(
                f"--beams={self.beams} searches for the most probable text, but --temperature, --top-k and --top-p sample a "
                "text; leave out --beams or all of these"
            )
        check_beams(self.beams, engine.model.tokenizer.size)

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[str, Item]:
        """Returns (the text of a record, [CLS] followed by its tokens). Raises UserError if no room is left for new tokens."""
        item = encoded(engine, values["text"])
        ids, room = item.ids[:-1], engine.config.max_position - self.tokens
        if len(ids) > room:
            raise UserError(
                f"{shortened(values['text'])} is {counted(len(ids), 'token')} with its [CLS]. With "
                f"--tokens={self.tokens} new tokens, it exceeds the model's {counted(engine.config.max_position, 'position')}; "
                "shorten it, or lower --tokens"
            )
        return values["text"], Item(ids)

    def answer(self, engine: Engine, prepared: Sequence[tuple[str, Item]]) -> list[JsonObject]:
        """Returns the continuation of each text. Texts of similar length are processed together."""
        answers: list[JsonObject] = [{}] * len(prepared)
        room = row_length(self.tokens)
        numbers = [next(self._numbers) for _ in prepared]
        order = sorted(range(len(prepared)), key=lambda i: len(prepared[i][1].ids))
        while order:
            columns = row_length(len(prepared[order[-1]][1].ids)) + room
            most = engine.mesh.size * max(1, engine.tokens // columns // self.beams)
            some, order = order[-most:], order[:-most]
            found = self._continued(engine, [prepared[i][1] for i in some], [numbers[i] for i in some], room)
            for i, answer in zip(some, found, strict=True):
                answers[i] = {"text": prepared[i][0], **answer}
        return answers

    def _continued(self, engine: Engine, items: Sequence[Item], numbers: Sequence[int], room: int) -> list[JsonObject]:
        tokenizer = engine.model.tokenizer
        decoding = Decoding(
            end_id=tokenizer.sep_id, pad_id=tokenizer.pad_id, sample=self.sample, top_k=self.top_k or 0,
            nucleus=self.top_p is not None, beams=self.beams, pieces=tokenizer.size,
        )  # fmt: skip
        knobs = Knobs(self.tokens, self.temperature or 1.0, 1.0 if self.top_p is None else self.top_p)
        rows = engine.mesh.size * power_of_two(-(-len(items) // engine.mesh.size))
        length = row_length(max(len(item.ids) for item in items))
        ids, real = np.full((rows, length), tokenizer.pad_id, np.int32), np.zeros((rows, length), bool)
        real[:, -1] = True  # a row without a text reads one token
        for row, item in enumerate(items):
            ids[row, length - len(item.ids) :], real[row, length - len(item.ids) :] = item.ids, True
        check_ids(engine.config, input_ids=ids)
        seeds = np.zeros(rows, np.uint32)
        seeds[: len(items)] = numbers
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self.seed), seeds)
        prompts = Prompts(engine.on_devices(ids), engine.on_devices(real), keys)
        found = jax.device_get(continued(engine.params, prompts, knobs, config=engine.config, decoding=decoding, room=room))
        engine.batch_count += 1
        answers = []
        for row, item in enumerate(items):
            answer = _answer(engine, item, found.ids[row, : self.tokens])
            answer["log_probability"] = float(found.log_probability[row])
            if found.score is not None:
                answer["score"] = float(found.score[row])
            answers.append(answer)
        return answers

    def as_text(self, answer: JsonObject) -> str:
        """Returns the text with its continuation."""
        return str(answer["continued"])

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


def _answer(engine: Engine, item: Item, new: Int[np.ndarray, " N"]) -> JsonObject:
    tokenizer = engine.model.tokenizer
    ends = np.flatnonzero(new == tokenizer.sep_id)
    ids = new[: ends[0]].tolist() if len(ends) else new.tolist()
    return {
        "continued": tokenizer.decode([*item.ids[1:], *ids]),
        "tokens": tokenizer.tokens(ids),
        "ended": bool(len(ends)),
    }
