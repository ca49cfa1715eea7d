"""Every task by its name."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.tasks import choice_task, mention_task, span_task, text_task, token_task
from bert_jax.tasks.tables import Say, note
from bert_jax.tasks.task import Task, TaskConfig
from bert_jax.terminal import UserError, looked_for, nearest

_MODULES = (text_task, choice_task, mention_task, token_task, span_task)
_LOADERS: Mapping[str, Callable[[TaskConfig, Say], Task]] = {name: module.load for module in _MODULES for name in module.NAMES}
_KINDS: Mapping[str, str] = {name: module.KIND for module in _MODULES for name in module.NAMES}
NAMES = tuple(_LOADERS)
"""What `TaskConfig.name` may be."""


def load_task(config: TaskConfig, say: Say = note) -> Task:
    """The task that `config.name` names, with its examples.

    `say` takes a sentence about what of its files could not be read as it stands. Raises UserError for a name that is none, and
    for files that are missing or faulty.
    """
    load = _known(config.name, _LOADERS)
    official = not config.name.startswith("own/")  # which have their files each by its own key
    if official and config.data_dir and not pathlib.Path(config.data_dir).is_dir():
        is_file = pathlib.Path(config.data_dir).exists()
        what = f"{config.data_dir} is a file" if is_file else f"{looked_for(config.data_dir)} is not there"
        raise UserError(f"config.task.data_dir={what}; give the directory that holds the files of {config.name}")
    return load(config, say)


def head_kind(name: str) -> str:
    """The `HeadConfig.kind` of the task of that name, which needs none of its files. Raises UserError for a name that is none."""
    return _known(name, _KINDS)


def _known(name: str, by_name: Mapping[str, Any]) -> Any:
    if name not in by_name:
        raise UserError(f"config.task.name={name!r} is no task; {nearest(name, NAMES)}")
    return by_name[name]
