"""Checks the documentation: a shell and the program accept every command; every link, path and import exists; and every page has
the required form."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import pathlib
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from bert_jax import corpus
from bert_jax.analysis import flags as analyse_flags
from bert_jax.configs.command_line import parse_flags
from bert_jax.configs.experiment_files import leaf_keys, read_experiment, split_overrides
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment
from bert_jax.errors import UserError
from bert_jax.interop import flags as convert_flags
from bert_jax.prediction.commands import COMMANDS, command_parser
from bert_jax.tpu.costs import flags as aot_flags
from bert_jax.tpu.diagnosis import flags as doctor_flags
from bert_jax.tpu.programs import experiment_class
from tests.documented import own_experiment
from tests.test_architecture import FOLDERS, TOP_LEVEL

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
FOLDERS_WITH_PAGES = ("bert_jax", "experiments", "tests", "tpu_scripts")
PAGES = sorted(
    [
        "README.md",
        *(
            path.relative_to(REPOSITORY).as_posix()
            for folder in FOLDERS_WITH_PAGES
            for path in (REPOSITORY / folder).rglob("*.md")
        ),
    ]
)
RESULTS = [page for page in PAGES if page.startswith("experiments/results/")]
OF_FOLDERS = [page for page in PAGES if page.endswith("/README.md")]
SCRIPTS = ("tpu_scripts/run.sh", "tpu_scripts/test.sh", "tpu_scripts/pod.sh")
SKY = (".venv-sky/bin/sky", "sky")
PROGRAMS = (*SCRIPTS, *SKY, "python", "pip", "gcloud")
BEGINS = re.compile(rf"(?:{'|'.join(map(re.escape, PROGRAMS))})(?: |$)")
SCHEMAS = {"pretrain": PretrainingExperiment, "finetune": FinetuningExperiment, "study": StudyExperiment}


@dataclasses.dataclass(frozen=True)
class Command:
    """A documented command: where it is, its text with all line breaks, and its words as split by a shell."""

    place: str
    text: str
    words: tuple[str, ...] = ()
    whole: bool = True
    """Whether it can be run as it is; a command mentioned in prose may be incomplete."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text!r}"


# --------------------------------------------------------------------------------------------------------------- the commands
def documented() -> Iterator[Command]:
    """Returns the commands of all pages, of the docstrings of modules, of the help of `corpus`, and of the headers of the
    scripts."""
    for file in PAGES:
        yield from commands_in((REPOSITORY / file).read_text(), file)
    for folder in ("bert_jax", "experiments", "tests"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield from commands_in(docstring_text(path.read_text()), str(path.relative_to(REPOSITORY)))
    for line in corpus._parser().epilog.replace("\\\n", " ").splitlines():
        if BEGINS.match(line.strip()):
            yield Command("bert_jax/corpus.py", line.strip())
    for path in sorted((REPOSITORY / "tpu_scripts").glob("*.sh")):
        for line in re.findall(r"^#   +(\S.*)", path.read_text(), re.MULTILINE):
            command = re.split(r"  +", line)[0]  # followed by a description of what it does
            if BEGINS.match(command):
                yield Command(f"tpu_scripts/{path.name}", command)


def docstring_text(source: str) -> str:
    """Returns a module's docstring as written in its file, with the backslashes of escape sequences."""
    quoted = re.match(r'[rR]?"""(.*?)"""', source, re.DOTALL)
    return quoted[1] if quoted else ""


def commands_in(text: str, place: str) -> Iterator[Command]:
    """Returns the commands in indented blocks, with their continuation lines, and commands between backticks in prose."""
    lines = text.splitlines()
    for block in re.findall(r"^( {4,})(\S.*(?:\n\1 +\S.*)*)", text, re.MULTILINE):  # a line, and those indented more
        indent, command = block
        if BEGINS.match(command):
            yield Command(place, command.replace("\n" + indent, "\n"))
    prose = "\n".join(line for line in lines if not line.startswith("    "))
    for span in re.findall(r"`([^`]+)`", prose):
        name, _, flags = span.partition(" ")
        if BEGINS.match(span):
            yield Command(place, re.sub(r"\s+", " ", span), whole=False)
        elif name in ("pretrain", "finetune", "study", "corpus", "aot", "convert", "doctor") and flags.startswith("--"):
            yield Command(place, re.sub(r"\s+", " ", f"tpu_scripts/run.sh {span}"), whole=False)


# --------------------------------------------------------------------------------------------------------------------- to a shell
def through_a_shell(commands: list[Command], directory: pathlib.Path) -> list[Command]:
    """Returns the commands with their words as split by bash. It runs nothing: programs are functions that print their words.

    Raises AssertionError for text that is not a command, or that a shell reads as several commands.
    """
    functions = [f"{program}() {{ printf '%s\\x1f' {program} \"$@\"; printf '\\x1e'; }}" for program in PROGRAMS]
    each = "for text; do printf '\\x1d'; printf '\\x1d' >&2; eval \"$text\"; done"
    for name in (name for command in commands for name in re.findall(r" < (\S+)$", command.text)):
        (directory / name).touch()  # files that would be read have to exist
    texts = [re.sub(r" > \S+$", "", command.text) for command in commands]  # the words are printed, not written to that file
    done = subprocess.run(
        ["bash", "-f", "-c", "\n".join(["PATH=", *functions, each]), "bash", *texts],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    found = []
    for command, printed, complaint in zip(commands, done.stdout.split("\x1d")[1:], done.stderr.split("\x1d")[1:], strict=True):
        assert not complaint, f"{command}: {complaint}"  # "--output=a: No such file": a line cut off from the one above it
        (record,) = printed.split("\x1e")[:-1]
        found.append(dataclasses.replace(command, words=tuple(record.split("\x1f")[:-1])))
    return found


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[Command]:
    given = list(documented())
    directory = tmp_path_factory.mktemp("shell")
    found = through_a_shell(given, directory)
    inner = [
        Command(command.place, word.removeprefix("--command=").partition("&&")[2].strip())
        for command in found
        for word in command.words
        if command.words[0] == "gcloud" and word.startswith("--command=cd ")
    ]
    for command in found:
        if command.words[0] in SKY:
            runs = [word.removeprefix("RUN=") for word in command.words if word.startswith("RUN=")]
            inner += [Command(command.place, f"tpu_scripts/run.sh {run}") for run in runs]
        elif command.words[:2] == ("tpu_scripts/pod.sh", "run") and "pretrain" in command.words:
            run = command.words[command.words.index("pretrain") :]
            inner.append(Command(command.place, shlex.join(["tpu_scripts/run.sh", *run])))
    return [*found, *through_a_shell(inner, directory)]


def test_commands_are_collected_from_every_page_docstring_help_and_script(commands: list[Command]):
    places = {command.place for command in commands}
    experiments = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "experiments").rglob("*.py")}
    benchmarks = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests" / "benchmarks").glob("benchmark_*.py")}
    modules = (*SCHEMAS, "predict", "analyse", "convert", "aot", "doctor", "corpus")
    modules = (*modules, "tasks/glue_submission", "tasks/texts")
    programs = {f"bert_jax/{module}.py" for module in modules}
    assert places >= experiments | benchmarks | programs | {*SCRIPTS, *PAGES}
    assert len(commands) > 100


@pytest.mark.parametrize(
    "text",
    [
        "python -m bert_jax.pretrain --config=a.py \\\\\n    --workdir=runs/a",
        "python -m bert_jax.pretrain --config=a.py\n    --workdir=runs/a",
        "python -m bert_jax.predict fill-mask --model=MODEL 'a text",
    ],
    ids=["two backslashes", "no backslash", "an open quote"],
)
def test_a_command_split_by_a_shell_is_found(text: str, tmp_path: pathlib.Path):
    with pytest.raises(AssertionError):
        through_a_shell([Command("here", text), Command("here", "python -m bert_jax.aot")], tmp_path)


# ----------------------------------------------------------------------------------------------------------------- to the program
def check(command: Command, directory: pathlib.Path) -> None:
    """Raises UserError or AssertionError if `command` names a flag, a command or a file of the repository that does not exist.

    `directory` is empty; the experiment file that the documentation asks the reader to write is put there.
    """
    program, *rest = command.words
    program = "python" if program.endswith("/python") else program
    (directory / "mine.py").write_text(own_experiment())
    rest = [re.sub(r"^--config=(?=mine\.py)", f"--config={directory}/", word) for word in rest]
    words = [word for word in map(without_brackets, rest) if word not in ("", "...") and not word.startswith("--config.KEY")]
    for word in words:
        if path := re.match(r"(?:--[\w.-]+=)?((?:experiments|tests|tpu_scripts|bert_jax)/[\w/.-]+)", word):
            assert (REPOSITORY / path[1]).exists(), f"there is no {path[1]}"
    if program == "tpu_scripts/run.sh" and words and words[0].startswith("--restarts="):
        assert words[1] in (*SCHEMAS, "COMMAND"), f"--restarts does not go with {words[1]}"
        words = words[1:]
    if program == "tpu_scripts/pod.sh" and words:
        check_pod(words)
    elif program in SKY:
        check_sky(words)
    elif program == "tpu_scripts/run.sh" and words and words[0] not in ("COMMAND", "--help"):
        check_arguments(words[0], words[1:], command.whole)
    elif words[:1] == ["-m"] and words[1].startswith("bert_jax."):
        check_arguments(words[1].removeprefix("bert_jax."), words[2:], command.whole)
    elif program == "tpu_scripts/test.sh" and "-k" in words:
        places = [REPOSITORY / word for word in words if word.startswith("tests/")]
        names = re.findall(r"def (test_\w+)", "".join(place.read_text() for place in places if place.is_file()))
        chosen = words[words.index("-k") + 1]
        assert not names or any(chosen in name for name in names), f"no test there has {chosen} in its name"
    elif program == "python" and words and words[0].startswith("tests/"):
        check_script(REPOSITORY / words[0], words[1:])
    elif program == "pip":
        for extra in re.findall(r"^\.\[(\w+)\]$", words[-1]):
            assert f'extra == "{extra}"' in (REPOSITORY / "requirements.txt").read_text(), f"there is no extra {extra}"


def check_pod(words: list[str]) -> None:
    """Checks that pod.sh accepts the command in a dry run."""
    names = {"NAME": "name", "COMMAND": "pretrain", "PATH": "path", "DIR": "dir"}
    words = [names.get(word, word) for word in words]
    done = subprocess.run(
        [str(REPOSITORY / "tpu_scripts" / "pod.sh"), *words[:2], "--dry-run", *words[2:]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def check_sky(words: list[str]) -> None:
    """Checks that the task has the variables that the command sets, and needs no others."""
    if words[:2] != ["jobs", "launch"]:
        assert words[0] == "jobs", f"{words}: not a command for jobs"
        assert words[1] in ("queue", "logs", "cancel"), f"{words}: not a command for jobs"
        return
    variables = yaml.safe_load((REPOSITORY / words[2]).read_text())["envs"]
    given = {word.partition("=")[0] for flag, word in itertools.pairwise(words) if flag == "--env"}
    assert given <= set(variables), f"{words[2]} has no variable {given - set(variables)}"
    assert {name for name, value in variables.items() if value is None} <= given, f"{words[2]} needs more variables"


def without_brackets(word: str) -> str:
    """Returns `word` without the brackets around optional parts, which may extend over several words."""
    opened = word.removeprefix("[")
    return opened.removesuffix("]") if opened.count("]") > opened.count("[") else opened


def check_arguments(name: str, words: list[str], whole: bool) -> None:
    arguments = [re.sub(r"=(N|ROWS|K)$", "=1", word) for word in words]
    understood = {
        "pretrain": ["--config=experiments/pretrain/laptop.py", "--workdir=any"],
        "finetune": ["--config=experiments/finetune/pos.py", "--workdir=any"],
        "study": ["--config=experiments/studies/objectives.py", "--workdir=any"],
        "aot": ["--config=experiments/pretrain/bert_base.py", "--topology=v5e:4x4"],
        "convert": ["--from=any", "--to=other"],
    }
    if not whole:
        given = {argument.partition("=")[0] for argument in arguments}
        arguments += [flag for flag in understood.get(name, ()) if flag.partition("=")[0] not in given]
    if not arguments or "--help" in arguments:
        others = ("corpus", "doctor", "predict", "analyse", "tasks.glue_submission", "tasks.published", "COMMAND")
        assert name in (*understood, *others), f"there is no command {name}"
    elif name in SCHEMAS:
        parse_flags(name, "", arguments, schema=SCHEMAS[name])
    elif name == "aot":
        options, overrides, others = aot_flags.parse_flags("", arguments)
        for given in [options.config, *options.against]:
            schema = FinetuningExperiment if "/finetune/" in given else PretrainingExperiment
            read_experiment(given, overrides if given == options.config else others, schema)
    elif name == "doctor":
        overrides, rest = split_overrides(arguments)
        given = doctor_flags.flag_parser("").parse_args(rest)
        if given.config:
            read_experiment(given.config, overrides, experiment_class)
    elif name == "convert":
        convert_flags.flag_parser("").parse_args(arguments)
    elif name == "corpus":
        corpus._parser().parse_args(arguments)
    elif name == "predict":
        command_parser(arguments[0], COMMANDS[arguments[0]]).parse_args(arguments[1:])
    elif name == "analyse":
        analyse_flags.parse_flags("", arguments)
    else:
        check_script(REPOSITORY / "bert_jax" / f"{name.replace('.', '/')}.py", arguments)


def check_script(file: pathlib.Path, words: list[str]) -> None:
    """Checks a script: its own flags are in its `add_argument`; `--config.KEY` sets a key of a pretraining experiment."""
    assert file.is_file(), f"there is no {file}"
    known = {
        word.value
        for source in (file, REPOSITORY / "tests" / "benchmarks" / "figures.py")[: 2 if file.name.startswith("benchmark_") else 1]
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        for word in node.args
        if isinstance(word, ast.Constant)
    }
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--config."):
            check_arguments("pretrain", [word], whole=False)
        elif flag.startswith("--"):
            assert flag in known, f"{file.name} has no flag {flag}"


def test_every_documented_command_is_accepted_by_its_program(commands: list[Command], tmp_path: pathlib.Path):
    faults = []
    for command in commands:
        try:
            check(command, tmp_path)
        except (UserError, AssertionError, KeyError) as error:
            faults.append(f"{command}: {error}")
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("python -m bert_jax.pretrain --config=experiments/pretrain/laptop.py --workdirectory=a", "unknown argument"),
        ("tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py --workdir=a --config.seeds=1", "no 'seeds'"),
        ("python -m bert_jax.finetune --config=experiments/finetune/gone.py", "there is no experiments/finetune/gone.py"),
        ("python -m bert_jax.convert --from=a --to=b --layer=3", "--layer"),
        ("python -m bert_jax.predict fill-mask --model=a --top=3", "--top"),
        ("tpu_scripts/run.sh --restarts=5 predict", "--restarts does not go with predict"),
        ("tpu_scripts/pod.sh create large --size=3", "create does not take --size=3"),
        ("sky jobs launch tpu_scripts/pod.yaml --env BUCKETS=a --env RUN=b", "has no variable {'BUCKETS'}"),
        ("python tests/benchmarks/benchmark_step.py --threads=3", "no flag --threads"),
        ("python tests/benchmarks/benchmark_steps.py", "there is no tests/benchmarks/benchmark_steps.py"),
    ],
)
def test_a_documented_flag_or_file_that_does_not_exist_is_found(text: str, says: str, tmp_path: pathlib.Path):
    (command,) = through_a_shell([Command("here", text)], tmp_path)
    with pytest.raises((UserError, AssertionError), match=re.escape(says)):
        check(command, tmp_path)


# ------------------------------------------------------------------------------------------------------------------- to a reader
FLAGS_OF_OTHERS = {"--num-nodes"}
"""Flags of SkyPilot."""
OPEN_GROUPS = ("objective_options.", "pretrain.", "finetune.")
"""Groups whose keys are not declared in a dataclass."""
SUFFIXES = (".py", ".json", ".jsonl", ".md", ".png", ".sh", ".yaml", ".txt")
LONGEST_CELL = 84
LONGEST_LINE = 130
PLACEHOLDERS = {"bert_jax/tasks/NAME_task.py"}
ANY_PATH = re.compile(r"(?:bert_jax|experiments|tests|tpu_scripts|\.ci|\.github)/[\w./-]*[\w/](?![\w*])")


def lines_of(page: str) -> Iterator[tuple[str, str]]:
    """Yields (place, line) of a page, except for its fenced blocks."""
    fenced = False
    for number, line in enumerate((REPOSITORY / page).read_text().splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced:
            yield f"{page}:{number}", line


def cells(line: str) -> list[str]:
    """Returns the cells of a line of a table; of any other line, none."""
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def slug(title: str) -> str:
    """Returns the anchor of a section from its title, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.strip().lower()).replace(" ", "-")


def broken_links(page: str, text: str) -> Iterator[str]:
    """Returns the links in a page's text to a file or a section that does not exist."""
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        path = (REPOSITORY / page).parent / file if file else REPOSITORY / page
        titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor and path.is_file() else []
        if not path.exists() or (anchor and anchor not in map(slug, titles)):
            yield target


def sections(page: str) -> dict[str, str]:
    """Returns the sections of a page by their titles, of the second and third level; "" is the text before the first."""
    parts = re.split(r"^(?=###? )", (REPOSITORY / page).read_text(), flags=re.MULTILINE)
    return {"": parts[0]} | {part.splitlines()[0].lstrip("# "): part for part in parts[1:]}


def whole_commands(text: str) -> list[Command]:
    return [command for command in commands_in(text, "") if command.whole]


def test_the_readme_has_at_most_20_kb():
    assert len((REPOSITORY / "README.md").read_bytes()) <= 20_000


def test_every_page_is_linked_from_the_readme_or_from_a_page_that_is():
    reached, left = set(), ["README.md"]
    while left:
        page = left.pop()
        reached.add(page)
        targets = re.findall(r"\]\(([^)#]+\.md)", (REPOSITORY / page).read_text())
        found = {((REPOSITORY / page).parent / target).resolve().relative_to(REPOSITORY).as_posix() for target in targets}
        left += found - reached
    assert set(PAGES) - reached == set()


@pytest.mark.parametrize("page", OF_FOLDERS)
def test_the_page_of_a_folder_starts_with_a_map_and_a_command(page: str):
    """Before its first section there are links to all sections of the second level, and a command."""
    text = (REPOSITORY / page).read_text()
    beginning = sections(page)[""]
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [title for title in titles if f"(#{slug(title)})" not in beginning] == []
    assert whole_commands(beginning)


@pytest.mark.parametrize("page", RESULTS)
def test_every_table_of_results_has_a_command(page: str):
    """The command is in the same section."""
    sections_of_level_2 = re.split(r"^(?=## )", (REPOSITORY / page).read_text(), flags=re.MULTILINE)[1:]
    without = [text.splitlines()[0] for text in sections_of_level_2 if "\n|" in text and not list(commands_in(text, page))]
    assert without in ([], ["## The learning rates of the arms"])  # many short runs of `pretrain`, before the studies


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_shown_with_the_command_that_draws_it(page: str):
    assert [title for title, text in sections(page).items() if "![" in text and not whole_commands(text)] == []


def known_flags() -> set[str]:
    """Returns the flags of all commands, scripts and benchmarks."""
    parsers = [
        *itertools.starmap(command_parser, COMMANDS.items()),
        *map(analyse_flags.flag_parser, analyse_flags.COMMANDS),
    ]
    named = {flag for parser in parsers for action in parser._actions for flag in action.option_strings}
    for folder, pattern in (("bert_jax", "*.py"), ("tests", "*.py"), ("tpu_scripts", "*.sh"), ("tpu_scripts", "*.yaml")):
        for path in (REPOSITORY / folder).rglob(pattern):
            named |= set(re.findall(r"--[a-z][a-z-]*[a-z]", path.read_text()))
    return named


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_and_key_on_a_page_exists(page: str):
    """The test covers flags and keys between backticks in prose and tables; commands are parsed as a whole."""
    prose = "\n".join(line for _, line in lines_of(page) if not line.startswith("    "))
    spans = [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose)]
    flags = {flag for span in spans for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", span)} - FLAGS_OF_OTHERS
    assert flags - known_flags() - {"--config"} == set()
    keys = {re.sub(r"\.\d+\b", ".0", key) for schema in SCHEMAS.values() for key, _ in leaf_keys(schema)} | {"steps"}
    groups = {key.rpartition(".")[0] for key in keys} | {key.split(".")[0] for key in keys}
    for span in spans:
        named = re.match(r"((?:--)?config\.|(?=[a-z_]+\.))([a-z_0-9.]+)(?:=|$)", span)
        if not named or pathlib.Path(span).suffix in SUFFIXES or named[2].startswith(OPEN_GROUPS):
            continue
        key = re.sub(r"\.\d+\b", ".0", named[2])
        if named[1] or key.split(".")[0] in groups:
            assert key in keys | groups, f"there is no key {key}"


@pytest.mark.parametrize("page", PAGES)
def test_every_name_imported_on_a_page_exists(page: str):
    text = (REPOSITORY / page).read_text()
    for module, names in re.findall(r"^ {4,}from (bert_jax[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        for name in names.split(","):
            assert hasattr(importlib.import_module(module), name.strip()), f"{module} has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_table_cells_are_short(page: str):
    long = [f"{place}: {cell}" for place, line in lines_of(page) for cell in cells(line) if len(cell) > LONGEST_CELL]
    assert long == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page: str):
    prose = [(place, line) for place, line in lines_of(page) if not line.startswith(("    ", "|"))]
    assert [place for place, line in prose if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_block_of_code_comes_directly_after_a_list(page: str):
    """Markdown reads four spaces there as a paragraph of the list's last item."""
    in_list, before, wrong = False, "", []
    for place, line in lines_of(page):
        in_list = bool(re.match(r"(- |\d+\. )", line)) or (in_list and (not line or line.startswith(" ")))
        if in_list and not before and re.match(r" {4,5}\S", line):
            wrong.append(place)
        before = line
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_a_table_has_the_columns_of_its_header(page: str):
    width, wrong = 0, []
    for place, line in lines_of(page):
        width = (width or len(cells(line))) if line.startswith("|") else 0
        if width and len(cells(line)) != width:
            wrong.append(place)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_link_of_a_page_exists(page: str):
    text = "\n".join(line for _, line in lines_of(page))
    paths = set(ANY_PATH.findall(text)) - PLACEHOLDERS
    assert len(paths) > (10 if page in ("README.md", "experiments/README.md") else 0)
    assert [path for path in sorted(paths) if not (REPOSITORY / path).exists()] == []
    assert list(broken_links(page, text)) == []


def test_a_broken_link_is_found():
    text = "[a](#tests) [b](#installation) [c](experiments/README.md#choose-an-experiment) [d](experiments/gone.md)"
    assert list(broken_links("README.md", text)) == ["#installation", "experiments/gone.md"]


def test_the_readme_names_every_folder_of_the_package_and_every_file_of_both_roots():
    section = (REPOSITORY / "README.md").read_text().partition("\n## The code\n")[2].partition("\n## ")[0]
    tree = {line.split()[0] for line in section.splitlines() if line.startswith("    ")}
    package = [path for path in (REPOSITORY / "bert_jax").iterdir() if path.suffix == ".py" or list(path.glob("*.py"))]
    root = [REPOSITORY / name for name in TOP_LEVEL - {"README.md"}]
    names = {path.name + "/" * path.is_dir() for path in [*package, *root] if path.name != "__init__.py"}
    assert names - tree == set()
    assert {name for name in tree if not name.startswith(".")} - names == set()
    folders = [name.removesuffix("/") for name in re.findall(r"^ {6}(\w+/)", section, re.MULTILINE)]
    assert folders == [folder for folder in FOLDERS if folder in folders]  # in the order in which they import each other
