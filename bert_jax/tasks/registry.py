"""Every task by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bert_jax.tasks import choice_task, mention_task, span_task, text_task, token_task
from bert_jax.tasks.tables import Say, note
from bert_jax.tasks.task import Task, TaskConfig
from bert_jax.terminal import UserError, nearest

_LOADERS: Mapping[str, Callable[[TaskConfig, Say], Task]] = {
    name: module.load for module in (text_task, choice_task, mention_task, token_task, span_task) for name in module.NAMES
}
NAMES = tuple(_LOADERS)
"""What `TaskConfig.name` may be."""


def load_task(config: TaskConfig, say: Say = note) -> Task:
    """The task that `config.name` names, with its examples.

    `say` takes a sentence about what of its files could not be read as it stands. Raises UserError for a name that is none, and
    for files that are missing or faulty.
    """
    if config.name not in _LOADERS:
        raise UserError(f"config.task.name={config.name!r} is no task; {nearest(config.name, NAMES)}")
    return _LOADERS[config.name](config, say)
