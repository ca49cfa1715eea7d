"""Parses command-line flags. Mistakes raise UserError."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, TypeVar

from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import read_files_again
from bert_jax.interface.ranges import InRange, allowed_words, hints, intervals, value_types

Options = TypeVar("Options")
Flags = argparse._ActionsContainer
"""A parser or a group of flags, to which flags are added."""
HELP_WIDTH = 100
"""The maximum width of help texts in columns."""


FIGURE_FORMATS: tuple[str, ...] = ("png", "pdf", "svg")
PAGE_FORMATS = ("html", "json", *FIGURE_FORMATS)


def expand_home(path: str, given: str) -> str:
    """Expands `~` or `~USER` at the start of `path` to the home directory. Other paths are returned unchanged.

    A shell does not expand `~` after `=`, so `--to=~/m` would otherwise create a directory named `~`. Raises UserError with
    `given`, the flag or key with its value, if there is no such user or HOME is not set."""
    if not path.startswith("~"):
        return path
    expanded = os.path.expanduser(path) if os.environ.get("HOME", "/") else path  # noqa: PTH111 - keeps the text of a pattern
    if expanded == path:
        user = path[1:].partition("/")[0]
        reason = f"there is no user {user!r}" if user else "HOME is not set"
        raise UserError(f"{given}: {reason}, so ~ cannot be expanded; write the full path, or ./{path} for a file of that name")
    return expanded


def nonempty(text: str) -> str:
    """Returns `text` unchanged. This function is the `type=` of a flag that names a file or a model. Raises ArgumentTypeError
    if `text` is blank."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"={text} is empty; give a name, or leave the flag out")
    return text


def nonempty_path(text: str) -> pathlib.Path:
    """Returns `text` as a path. This function is the `type=` of a flag that names a local file or directory. Raises
    ArgumentTypeError if `text` is blank, since an empty path would be the current directory."""
    return pathlib.Path(nonempty(text))


def steps_to_profile(text: str) -> range:
    """Parses a range of steps, written as FIRST:LAST. This function is the `type=` of a flag. Raises argparse.ArgumentTypeError
    if `text` has another form."""
    numbers = re.fullmatch(r"(\d{1,10}):(\d{1,10})", text)
    if not numbers or not (steps := range(int(numbers[1]), int(numbers[2]))):
        raise argparse.ArgumentTypeError(
            f"={text} must be FIRST:LAST, two whole numbers with FIRST at least 0 and below LAST; 10:15 means the five steps "
            "after step 10"
        )
    return steps


def names_with_commas(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Returns the `type=` of a flag that accepts a comma-separated list of the names `known`. It raises
    argparse.ArgumentTypeError for other names."""

    def read(text: str) -> tuple[str, ...]:
        for name in (found := tuple(text.split(","))):
            if name not in known:
                raise argparse.ArgumentTypeError(f"={text} is unknown: {nearest(name, known)}")
        return tuple(dict.fromkeys(found))

    return read


def format_flag(parser: Flags, pages: bool = False) -> None:
    """Adds the flag --format of a command that draws figures. With `pages`, the output may also be an HTML page (the default)
    or JSON."""
    known, of_format = FIGURE_FORMATS, "the formats of figures: png, pdf, svg"
    if pages:
        known, of_format = PAGE_FORMATS, "html is a page, json has the numbers; png, pdf and svg are figures"
    parser.add_argument("--format", type=names_with_commas(known), default=known[:1], metavar="F,F", help=of_format)


def in_formats(name: str, formats: Sequence[str]) -> list[str]:
    """Returns one file name per format for the figure `name`, which ends in .png. If `name` does not end in .png, returns it
    unchanged."""
    return [f"{name.removesuffix('.png')}.{form}" for form in formats] if name.endswith(".png") else [name]


def flag(
    default: Any, text: str, metavar: str | None = None, name: str = "", read: Callable[[str], object] | None = None
) -> Any:
    """Returns a dataclass field that becomes a flag with this default, help `text`, and `name` (default: the field's name).
    `read` converts the flag's text to its value (default: the annotation decides, see `add_option_flags`)."""
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar, "flag": name, "read": read})


def add_option_flags(parser: Flags, options: type, *names: str) -> None:
    """Adds the flags of an options dataclass, or only the flags of its fields `names`.

    A bool becomes a switch that negates its default, or the two flags --NAME and --no-NAME if its default is None. A text must
    not be empty. A tuple of allowed words becomes a flag with a comma-separated list. Any other tuple becomes a flag that may be
    repeated. Ranges and allowed words come from the annotations.
    """
    for field in dataclasses.fields(options):
        if "flag" not in field.metadata or (names and field.name not in names):
            continue
        hint, default, read = hints(options)[field.name], field.default, field.metadata["read"]
        is_many, words = isinstance(default, tuple), allowed_words(hint)
        kinds = value_types(typing.get_args(hint)[0] if is_many else hint)
        settings: dict[str, Any] = {"dest": field.name, "help": field.metadata["help"]}
        if bool in kinds:
            switch = "store_false" if default else "store_true"
            settings |= {"action": argparse.BooleanOptionalAction if default is None else switch}
        else:
            settings |= {"default": default, "metavar": field.metadata["metavar"]}
            if read:
                settings |= {"type": read}
            elif words:
                settings |= {"type": names_with_commas(words)} if is_many else {"choices": words}
            else:
                number = float if float in kinds else int
                settings |= {"type": nonempty if str in kinds else InRange(number, *intervals(hint))}
                settings |= {"action": "append", "default": []} if is_many else {}
        parser.add_argument(field.metadata["flag"] or f"--{field.name.replace('_', '-')}", **settings)


def read_options(options: type[Options], flags: argparse.Namespace) -> Options:
    """Returns the options dataclass with the values of its flags."""
    fields = [field.name for field in dataclasses.fields(options) if "flag" in field.metadata]  # type: ignore[arg-type]
    values = {name: getattr(flags, name) for name in fields}
    return options(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def filled(text: str) -> str:
    """Wraps the paragraphs of `text` to the width of help texts. Indented lines, such as commands, keep their line breaks and
    lose two columns of indentation."""
    width = min(HELP_WIDTH, shutil.get_terminal_size().columns)
    lines: list[str] = []
    for is_prose, block in itertools.groupby(text.splitlines(), lambda line: bool(line) and not line.startswith(" ")):
        if is_prose:
            lines += textwrap.wrap(" ".join(block), width, break_long_words=False, break_on_hyphens=False)
        else:
            lines += [line[2:] if line.startswith("    ") else line for line in block]
    return "\n".join(lines)


class _HelpFormatter(argparse.HelpFormatter):
    """Writes flags as --name=VALUE with their defaults."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=min(HELP_WIDTH, shutil.get_terminal_size().columns))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return filled(text)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # do not break names such as random-weights

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        (value,) = self._metavar_formatter(action, action.dest.upper())(1)
        return ", ".join(f"{flag}={value}" for flag in action.option_strings)

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if default in (None, "", [], (), argparse.SUPPRESS) or isinstance(default, bool) or "default" in text:
            return text
        shown = f"{default:g}" if isinstance(default, float) else default
        shown = ",".join(map(str, default)) if isinstance(default, tuple | list) else shown
        return f"{text} (default: {shown})".lstrip()


class FlagParser(argparse.ArgumentParser):
    """An argparse parser that raises `UserError`, suggests similar flags for unknown ones, and rejects a flag given twice with
    different values.

    The help has a short usage line (`usage`, or the required flags) and the grouped flags with their defaults.
    """

    def __init__(self, **arguments: Any):
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **arguments)
        self._optionals.title = "help"
        self.hint_for_unknown: Callable[[str], str] = lambda argument: ""
        """Returns the hint for an unknown argument, or "" if there is none."""
        self.may_be_in_bucket: Collection[str] = ()
        """The flags whose value may be a path in a bucket (gs://BUCKET/PATH). Other flags reject such a path."""

    def group(self, title: str, description: str | None = None) -> Flags:
        """Returns the group of flags with this title, creating it if necessary."""
        there = (group for group in self._action_groups if group.title == title)
        return next(there, None) or self.add_argument_group(title, description)

    def format_help(self) -> str:
        """Returns the help: a short line of usage, the description, and the groups of flags."""
        needed = [
            f"{action.option_strings[-1]}={action.metavar or action.dest.upper()}"
            for action in self._actions
            if action.required and action.option_strings
        ]
        several = {argparse.ZERO_OR_MORE: "[{} ...]", argparse.ONE_OR_MORE: "{} [{} ...]"}
        texts = [
            several.get(str(action.nargs), "{}").replace("{}", str(action.metavar or action.dest))
            for action in self._actions
            if not action.option_strings
        ]
        usage = " ".join((self.usage or " ".join([self.prog, *needed, "[--FLAG=VALUE ...]", *texts])).split())
        usage = re.sub(r"\[[^][]*\]", lambda optional: optional[0].replace(" ", "\xa0"), usage)  # no line break inside brackets
        wrapped = textwrap.wrap(usage, HELP_WIDTH - 8, break_long_words=False, break_on_hyphens=False)
        self.usage = "\n        ".join(wrapped).replace("%", "%%").replace("\xa0", " ")
        # the group of the flags that all commands have comes last
        self._action_groups.sort(key=lambda group: group is self._optionals)
        return super().format_help()

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Returns the values of all flags. Raises UserError if an argument is unknown, or if a flag is given twice with
        different values. The user's files are read again: this is the start of a command, also in a notebook."""
        read_files_again()
        given = list(sys.argv[1:] if args is None else args)
        self._refuse_contradictions(given)
        values, unknown = self.parse_known_args(given, namespace)
        if unknown and not unknown[0].startswith("-"):
            raise UserError(f"unexpected {unknown[0]!r}: every argument is a flag, --name=value; see {self.prog} --help")
        if unknown:
            flags = [option for action in self._actions for option in action.option_strings]
            hint = self.hint_for_unknown(unknown[0]) or nearest(unknown[0].partition("=")[0], flags)
            raise UserError(f"unknown argument {unknown[0]}: {hint}")
        for action in self._actions:
            if action.option_strings and hasattr(values, action.dest):  # a positional argument is a text, not a path
                setattr(values, action.dest, _expanded(getattr(values, action.dest), action.option_strings[-1]))
        self._refuse_buckets(values)
        return values

    def _refuse_buckets(self, values: argparse.Namespace) -> None:
        for action in self._actions:
            value = getattr(values, action.dest, None)
            for text in map(str, value if isinstance(value, list) else [value]):
                flag = action.option_strings[-1] if action.option_strings else ""
                if flag and text.startswith("gs:") and flag not in self.may_be_in_bucket:
                    raise UserError(f"{flag}={text}: this flag only accepts a local path; copy the file with `gcloud storage cp`")

    def _refuse_contradictions(self, given: Sequence[str]) -> None:
        seen: dict[str, str] = {}
        for i, argument in enumerate(given):
            if argument == "--":
                return
            flag, equals, value = argument.partition("=")
            action = self._option_string_actions.get(flag)
            if action is None or isinstance(action, argparse._AppendAction):  # these flags may be repeated
                continue
            if not equals and action.nargs != 0:
                value = given[i + 1] if i + 1 < len(given) else ""
            text = f"{flag}={value}" if value else flag
            before = seen.setdefault(action.dest, text)
            if before != text:
                raise UserError(f"{before} and {text} contradict each other; give one of them")

    def error(self, message: str) -> NoReturn:
        """Raises UserError with argparse's message instead of printing it and exiting."""
        hint = "write --flag=VALUE, with the equals sign; " if "expected one argument" in message else ""
        message = re.sub(r"^argument ([^\s/:]++)[^\s:]*+: =", r"\1=", message)  # the message of a `type=` starts with "=VALUE"
        raise UserError(f"{message}; {hint}see {self.prog} --help")


def _expanded(value: Any, flag: str) -> Any:
    """Returns the value of a flag with home directories expanded. This applies to all flags, since a value that starts with `~`
    can only be a path."""
    if isinstance(value, list):
        return [_expanded(item, flag) for item in value]
    if not isinstance(value, str | pathlib.Path) or not os.fspath(value).startswith("~"):
        return value
    return type(value)(expand_home(os.fspath(value), f"{flag}={value}"))
