"""Fine-tuning as transformers' PyTorch examples do it, in an interpreter that has both; this repository is on its PYTHONPATH.

    python tests/benchmarks/peer_finetune.py --model=DIR --task=glue/mrpc --data-dir=DIR --seed=1

DIR is a Hugging Face model directory, and the directory of the task's official files: `glue/NAME` (or a directory with a folder
for each task), `wnut17`, or `squad/v1.1` with train-v1.1.json and dev-v1.1.json. `bert_jax.tasks` reads the files and scores
the answers, so that both sides are scored by the same rule. Everything else comes from transformers: the fast tokenizer (which
also cuts a long context into windows, adjacent ones sharing `--stride` tokens), the collators, the models, the heads and
their initial weights, and the schedule. Products are in float32 on the CPU, or in bfloat16 by autocast; dropout follows the
model's configuration.

With --max-steps only speed is measured: an epoch is that many full batches drawn from all rows. It is timed after three warm-up
steps of another epoch, and nothing is evaluated. The last line printed is JSON. Time and rows cover only the training, including
collation but not tokenising.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from transformers.trainer_pt_utils import get_length_grouped_indices

from bert_jax.errors import UserError
from bert_jax.interface.command import run_main
from bert_jax.tasks.entity_scores import entity_scores
from bert_jax.tasks.examples import QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers.conll import read_conll
from bert_jax.tasks.readers.glue import TASKS, GlueTask, read_glue
from bert_jax.tasks.readers.squad import read_squad
from bert_jax.tasks.scores import glue_scores, squad1_scores

Row = dict[str, Any]
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
NAMES = {f"glue/{name.lower().replace('-', '')}": name for name in TASKS if name not in ("MNLI", "AX")}
MEGABATCH = 50  # batches that Trainer's group_by_length sorts together, fewer in a small data set
WARMUP_STEPS = 3  # not timed; used with --max-steps
N_BEST, MAX_ANSWER = 20, 30
NOT_LEARNT = -100  # the label that torch's cross-entropy ignores


@dataclass(frozen=True)
class Job:
    """The parts of a task that training and scoring need."""

    model: type[transformers.PreTrainedModel]
    labels: int
    train: list[Row]
    dev: list[Row]
    collate: Callable[[list[Row]], dict[str, torch.Tensor]]
    scores: Callable[[list[np.ndarray]], dict[str, float]]
    """Scores the logits of each dev row: [C], or [n, C] for its n tokens."""


def main() -> None:
    o = options()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    job = load_job(o, transformers.AutoTokenizer.from_pretrained(o.model, use_fast=True))
    model = load_model(o, job)
    seconds, rows = train(model, job, o)
    result = {"task": o.task, "seed": o.seed, "scores": {} if o.max_steps else job.scores(predict(model, job))}
    result |= {"train_seconds": sum(seconds), "rows_per_second": rows / sum(seconds), "steps": len(seconds)}
    result |= {"seconds": seconds} if o.max_steps else {}
    result |= {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    print(json.dumps(result | {"torch": torch.__version__, "transformers": transformers.__version__}))


def options() -> argparse.Namespace:
    """Parses the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", required=True, choices=[*NAMES, "wnut17", "squad/v1.1"])
    parser.add_argument("--data-dir", required=True, type=pathlib.Path)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the head, the order of the rows and dropout")
    parser.add_argument("--length", type=int, help="the maximum number of tokens in a row (default: 128; SQuAD 384)")
    parser.add_argument("--stride", type=int, default=128, help="the number of tokens that neighbouring windows of SQuAD share")
    parser.add_argument("--train-rows", type=int, default=0, help="use only the first N training examples (0: all)")
    parser.add_argument("--random-init", action="store_true", help="start from random weights in the shape of the model")
    parser.add_argument("--group-by-length", action="store_true", help="batch rows of similar length, like the option of Trainer")
    parser.add_argument("--max-steps", type=int, default=0, help="only measure the speed of this many steps")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="the type of products in training")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    o = parser.parse_args()
    o.length = o.length or (384 if o.task.startswith("squad") else 128)
    return o


def load_job(o: argparse.Namespace, tokenizer: Any) -> Job:
    """Returns the job for --task."""
    if o.task == "wnut17":
        return tagging(o, tokenizer)
    return questions(o, tokenizer) if o.task == "squad/v1.1" else sentences(o, tokenizer, TASKS[NAMES[o.task]])


def load_model(o: argparse.Namespace, job: Job) -> transformers.PreTrainedModel:
    """Returns the model with a new head; everything else comes from the checkpoint, or nothing with --random-init."""
    if o.random_init:
        return job.model(transformers.AutoConfig.from_pretrained(o.model, num_labels=job.labels)).float()
    arguments = {"num_labels": job.labels, "dtype": torch.float32, "output_loading_info": True}
    model, report = job.model.from_pretrained(o.model, **arguments)
    if lacking := [name for name in report["missing_keys"] if not name.startswith(("classifier.", "qa_outputs."))]:
        raise UserError(f"{o.model} lacks {len(lacking)} weights, first {lacking[0]}; give the directory of a whole BERT model")
    return model


def train(model: transformers.PreTrainedModel, job: Job, o: argparse.Namespace) -> tuple[list[float], int]:
    """Trains the model in place. Returns (seconds of each step, number of rows in all steps)."""
    plain = {name for name, _ in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name}
    groups = [
        {"params": [p for name, p in model.named_parameters() if name not in plain], "weight_decay": 0.01},
        {"params": [p for name, p in model.named_parameters() if name in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o.learning_rate, betas=(0.9, 0.999), eps=1e-6, fused=True)
    steps = o.epochs * -(-len(job.train) // o.batch_size)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    generator = torch.Generator().manual_seed(o.seed)

    def step(rows: list[Row]) -> float:
        """Returns the loss of a step, as a float on the host."""
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bfloat16"):
            loss = model(**job.collate(rows)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    model.train()
    rows = job.train
    if o.max_steps:
        rows = sample(rows, o.max_steps * o.batch_size, generator)
        for batch in itertools.islice(batches(rows, o, generator), WARMUP_STEPS):
            step(batch)
    epochs = 1 if o.max_steps else o.epochs
    seconds = []
    for epoch in range(epochs):
        losses = []
        started = time.perf_counter()
        for batch in batches(rows, o, generator):
            losses.append(step(batch))
            seconds.append(time.perf_counter() - started)
            started = time.perf_counter()
        print(f"epoch {epoch + 1} of {epochs}: mean loss {np.mean(losses):.4f}, {sum(seconds):.0f}s", file=sys.stderr)
    return seconds, epochs * len(rows)


def sample(rows: Sequence[Row], count: int, generator: torch.Generator) -> list[Row]:
    """Returns this many of the rows."""
    if count > len(rows):
        raise UserError(f"--max-steps needs {count} rows and there are {len(rows)}; lower it or --batch-size")
    return [rows[i] for i in torch.randperm(len(rows), generator=generator)[:count]]


def batches(rows: Sequence[Row], o: argparse.Namespace, generator: torch.Generator) -> Iterator[list[Row]]:
    """Yields one epoch in a new order; the last batch may be smaller."""
    if o.group_by_length:
        lengths = [len(row["input_ids"]) for row in rows]
        # with --max-steps there are few rows, which are sorted in groups as small as a large data set would have them
        order = get_length_grouped_indices(lengths, o.batch_size, MEGABATCH if o.max_steps else None, generator)
    else:
        order = torch.randperm(len(rows), generator=generator).tolist()
    for i in range(0, len(rows), o.batch_size):
        yield [rows[k] for k in order[i : i + o.batch_size]]


def predict(model: transformers.PreTrainedModel, job: Job) -> list[np.ndarray]:
    """Returns the logits of every dev row, float32 [C], or [n, C] for its n tokens (for a span, C = 2: start and end)."""
    model.eval()
    logits: list[Any] = [None] * len(job.dev)
    order = sorted(range(len(job.dev)), key=lambda i: len(job.dev[i]["input_ids"]))
    for first in range(0, len(order), 32):
        chosen = order[first : first + 32]
        with torch.inference_mode():
            out = model(**job.collate([job.dev[i] for i in chosen]))
        values = out.logits if "logits" in out else torch.stack((out.start_logits, out.end_logits), -1)
        for i, value in zip(chosen, values.numpy(), strict=True):
            logits[i] = value[: len(job.dev[i]["input_ids"])] if value.ndim == 2 else value
    return logits


def sentences(o: argparse.Namespace, tokenizer: Any, task: GlueTask) -> Job:
    """Returns the job for classification or regression of texts and pairs of GLUE."""

    def rows(examples: Sequence[TextExample], labels: list[Any] | None) -> list[Row]:
        pair = [e.text_b for e in examples] if task.text_b else None
        encoded = tokenizer([e.text for e in examples], pair, truncation=True, max_length=o.length)
        return [
            {name: encoded[name][i] for name in INPUTS} | ({"label": labels[i]} if labels else {}) for i in range(len(examples))
        ]

    def labels(examples: Sequence[TextExample]) -> list[Any]:
        return [e.label if task.is_regression else task.labels.index(e.label) for e in examples]

    train, dev = read_glue(task.name, o.data_dir, "train")[: o.train_rows or None], read_glue(task.name, o.data_dir, "dev")

    def scores(logits: list[np.ndarray]) -> dict[str, float]:
        said = np.array([values[0] if task.is_regression else values.argmax() for values in logits])
        return glue_scores(o.task.removeprefix("glue/"), said, np.array(labels(dev)))

    model, collate = transformers.BertForSequenceClassification, transformers.DataCollatorWithPadding(tokenizer)
    return Job(model, len(task.labels) or 1, rows(train, labels(train)), rows(dev, None), collate, scores)


def tagging(o: argparse.Namespace, tokenizer: Any) -> Job:
    """Returns the job that tags the first piece of each word; a word that is cut off, or has no piece, counts as O."""

    def rows(examples: Sequence[WordsExample], known: dict[str, int] | None) -> tuple[list[Row], list[dict[int, int]]]:
        """Returns rows and, for each row, the column of every word's first piece."""
        words = [list(e.words) for e in examples]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=o.length)
        made, places = [], []
        for i, example in enumerate(examples):
            first: dict[int, int] = {}
            for column, word in enumerate(encoded.word_ids(i)):
                if word is not None:
                    first.setdefault(word, column)
            row = {name: encoded[name][i] for name in INPUTS}
            if known:
                row["labels"] = [NOT_LEARNT] * len(row["input_ids"])
                for word, column in first.items():
                    row["labels"][column] = known[example.labels[word]]
            made.append(row)
            places.append(first)
        return made, places

    train = read_conll(o.data_dir / "wnut17train.conll")[: o.train_rows or None]
    dev = read_conll(o.data_dir / "emerging.dev.conll")
    tags = sorted({"O"}.union(*(e.labels for e in train)))
    dev_rows, places = rows(dev, None)

    def scores(logits: list[np.ndarray]) -> dict[str, float]:
        said = [["O"] * len(e.words) for e in dev]
        for tagged, values, first in zip(said, logits, places, strict=True):
            for word, column in first.items():
                tagged[word] = tags[values[column].argmax()]
        overall, _ = entity_scores(said, [e.labels for e in dev])
        return {"precision": overall.precision, "recall": overall.recall, "f1": overall.f1}

    model, collate = transformers.BertForTokenClassification, transformers.DataCollatorForTokenClassification(tokenizer)
    return Job(model, len(tags), rows(train, {tag: i for i, tag in enumerate(tags)})[0], dev_rows, collate, scores)


@dataclass(frozen=True)
class Seen:
    """The part of an example's context in a window: the [start, end) of each of its tokens; None for the question and [SEP]s."""

    example: int
    offsets: list[tuple[int, int] | None]


def questions(o: argparse.Namespace, tokenizer: Any) -> Job:
    """Returns the job that finds answer spans in contexts, read in windows; with several gold answers the first is the target."""

    def rows(examples: Sequence[QuestionExample], learnt: bool) -> tuple[list[Row], list[Seen]]:
        encoded = tokenizer(
            [e.question.strip() for e in examples],
            [e.context for e in examples],
            truncation="only_second",
            max_length=o.length,
            stride=o.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        made, seen = [], []
        for i, example in enumerate(encoded["overflow_to_sample_mapping"]):
            inside = encoded.sequence_ids(i)
            offsets = [place if part == 1 else None for place, part in zip(encoded["offset_mapping"][i], inside, strict=True)]
            row = {name: encoded[name][i] for name in INPUTS}
            if learnt:
                row["start_positions"], row["end_positions"] = target(offsets, *examples[example].answers[0])
            made.append(row)
            seen.append(Seen(example, offsets))
        return made, seen

    train, dev = (read_squad(o.data_dir / f"{split}-v1.1.json") for split in ("train", "dev"))
    train = [e for e in train if e.answers[0][1] is not None][: o.train_rows or None]
    dev_rows, seen = rows(dev, False)

    def scores(logits: list[np.ndarray]) -> dict[str, float]:
        best: dict[int, tuple[float, str]] = {}
        for values, window in zip(logits, seen, strict=True):
            found = best_answer(values, window.offsets, dev[window.example].context)
            best[window.example] = max(best.get(window.example, found), found, key=lambda answer: answer[0])
        gold = {e.id: [text for text, _ in e.answers] for e in dev}
        return squad1_scores(gold, {dev[example].id: text for example, (_, text) in best.items()})

    model, collate = transformers.BertForQuestionAnswering, transformers.DataCollatorWithPadding(tokenizer)
    return Job(model, 2, rows(train, True)[0], dev_rows, collate, scores)


def target(offsets: Sequence[tuple[int, int] | None], text: str, start: int) -> tuple[int, int]:
    """Returns the columns of an answer's first and last token, or (0, 0), [CLS], if the window does not contain all of it."""
    end = start + len(text)
    columns = [(column, *place) for column, place in enumerate(offsets) if place]
    if not columns or columns[0][1] > start or columns[-1][2] < end:
        return 0, 0
    return max(c for c, begins, _ in columns if begins <= start), min(c for c, _, ends in columns if ends >= end)


def best_answer(logits: np.ndarray, offsets: Sequence[tuple[int, int] | None], context: str) -> tuple[float, str]:
    """Returns (score, text) of a window's best legal pair among its N_BEST best starts and ends; (-inf, "") if none is legal."""
    starts, ends = (np.argsort(-logits[:, i], kind="stable")[:N_BEST] for i in (0, 1))
    legal = [(s, e) for s in starts for e in ends if offsets[s] and offsets[e] and s <= e < s + MAX_ANSWER]
    if not legal:
        return -np.inf, ""
    start, end = max(legal, key=lambda pair: logits[pair[0], 0] + logits[pair[1], 1])
    return float(logits[start, 0] + logits[end, 1]), context[offsets[start][0] : offsets[end][1]]


if __name__ == "__main__":
    run_main(main)
