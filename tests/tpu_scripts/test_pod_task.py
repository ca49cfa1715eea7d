"""pod.yaml: its fields, and SkyPilot's task for it if `.venv-sky` has SkyPilot, as `.ci/run` installs it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
from typing import Any

import pytest
import yaml

from bert_jax.errors import HUNG, MENDED_BY_RESTART, MISSING
from tests.tpu_scripts.checkout import REPOSITORY

TASK = REPOSITORY / "tpu_scripts" / "pod.yaml"
SKY = REPOSITORY / ".venv-sky" / "bin" / "python"
GIVEN = {"RUN": "pretrain --workdir=gs://my-bucket/a --config.b='[1, 2]'"}
ENDED_BY_SKYPILOT = 128 + signal.SIGKILL
"""The exit status of the other hosts' processes, which SkyPilot ends when one host fails."""


@pytest.fixture(scope="module")
def task() -> dict[str, Any]:
    return yaml.safe_load(TASK.read_text())


def test_the_task_has_the_fields_for_recovering_slices(task: dict[str, Any]):
    assert set(task) == {"envs", "num_nodes", "resources", "workdir", "setup", "run"}
    assert task["envs"] == {"RUN": None, "RESTARTS": "20"}  # None: it has to be set
    assert task["num_nodes"] == 1
    resources = task["resources"]
    assert set(resources) == {"infra", "accelerators", "accelerator_args", "use_spot", "job_recovery"}
    assert re.fullmatch(r"tpu-v\w+-\d+", resources["accelerators"])
    assert resources["use_spot"] is True
    assert resources["accelerator_args"]["gcp_queued_resource"] is True
    assert task["workdir"] == "."  # the checkout
    used = set(re.findall(r"\$\{?(\w+)", task["setup"] + task["run"]))
    assert used == set(task["envs"])


def test_the_task_and_the_script_use_the_same_runtimes(task: dict[str, Any]):
    made = (REPOSITORY / "tpu_scripts" / "pod.sh").read_text()
    runtimes = set(re.findall(r"runtime=([\w-]+)", made))
    assert runtimes == set(re.findall(r"(?:v2-alpha-\w+(?:-lite)?|tpu-ubuntu\w+-base)", TASK.read_text()))
    assert f"v5litepod-*) runtime={task['resources']['accelerator_args']['runtime_version']} ;;" in made


def test_only_statuses_that_a_restart_can_fix_are_restarted(task: dict[str, Any]):
    recovery = task["resources"]["job_recovery"]
    assert recovery["recover_on_exit_codes"] == sorted(set(MENDED_BY_RESTART) - {ENDED_BY_SKYPILOT, MISSING})
    assert recovery["max_restarts_on_errors"] == 0  # would restart after every status
    assert HUNG in recovery["recover_on_exit_codes"]  # the status of run.sh when its own restarts are used up
    (file,) = re.findall(r"bert_jax/[\w/]+\.py", TASK.read_text())
    assert "MENDED_BY_RESTART" in (REPOSITORY / file).read_text(), "the comment names the file with the statuses"


def test_the_commands_keep_the_quoting_of_arguments(task: dict[str, Any]):
    for command, wanted in (
        (task["setup"], ["tpu_scripts/worker.sh", "prepare"]),
        (task["run"], ["tpu_scripts/run.sh", "--restarts=20", "pretrain", "--workdir=gs://my-bucket/a", "--config.b=[1, 2]"]),
    ):
        scripts = {"tpu_scripts/worker.sh", "tpu_scripts/run.sh"}
        functions = "\n".join(f"{script}() {{ printf '%s\\n' {script} \"$@\"; }}" for script in scripts)
        environment = task["envs"] | GIVEN | {"PATH": "/nowhere"}
        done = subprocess.run(["/bin/bash", "-c", f"{functions}\n{command}"], env=environment, capture_output=True, text=True)
        assert (done.stdout.splitlines(), done.stderr) == (wanted, "")


def test_every_named_version_of_skypilot_is_the_pinned_one():
    (pinned,) = re.findall(
        r'^(skypilot\[gcp\]==\S+) ; extra == "sky"', (REPOSITORY / "requirements.txt").read_text(), re.MULTILINE
    )
    for page in (TASK, REPOSITORY / "tpu_scripts" / "README.md"):
        assert set(re.findall(r"skypilot\[gcp\]\S*\d", page.read_text())) == {pinned}, page


READ = """
import json, sys, sky, yaml
given = json.loads(sys.argv[2])
with open(sys.argv[1]) as file:
    config = yaml.safe_load(file)
task = sky.Task.from_yaml_config(dict(config), env_overrides=list(given.items()))
(resources,) = task.resources
try:
    sky.Task.from_yaml(sys.argv[1])
    missing = ""
except ValueError as error:
    missing = str(error)
print(json.dumps({
    "accelerators": resources.accelerators, "arguments": resources.accelerator_args, "cloud": str(resources.cloud),
    "recovery": resources.job_recovery, "spot": resources.use_spot,
    "envs": task.envs, "run": task.run, "setup": task.setup, "missing": missing, "version": sky.__version__,
}))
"""


@pytest.mark.skipif(not SKY.exists(), reason="SkyPilot is not installed: .ci/run installs it into .venv-sky")
def test_skypilot_parses_the_task_correctly(task: dict[str, Any], tmp_path: pathlib.Path):
    environment = os.environ | {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [str(SKY), "-c", READ, str(TASK), json.dumps(GIVEN)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    resources = task["resources"]
    assert read["accelerators"] == {resources["accelerators"]: 1}
    assert read["arguments"] == resources["accelerator_args"]
    assert (read["cloud"], read["spot"], read["recovery"]) == ("GCP", True, resources["job_recovery"])
    assert read["envs"] == task["envs"] | GIVEN
    assert (read["run"], read["setup"]) == (task["run"], task["setup"])
    assert "Environment variable 'RUN' is None" in read["missing"]
    assert f"=={read['version']} " in (REPOSITORY / "requirements.txt").read_text()
