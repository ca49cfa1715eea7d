"""Writes the texts of a task's training examples, without their labels, as text for a corpus.

    python -m bert_jax.tasks.texts --task=glue/sst2 --data-dir=DIR --output=sst2.jsonl
    python -m bert_jax.corpus --source=jsonl:sst2.jsonl --vocab=MODEL --output=runs/sst2_corpus

Before a model is trained on the task, it is pretrained further on this corpus (stage 2 of ULMFiT, arXiv:1801.06146; task-adaptive
pretraining, arXiv:2004.10964). Dev and test sets are left out. A line holds {"text": ...} with the texts of one example, each as
a paragraph. A text that occurred before, such as the context of another question, is left out."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.tasks.texts")

import json
import os
from collections.abc import Iterable, Iterator, Sequence

from bert_jax.errors import UserError
from bert_jax.files import write_text
from bert_jax.interface.flags import FlagParser, nonempty
from bert_jax.interface.output import checked_target, writing
from bert_jax.interface.words import counted


def documents(examples: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields a document for each example that has new texts. Each text is on one line. Texts that are empty or occurred before
    are left out."""
    seen: set[str] = set()
    for texts in examples:
        lines = [line for text in texts if (line := " ".join(text.split())) and line not in seen]
        if lines:
            seen.update(lines)
            yield "\n".join(lines)


def write_texts(task: str, data_dir: str, output: str | os.PathLike[str]) -> int:
    """Writes the texts of the task's training examples, and returns the number of documents. Raises UserError if the task is
    unknown, if its texts are in the user's own files, if data is missing, or if the output cannot be written."""
    from bert_jax.tasks.config import TaskConfig
    from bert_jax.tasks.task import load_task  # these imports take seconds

    if task.startswith("own/"):
        raise UserError(
            f"the texts of --task={task} are in your own files; pass the files to bert_jax.corpus as --source=jsonl:FILE"
        )
    target = checked_target(os.fspath(output))
    try:
        examples = load_task(TaskConfig(name=task, data_dir=data_dir)).splits["train"]
    except UserError as error:  # the message names keys of the configuration, but this command has flags
        raise UserError(str(error).replace("config.task.name", "--task").replace("config.task.data_dir", "--data-dir")) from error
    found = list(documents(example.texts for example in examples))
    with writing(f"--output={os.fspath(output)}"):
        write_text(target, "".join(json.dumps({"text": text}) + "\n" for text in found))
    return len(found)


def main() -> None:
    """Runs the command."""
    parser = FlagParser(prog="python -m bert_jax.tasks.texts", description=__doc__)
    task = parser.group("the task and its texts")
    task.add_argument("--task", type=nonempty, required=True, metavar="NAME", help="the name of a task, such as glue/sst2")
    of_data = "the directory of its official files (default: the tfds catalogue)"
    task.add_argument("--data-dir", default="", metavar="DIR", help=of_data)
    task.add_argument("--output", type=nonempty, required=True, metavar="FILE", help="the output file (JSON lines)")
    flags = parser.parse_args()
    print(f"{flags.output}: {counted(write_texts(flags.task, flags.data_dir, flags.output), 'document')}")
