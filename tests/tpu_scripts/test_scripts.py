"""run.sh, test.sh and set_up.sh in a small checkout of their own."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import zipfile

import pytest

from tests.tpu_scripts.checkout import REPOSITORY, bash, make_checkout, python_that_copies, script


def test_a_second_start_only_runs_the_command(ready: pathlib.Path):
    again = script(ready, "run", "corpus", "--output=a b", "x")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"corpus|{ready.parent}|--output=a b|x\n"  # in the caller's directory, with unchanged arguments


def test_another_python_than_that_of_the_environment_is_reported(ready: pathlib.Path):
    kept = script(ready, "run", "corpus", BERT_JAX_PYTHON="/no/such/python")
    assert (kept.returncode, kept.stdout) == (0, f"corpus|{ready.parent}\n")
    assert kept.stderr.startswith("BERT_JAX_PYTHON=/no/such/python is not used: .venv was made with /")
    assert kept.stderr.endswith("; remove .venv to make it anew\n")


def test_run_sh_without_a_command_runs_the_quickstart(ready: pathlib.Path):
    done = script(ready, "run")
    assert done.returncode == 0
    steps = [line.split("|") for line in done.stdout.splitlines()]
    assert [step[0] for step in steps] == ["corpus", "pretrain", "predict"]
    assert {step[1] for step in steps} == {str(ready)}
    assert "--config=experiments/pretrain/quickstart.py" in steps[1]
    assert sum("[MASK]" in argument for argument in steps[2]) == 3
    for name in ("curves.png", "results.json", "model/"):
        assert f"{ready}/runs/quickstart/{name}" in done.stderr


def test_the_quickstart_stops_at_the_first_step_that_fails(tmp_path: pathlib.Path, ready: pathlib.Path, python: str):
    checkout = tmp_path / "broken"
    shutil.copytree(ready, checkout, symlinks=True, ignore=shutil.ignore_patterns(".venv*"))
    (checkout / "bert_jax" / "pretrain.py").write_text('"""Fails."""\nimport sys\nif __name__ == "__main__":\n    sys.exit(7)\n')
    done = script(checkout, "run", BERT_JAX_PYTHON=python)
    assert done.returncode == 7
    assert "predict" not in done.stdout
    assert "Done" not in done.stderr


def test_restarts_pass_the_command_to_the_restarts_module(ready: pathlib.Path):
    done = script(ready, "run", "--restarts=5", "pretrain", "--workdir=a b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"restarts|{ready.parent}|5|pretrain|--workdir=a b\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--restarts=0", "pretrain"], "--restarts=0 must be --restarts=N with a whole number from 1 to 999"),
        (["--restarts", "5", "pretrain"], "--restarts must be --restarts=N"),
        (["--restarts=5", "predict"], "--restarts=5 is only for pretrain, finetune and study, which continue from"),
        (["--restarts=5"], "--restarts=5 is only for pretrain, finetune and study"),
    ],
)
def test_invalid_restarts_are_refused_before_installing(arguments: list[str], says: str):
    done = bash(f"'{REPOSITORY}/tpu_scripts/run.sh' {' '.join(arguments)}")
    assert done.returncode == 2
    assert says in done.stderr


def test_code_comes_from_the_script_directory_not_the_current_one(tmp_path: pathlib.Path, ready: pathlib.Path):
    other = make_checkout(tmp_path / "other")
    (other / "bert_jax" / "pretrain.py").write_text("raise SystemExit('the wrong checkout')")
    done = bash(f"'{ready}/tpu_scripts/run.sh' pretrain", cwd=other)
    assert done.stdout == f"pretrain|{other}\n"
    (site,) = ready.glob(".venv/lib/*/site-packages")  # `pip install .` copies the package as it was then
    shutil.copytree(other / "bert_jax", site / "bert_jax")
    done = script(ready, "run", "pretrain")
    shutil.rmtree(site / "bert_jax")
    assert (done.stdout, done.stderr) == (f"pretrain|{ready.parent}\n", "")


def test_help_lists_every_command_with_its_first_line():
    shown = bash(f"'{REPOSITORY}/tpu_scripts/run.sh' --help")
    assert shown.returncode == 0
    assert "  pretrain    Pretrains a BERT" in shown.stdout
    assert "tpu_scripts/run.sh COMMAND" in shown.stdout
    commands = shown.stdout.partition("Commands:\n")[2].splitlines()
    assert not {line.split()[0] for line in commands} & {"launch", "terminal", "hosts", "config"}


def test_an_unknown_command_names_the_nearest_and_installs_nothing(tmp_path: pathlib.Path):
    checkout = make_checkout(tmp_path / "checkout")
    done = script(checkout, "run", "pretrian")
    assert done.returncode == 2
    assert "unknown command 'pretrian': did you mean 'pretrain'?" in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_incomplete_or_moved_environment_is_recreated(tmp_path: pathlib.Path, python: str):
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "requirements.txt").write_text("no-such-package==1.0\n")  # fails where a kill would interrupt
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python).returncode == 1
    (checkout / "requirements.txt").write_text("")
    (checkout / ".venv" / "debris").write_text("")
    assert "making .venv" in script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python).stderr
    assert not (checkout / ".venv" / "debris").exists()
    moved = checkout.rename(tmp_path / "moved")
    done = script(moved, "run", "pretrain", BERT_JAX_PYTHON=python)
    assert done.returncode == 0
    assert "making .venv" in done.stderr


def test_an_unknown_topology_is_refused_before_the_compiler_is_installed(tmp_path: pathlib.Path):
    checkout = make_checkout(tmp_path / "checkout")
    shutil.copytree(REPOSITORY / "bert_jax", checkout / "bert_jax", dirs_exist_ok=True)
    for flags in (("--topology=v5e:5x5",), ("--topology", "v5e:5x5", "--config=x.py")):
        done = script(checkout, "run", "aot", *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: --topology=v5e:5x5: v5e has no slice 5x5; nearest: v5e:4x8 (32 chips)")
    assert not (checkout / ".venv-tpu").exists()
    assert not (checkout / ".venv-setup").exists()


def test_a_foreign_environment_is_not_changed(tmp_path: pathlib.Path, python: str):
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").write_text("")
    refused = script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python)
    assert refused.returncode == 1
    assert f"error: {checkout}/.venv was not made by these scripts" in refused.stderr
    assert "mv .venv .venv.mine" in refused.stderr
    assert (checkout / ".venv" / "mine").exists()
    (checkout / ".venv").rename(checkout / ".venv.mine")
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python).returncode == 0


def test_an_environment_with_an_accelerator_is_kept_while_others_are_asked_for(tmp_path: pathlib.Path, python: str):
    """A running command may use it."""
    checkout = make_checkout(tmp_path / "checkout")
    corpus = checkout / "bert_jax" / "corpus.py"
    corpus.write_text(corpus.read_text().replace("*sys.argv[1:]", 'os.environ.get("JAX_PLATFORMS")'))
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    without = f"{tmp_path}:{os.environ['PATH']}"
    kept = checkout / ".venv" / "kept"
    for given, made, venv, has, platforms in (
        ("cpu", True, ".venv", "cpu", None),
        ("cuda12", False, ".venv", "cuda12", None),  # adds the plugin
        ("", False, ".venv", "cuda12", None),  # a machine without a GPU that shares the checkout
        ("cpu", False, ".venv", "cuda12", "cpu"),  # otherwise JAX would use the GPU
        ("cuda13", True, ".venv-cuda13", "cuda13", None),  # a machine with another GPU that shares the checkout
        ("cuda13", False, ".venv-cuda13", "cuda13", None),
    ):
        variables = {"BERT_JAX_PYTHON": python, "BERT_JAX_DEVICE": given, "PATH": without, "JAX_PLATFORMS": ""}
        done = script(checkout, "run", "corpus", **variables)
        assert (done.returncode, f"making {venv} ... " in done.stderr) == (0, made), (given, done.stderr)
        assert done.stdout == f"corpus|{tmp_path}|{platforms}\n"
        assert f"extras: {has}\n" in (checkout / venv / "bert_jax-stamp").read_text()
        kept.touch()
    assert kept.exists()


def test_aot_has_its_own_environment_with_the_tpu_compiler(tmp_path: pathlib.Path, python: str):
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "requirements.txt").write_text('no-such-package==1.0 ; extra == "tpu"\n')
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python).returncode == 0
    stamp = (checkout / ".venv" / "bert_jax-stamp").read_text()
    helped = script(checkout, "run", "aot", "--help", BERT_JAX_PYTHON=python)
    assert (helped.returncode, helped.stderr) == (0, ""), "help needs no compiler"
    failed = script(checkout, "run", "aot", BERT_JAX_PYTHON=python)
    assert failed.returncode == 1
    assert "no-such-package==1.0" in failed.stderr
    (checkout / "requirements.txt").write_text('# the compiler ; extra == "tpu"\n')
    done = script(checkout, "run", "aot", "--json", BERT_JAX_PYTHON=python)
    assert done.stdout == f"aot|{checkout.parent}|--json\n"
    assert "the TPU compiler has an environment of its own, .venv-tpu" in done.stderr
    assert "extras: tpu" in (checkout / ".venv-tpu" / "bert_jax-stamp").read_text()
    assert script(checkout, "run", "aot", "--json", BERT_JAX_PYTHON=python).stderr == ""
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python).stderr == ""
    assert "extras: cpu" in stamp


def test_changed_requirements_are_installed_and_a_failure_shows_the_log(tmp_path: pathlib.Path, python: str):
    checkout = make_checkout(tmp_path / "checkout")
    requirements = checkout / "requirements.txt"
    requirements.write_text('no-such-package==1.0 ; extra == "test"\n')
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python).returncode == 0  # a line of another extra is not installed
    failed = script(checkout, "test", "tests/a.py", "-k", "x y", BERT_JAX_PYTHON=python)
    assert failed.returncode == 1
    assert "no-such-package==1.0" in failed.stderr
    assert f"its whole output is in {checkout}/.venv-setup/install.log" in failed.stderr
    assert "pytest" not in failed.stdout
    requirements.write_text("# mended\n")
    mended = script(checkout, "test", "tests/a.py", "-k", "x y", BERT_JAX_PYTHON=python)
    assert mended.returncode == 0
    assert mended.stdout.endswith("|tests/a.py|-k|x y\n")
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python).stderr == ""  # the extra stays installed


def write_wheel(directory: pathlib.Path, name: str, script: str) -> None:
    """Writes a wheel whose program is the shell `script`."""
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        program = zipfile.ZipInfo(f"{name}-1.0.data/scripts/{name}")
        program.external_attr = 0o100755 << 16
        wheel.writestr(program, f"#!/bin/sh\n{script}\n")
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


def test_uv_installs_from_where_pip_does_and_pip_does_it_if_uv_fails(tmp_path: pathlib.Path, python_with_pip: str):
    checkout = make_checkout(tmp_path / "checkout")
    write_wheel(tmp_path, "uv", f'echo "$@" >"{tmp_path}/asked"\necho no route to host >&2; exit 2')
    write_wheel(tmp_path, "other", "")
    (checkout / "requirements.txt").write_text('uv==1.0 ; extra == "python"\nother==1.0\n')
    settings = {
        "PIP_EXTRA_INDEX_URL": "https://one.test/simple https://two.test/simple",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
    }
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python_with_pip, **settings).returncode == 0
    asked = (tmp_path / "asked").read_text().split()
    places = ["--index=https://one.test/simple", "--index=https://two.test/simple", f"--find-links={tmp_path}", "--no-index"]
    assert sorted(places) == sorted({*asked} & {*places})
    assert asked[asked.index("--python") + 1] == str(checkout / ".venv" / "bin" / "python")
    assert asked[-2:] == ["-r", str(checkout / ".venv-setup" / "requirements.txt")]
    log = (checkout / ".venv-setup" / "install.log").read_text()
    assert "no route to host\nuv failed: installing with pip\n" in log
    assert "Successfully installed other-1.0" in log


def test_pip_does_not_install_what_uv_has_installed(tmp_path: pathlib.Path, python: str):
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "requirements.txt").write_text('uv==1.0 ; extra == "python"\nno-such-package==1.0\n')
    with_uv = tmp_path / "with_uv" / "venv"
    shutil.copytree(pathlib.Path(python).parent / "venv", with_uv, symlinks=True)
    (with_uv / "bin" / "uv").write_text("#!/bin/sh\n")
    (with_uv / "bin" / "uv").chmod(0o755)
    assert script(checkout, "run", "pretrain", BERT_JAX_PYTHON=python_that_copies(with_uv)).returncode == 0


def test_two_simultaneous_starts_set_up_once(tmp_path: pathlib.Path, python: str):
    checkout = make_checkout(tmp_path / "checkout")
    start = f"'{checkout}/tpu_scripts/run.sh' pretrain"
    both = f"{start} >first & first=$!; {start} >second; second=$?; wait $first && exit $second"
    done = bash(both, cwd=tmp_path, BERT_JAX_PYTHON=python)
    assert done.returncode == 0
    assert {(tmp_path / name).read_text() for name in ("first", "second")} == {f"pretrain|{tmp_path}\n"}
    assert done.stderr.count("making .venv") == 1
    assert done.stderr.count("another process is setting up") == 1


def sourced(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return bash(f"set -euo pipefail; source '{REPOSITORY}/tpu_scripts/set_up.sh'; {command}", **variables)


@pytest.mark.parametrize(
    ("driver", "device"),
    [
        ("580.65.06, 9.0", "cuda13"),
        ("570.12, 9.0", "cuda12"),
        ("590.1, 7.0", "cuda12"),
        ("600.1, 12.0", "cuda13"),
        ("failed", "cpu"),
    ],
)
def test_the_cuda_version_follows_the_driver_and_the_gpu(tmp_path: pathlib.Path, driver: str, device: str):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{driver}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    found = sourced("find_device", BERT_JAX_DEVICE="", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert found.stdout == f"{device}\n"


def test_the_device_can_be_given_and_a_wrong_one_is_refused():
    assert sourced("find_device", BERT_JAX_DEVICE="tpu").stdout == "tpu\n"
    wrong = sourced("set_up", BERT_JAX_DEVICE="gpu")
    assert wrong.returncode == 1
    assert "BERT_JAX_DEVICE=gpu: wanted cpu, tpu, cuda13 or cuda12" in wrong.stderr


@pytest.mark.parametrize("device", ["tpu", "cuda13", "cuda12"])
def test_an_accelerator_adds_the_same_jax_with_its_plugin(device: str):
    lines = sourced(f"requirements all {device}").stdout.split()
    (plain,) = [line for line in lines if line.startswith("jax==")]
    assert f"jax[{device}]==" + plain.removeprefix("jax==") in lines
    assert not [line for line in lines if line.startswith(("pytest", "uv=="))]


def test_requirements_are_pinned_and_without_tensorflow_and_torch():
    lines = sourced("requirements all test tpu cuda13 cuda12 python").stdout.split()
    assert len(lines) > 50
    assert [line for line in lines if "==" not in line] == []
    names = {line.partition("==")[0].partition("[")[0].lower() for line in lines}
    assert not names & {"tensorflow", "tensorflow-cpu", "torch", "transformers"}


def old_machine(tmp_path: pathlib.Path) -> str:
    """Returns a PATH with the usual tools and Python 3.10 as python3, as on a Cloud TPU VM."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "sed", "grep", "tail", "cat", "rm", "mkdir", "uname", "dirname", "flock", "mv", "sleep", "cp"):
        if path := shutil.which(tool):
            (tools / tool).symlink_to(path)
    (tools / "python3").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.12 && exit 0\necho no pip for you >&2; exit 1\n'
    )
    (tools / "python3").chmod(0o755)
    return str(tools)


def without_system_pythons(checkout: pathlib.Path) -> pathlib.Path:
    """Returns the checkout with a find_python that sees only PATH, since this machine may have a Python in /usr/local/bin."""
    file = checkout / "tpu_scripts" / "set_up.sh"
    text = file.read_text()
    assert "/usr/local/bin/python3.1[1-4] /opt/python*/bin/python3" in text
    file.write_text(text.replace("/usr/local/bin/python3.1[1-4] /opt/python*/bin/python3", ""))
    return checkout


def test_a_machine_with_an_old_python_gets_one_through_uv(tmp_path: pathlib.Path, python: str):
    path = old_machine(tmp_path)
    uv = pathlib.Path(path) / "uv"
    uv.write_text(f'#!/bin/sh\necho "uv $*" >>"{tmp_path}/asked"\n[ "$2" = find ] && echo "{python}"; exit 0\n')
    uv.chmod(0o755)
    checkout = without_system_pythons(make_checkout(tmp_path / "checkout"))
    done = script(checkout, "run", "pretrain", PATH=path, HOME=str(tmp_path), BERT_JAX_PYTHON="")
    assert done.returncode == 0, done.stderr
    assert "no Python 3.11 to 3.14 with venv here (python3 is Python 3.10.12): fetching one with uv" in done.stderr
    assert (tmp_path / "asked").read_text().splitlines() == ["uv python install 3.12", "uv python find >=3.11,<3.15"]


def test_without_any_python_the_remedy_is_named(tmp_path: pathlib.Path):
    checkout = without_system_pythons(make_checkout(tmp_path / "checkout"))
    done = script(checkout, "run", "pretrain", PATH=old_machine(tmp_path), HOME=str(tmp_path), BERT_JAX_PYTHON="")
    assert done.returncode == 1
    assert "uv could not fetch one" in done.stderr
    assert "no pip for you" in done.stderr  # the end of the log
    assert "BERT_JAX_PYTHON=/path/to/python" in done.stderr
    wrong = script(checkout, "run", "pretrain", BERT_JAX_PYTHON="/no/such/python")
    assert "BERT_JAX_PYTHON=/no/such/python is not a Python 3.11 to 3.14" in wrong.stderr
