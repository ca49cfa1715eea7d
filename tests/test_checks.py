"""The checks around a commit: the hooks before it and the workflow after it, which both run the commands of .ci/run."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.foreign import remove_foreign

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
VENV = ".venv/bin/"


def read(file: str) -> dict:
    return yaml.safe_load((REPOSITORY / file).read_text())


def hooks() -> dict[str, list[str]]:
    """Returns the command line of each hook by its id."""
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"  # a hook from elsewhere would use another version of its tool
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    return {hook["id"]: shlex.split(hook["entry"]) for hook in local["hooks"]}


def workflow_commands() -> Iterator[str]:
    for job in read(".github/workflows/ci.yml")["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def executable(program: str) -> pathlib.Path:
    """Returns the file that a command of the checkout runs; for .venv, the file in the environment of the tests."""
    return pathlib.Path(sys.prefix, "bin", program.removeprefix(VENV)) if program.startswith(VENV) else REPOSITORY / program


@pytest.mark.parametrize("tool", ["ruff", "mypy", "shellcheck"])
def test_pre_commit_hooks_run_the_installed_tools_of_ci(tool: str):
    check = re.search(rf"^(?:check|start) {tool} (?:idle )?(.+)$", (REPOSITORY / ".ci/run").read_text(), re.MULTILINE)
    assert check
    command = hooks()[tool]
    assert shlex.split(check[1])[: len(command)] == command
    assert os.access(executable(command[0]), os.X_OK)


def test_the_workflow_runs_ci_run():
    commands = list(workflow_commands())
    assert commands == [".ci/run"]
    assert all(os.access(executable(command), os.X_OK) for command in commands)


def test_the_workflow_tests_the_oldest_supported_python():
    steps = [step for job in read(".github/workflows/ci.yml")["jobs"].values() for step in job["steps"]]
    (version,) = [step["with"]["python-version"] for step in steps if "python-version" in step.get("with", {})]
    assert f'python_requires=">={version},' in (REPOSITORY / "setup.py").read_text()


def test_variables_of_clusters_proxies_and_log_sinks_do_not_reach_the_tests():
    own = {"PATH": "/bin", "BERT_JAX_PEER_PYTHON": "python"}
    foreign = (
        *("BERT_JAX_CACHE", "JAX_PLATFORMS", "MEGASCALE_SLICE_ID", "SKYPILOT_NODE_IPS", "SLURM_PROCID", "http_proxy"),
        *("WANDB_PROJECT", "MLFLOW_TRACKING_URI"),
    )
    environment = own | dict.fromkeys(foreign, "1")
    remove_foreign(environment)
    assert environment == own
