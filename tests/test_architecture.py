"""The structure of the project as the design defines it: which folder imports which, where things are, and that names are
explained."""

from __future__ import annotations

import ast
import fnmatch
import functools
import pathlib
import re
import subprocess
from collections.abc import Iterator

import pytest

from bert_jax.interface.axes import AXES
from bert_jax.tasks import TASKS

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "bert_jax"

# A folder imports only from folders before it in this list, which follows the flow of data.
FOLDERS = (
    "interface",
    "storage",
    "data",
    "model",
    "sharding",
    "objectives",
    "tasks",
    "interop",
    "runtime",
    "training",
    "configs",
    "pretraining",
    "finetuning",
    "prediction",
    "analysis",
    "studies",
    "tpu",
)
ROOT = {"errors": (), "files": ("errors",), "hardware": ()}
"""The modules of the root other than commands, and the modules that each of them may import."""
TOP_LEVEL = {"README.md", "setup.py", "bert_jax", "experiments", "tests", "tpu_scripts", "requirements.txt"}
DOTFILES = {".ci", ".gitattributes", ".github", ".gitignore", ".mypy.ini", ".pre-commit-config.yaml", ".pytest.ini", ".ruff.toml"}
ONLY_IN = {"jax": None, "flax": None, "optax": None, "grain": {"data"}, "orbax": {"training"}}
WITHOUT_JAX = {"storage", "data"}
"""Folders that do not import jax. The exceptions are `data/batches.py`, and grain in `data/prefetch.py`."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def name(path: pathlib.Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def tracked() -> list[str]:
    """Returns the files under version control, including new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [file for file in listed.stdout.splitlines() if (REPOSITORY / file).exists()]


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    """Returns the syntax tree of a file; the tests read every module of the package, and parsing takes most of their time."""
    return ast.parse(path.read_text())


@functools.cache
def imports(path: pathlib.Path) -> list[tuple[int, str]]:
    """Returns (line, dotted module) for every import in a file, including those inside functions; relative ones are resolved."""
    package, found = path.relative_to(REPOSITORY).with_suffix("").parts[:-1], list[tuple[int, str]]()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            # `from bert_jax import launch` imports bert_jax.launch: the names count as modules of their own
            found += [(node.lineno, f"{module}.{alias.name}" if module == "bert_jax" else module) for alias in node.names]
    return found


def folder(path: pathlib.Path) -> str | None:
    """Returns the folder of bert_jax that contains a file; None for a root module."""
    inside = path.relative_to(PACKAGE).parts
    return inside[0] if len(inside) > 1 else None


def test_the_import_reader_finds_every_form(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "REPOSITORY", tmp_path)
    (tmp_path / "bert_jax" / "model").mkdir(parents=True)
    file = tmp_path / "bert_jax" / "model" / "x.py"
    text = (
        "import jax.numpy as jnp\nfrom bert_jax import launch\ndef f():\n    from ..training import steps\n    from . import y\n"
    )
    file.write_text(text)
    assert imports(file) == [(1, "jax.numpy"), (2, "bert_jax.launch"), (4, "bert_jax.training"), (5, "bert_jax.model")]


def test_every_folder_is_in_the_import_order():
    here = {path.name for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert here <= set(FOLDERS)


def test_folders_import_only_earlier_folders():
    wrong = []
    for path in MODULES:
        own = folder(path)
        if own is None:
            continue
        allowed = {"errors", "files", "hardware", "__version__", *FOLDERS[: FOLDERS.index(own) + 1]}
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] == "bert_jax" and (len(parts) == 1 or parts[1] not in allowed):
                wrong.append(f"{name(path)}:{line} imports {module}")
    assert wrong == []


def test_the_model_does_not_depend_on_a_mesh():
    """The traced program depends only on the arguments: kernels and platform come with the model, resolved by
    `sharding.kernels`."""
    ambient = re.compile(r"get_abstract_mesh|default_backend|jax\.sharding|bert_jax\.sharding")
    allowed = {"bert_jax/model/kernels/dispatch.py"}  # this file names the type of a mesh
    assert {name(path) for path in MODULES if folder(path) == "model" and ambient.search(path.read_text())} <= allowed


def test_no_code_tells_encoders_positions_or_norms_apart_by_their_names():
    """A new one is one file and one line: other code reads the facts in `ModelConfig.kind`, `positions_kind` and `norm_kind`. The
    format tf1 is BERT's."""
    by_name = re.compile(r"""\b(encoder|positions|norm)\)?\s*(==|!=|(not )?in)\s*[("'{\[]""")
    assert {name(path) for path in MODULES if by_name.search(path.read_text())} <= {"bert_jax/interop/conversion.py"}


def test_no_code_tells_kinds_of_rows_apart_by_their_names():
    """A new kind is one class and one line: other code reads the facts of `ExampleConfig.kind`."""
    by_name = re.compile(r"""(\b(targets|rows)|["']targets["']\))\s*(==|!=|(not )?in)\s*\(?["'{\[]""")
    assert [name(path) for path in MODULES if by_name.search(path.read_text())] == []


def test_the_root_has_only_commands_and_common_modules():
    root = {path.stem: path.read_text() for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    commands = {stem for stem, text in root.items() if f'    run_command("bert_jax.{stem}"' in text}
    assert root.keys() - commands == set(ROOT)
    for stem, allowed in ROOT.items():
        ours = {module for _, module in imports(PACKAGE / f"{stem}.py") if module.startswith("bert_jax")}
        assert ours <= {f"bert_jax.{other}" for other in allowed}, stem


def test_nothing_imports_a_command():
    commands = {f"bert_jax.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", *ROOT)}
    found = [f"{name(path)}:{line} imports {module}" for path in MODULES for line, module in imports(path)]
    assert [line for line in found if line.rpartition(" ")[2] in commands] == []


@pytest.mark.parametrize("directory", sorted({path.parent for path in MODULES} - {PACKAGE}), ids=name)
def test_every_folder_has_a_map_of_its_modules(directory: pathlib.Path):
    """The map in `__init__.py` has a sentence, inputs and outputs, and a line for each module in reading order. `*_task.py`
    stands for the modules with such names that have no line of their own."""
    there = {path.name for path in directory.glob("*.py")} - {"__init__.py", "__main__.py"}
    there |= {f"{path.parent.name}/" for path in directory.glob("*/__init__.py")}
    text = ast.get_docstring(tree_of(directory / "__init__.py")) or ""
    listed = re.findall(r"^    (\*?\w+(?:\.py|/))  +\S", text, re.MULTILINE)
    patterns = [line for line in listed if line.startswith("*")]
    covered = {module for module in there - set(listed) if any(fnmatch.fnmatch(module, pattern) for pattern in patterns)}
    assert sorted({*listed} - {*patterns} | covered) == sorted(there)
    assert len(listed) == len(set(listed))
    assert re.search(r"^In: .+\. Out: .+\.", text, re.MULTILINE | re.DOTALL), directory


def test_a_fine_tuning_imports_only_the_task_that_it_uses():
    """The files of tasks are imported by name (`tasks.TASKS`)."""
    importing = {name(path) for path in MODULES for _, module in imports(path) if module in TASKS.values()}
    assert importing == {"bert_jax/tasks/boolq_task.py", "bert_jax/prediction/pronouns.py"}


def test_libraries_are_imported_only_in_their_folders():
    wrong = []
    for path in MODULES:
        own = folder(path)
        for line, module in imports(path):
            library = module.split(".")[0]
            homes = ONLY_IN.get(library)
            without = own in WITHOUT_JAX and path.stem not in ("batches", "prefetch")
            if (library in ONLY_IN and without) or (homes is not None and own not in homes):
                wrong.append(f"{name(path)}:{line} imports {module}")
    assert wrong == []


@pytest.mark.parametrize(
    "use",
    [
        r"\bjson\.loads?\(|\bimport loads?\b",  # json raises a RecursionError for deeply nested brackets
        r"\bjson\.dump\(|\.write_text\(json\.",
        r"\brmtree\(",
        r"\bimport filelock\b|\bfcntl\b",
        r"\bos\.(replace|rename)\(|\b_?(part|partial|temporary|unfinished|own)\.replace\(",
    ],
)
def test_json_locks_and_atomic_writes_have_one_module(use: str):
    assert {name(path) for path in MODULES if re.search(use, path.read_text())} <= {"bert_jax/files.py"}


def test_nothing_needs_tensorflow_or_torch():
    """The only exception is the function that reads PyTorch's own files, which reports it if PyTorch is not installed."""
    foreign = {"tensorflow", "torch", "transformers", "tensorflow_text"}
    needing = [name(path) for path in MODULES for _, module in imports(path) if module.split(".")[0] in foreign]
    assert needing == ["bert_jax/interop/weights.py"]


def test_the_top_level_entries_are_fixed():
    top = {file.split("/")[0] for file in tracked()}
    assert top - TOP_LEVEL - DOTFILES == set()


def test_scripts_find_the_package_before_they_import_it():
    """An environment such as the TPU compiler's does not have the package installed."""
    for script in [*(REPOSITORY / "tests/benchmarks").glob("*.py"), REPOSITORY / "tests/mutations/run.py"]:
        lines = script.read_text().splitlines()
        path = next((n for n, line in enumerate(lines) if line.startswith("sys.path.insert")), 0)
        early = [n for n, line in enumerate(lines[:path], 1) if re.match(r"(from|import) (bert_jax|tests)\b", line)]
        assert not early, f"{script}: line {early[0]} stands before sys.path.insert"


def test_no_module_is_called_utils():
    drawers = re.compile(r"(^|_)(utils?|commons?|helpers?|misc)(_|$)")
    assert [file for file in tracked() if any(drawers.search(part) for part in file.removesuffix(".py").split("/"))] == []


def test_no_file_contains_paths_of_a_machine():
    machine = re.compile(r"/(?:home|root|Users)/|file:///")
    own = name(pathlib.Path(__file__))
    found = []
    for file in tracked():
        path = REPOSITORY / file
        if file == own or path.suffix in {".npz", ".npy", ".png"}:
            continue
        lines = path.read_text(errors="replace").splitlines()
        found += [f"{file}:{number}" for number, line in enumerate(lines, 1) if machine.search(line)]
    assert found == []


def undocumented(tree: ast.Module) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "the module"
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    yield from (node.name for node in named if not node.name.startswith("_") and not ast.get_docstring(node))


def test_every_public_module_function_and_class_has_a_docstring():
    trees = {name(path): tree_of(path) for path in MODULES}
    silent = [f"{file}: {what}" for file, tree in trees.items() if tree.body for what in undocumented(tree)]
    # `main` is the command, which its module's docstring explains
    assert [line for line in silent if not line.endswith(": main")] == []


def test_experiments_contain_only_settings():
    wrong = []
    for path in sorted((REPOSITORY / "experiments").rglob("*.py")):
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            wrong.append(f"{name(path)} has no docstring")
        if path.parent.name == "extensions" or path.name == "tutorial.py":  # code that experiments name; the tutorial
            continue
        wrong += [f"{name(path)} defines class {node.name}" for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        wrong += [f"{name(path)}:{line} imports {module}" for line, module in imports(path) if module.startswith(("jax", "flax"))]
    assert wrong == []


def axes_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Returns (line, axis) for every letter and word in the shapes of jaxtyping annotations, and for every letter of an
    einsum."""
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "jaxtyping"]
    kinds = {alias.asname or alias.name for node in imported for alias in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=kind), slice=ast.Tuple(elts=[_, ast.Constant(value=str(shape))])):
                # except for text in braces, which is an argument: its value is the size
                names = re.findall(r"[A-Za-z]\w*", re.sub(r"\{.*?\}", "", shape)) if kind in kinds else []
                yield from ((node.lineno, axis) for axis in names)
            case ast.Call(func=ast.Attribute(attr="einsum"), args=[ast.Constant(value=str(product)), *_]):
                yield from ((node.lineno, axis) for axis in product if axis.isalpha())


def test_the_axis_reader_finds_annotations_and_einsums():
    text = (
        'from jaxtyping import Array, Float\ndef f(x: Float[Array, "B *shape 3*I {n}"], y: list[Float[Array, " _ 2 W"]]): pass\n'
        'jnp.einsum("ab,bc->ac", x, y)\nd["B L"]\n'
    )
    found = sorted(axes_of(ast.parse(text)))
    assert found == [(2, "B"), (2, "I"), (2, "W"), (2, "shape"), *((3, axis) for axis in "aabbcc")]


def test_every_axis_of_a_signature_and_of_an_einsum_is_in_the_glossary():
    files = [path for path in MODULES if re.search(r"jaxtyping|einsum", path.read_text())]
    found = [(f"{name(path)}:{line}", axis) for path in files for line, axis in axes_of(tree_of(path))]
    assert [(place, axis) for place, axis in found if axis not in AXES] == []
