"""pod.sh and worker.sh with a stand-in `gcloud`: each slice is two directories, in which it runs the commands for ssh."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

import pytest

from tests.tpu_scripts.checkout import REPOSITORY, bash, make_checkout

GCLOUD = r"""#!/usr/bin/env bash
# gcloud compute tpus queued-resources ACTION NAME ...; slice 0 has the workers w-0 and w-1, slice 1 has w-1-0 and w-1-1
cd "$STAND_IN"
unset BERT_JAX_SECRET # ssh passes no environment on
printf '%s\n' "$*" >>asked
shift 2
node=0 worker=0 command="" from=("${@:4}") status=0
for word; do
    case "$word" in
        --node=*) node="${word#*=}" ;;
        --worker=*) worker="${word#*=}" ;;
        --command=*) command="${word#*=}" ;;
    esac
done
case "$node $worker" in
    "all all") workers=(w-*) ;;
    "0 "[0-9]) workers=("w-$worker") ;;
    *" "[0-9]) workers=("w-$node-$worker") ;;
    *) echo "unexpected: --node=$node --worker=$worker" >&2; exit 99 ;;
esac
case "$1 $2" in
    "queued-resources create")
        [[ ! -e refusal ]] || { cat refusal >&2; exit 1; }
        echo "Create request issued for: [$3]" ;;
    "queued-resources describe")
        [[ "$*" != *failedData* ]] || { echo "Quota limit TPUV5s has been exceeded"; exit; }
        state="$(head -n 1 states)"
        [[ "$(wc -l <states)" == 1 ]] || sed -i 1d states
        [[ "$state" != ERROR ]] || { echo "ERROR: network is unreachable" >&2; exit 1; }
        echo "$state" ;;
    "queued-resources ssh" | "queued-resources scp")
        [[ ! -s lost ]] || { sed -i 1d lost; echo "ssh: connect to host: Connection timed out" >&2; exit 255; }
        for worker in "${workers[@]}"; do
            export HOME="$STAND_IN/$worker"
            [[ ! -e "$HOME/broken" ]] || export BERT_JAX_PYTHON=/no/such/python
            case "$2 $3" in
                "ssh "*) (cd "$HOME" && bash -c "$command") || status=$? ;;
                *" $POD:"*) cp -R "$HOME/${3#*:}" "${from[0]}" ;;
                *) cp "$3" "$HOME/${from[0]#*:}" ;;
            esac
        done
        exit "$status" ;;
    "queued-resources delete") ;;
    *) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""
TOOLS = {
    "gcloud": GCLOUD,
    "sleep": "#!/bin/sh\n",
    "tar": """#!/bin/sh
case " $* " in *" -T "*" -C "*|*" -C "*" -T - "*) echo "could not chdir: as on macOS" >&2; exit 1 ;; esac
PATH=/usr/bin:/bin exec tar "$@"
""",
    "uname": '#!/bin/sh\n[ "$1" = -n ] && exec basename "$HOME"\nexec /bin/uname "$@"\n',
}
PYTHON = f"""#!/bin/sh
# makes an environment that holds this script alone, installs nothing, and runs the checkout in which it lies
root="$(cd "$(dirname "$0")/../.." && pwd)"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*) ;;
    *sysconfig*) echo "$root/.venv" ;;
    *) PYTHONPATH="$root" exec '{sys.executable}' "$@" ;;
esac
"""
UNTIL_THE_END = """import pathlib, sys, time
if __name__ == "__main__":
    print("begun", flush=True)
    for _ in range(1500):
        if pathlib.Path(sys.argv[3]).exists():
            break
        time.sleep(0.02)
"""


class Cloud:
    """Slices of two workers (by default one slice), the checkout that is copied there, and pod.sh."""

    def __init__(self, directory: pathlib.Path, slices: int = 1):
        self.directory = directory
        self.checkout = make_checkout(directory / "checkout")
        (self.checkout / ".gitignore").write_text(".venv*\nruns/\n")
        subprocess.run(["git", "init", "-q", str(self.checkout)], check=True)
        (directory / "bin").mkdir()
        for name, text in {**TOOLS, "python": PYTHON}.items():
            (directory / "bin" / name).write_text(text)
            (directory / "bin" / name).chmod(0o755)
        for worker in ("w-0", "w-1", "w-1-0", "w-1-1")[: 2 * slices]:
            (directory / worker).mkdir()
        self.states("ACTIVE")

    def states(self, *states: str) -> None:
        """Sets the answers of gcloud to requests for the state, one after the other; the last one is repeated."""
        (self.directory / "states").write_text("".join(f"{state}\n" for state in states))

    def pod(self, arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.directory / 'bin'}:/usr/bin:/bin"
        command = f"'{self.checkout}/tpu_scripts/pod.sh' {arguments}"
        variables = {
            "PATH": path,
            "STAND_IN": str(self.directory),
            "POD": "pod",
            "BERT_JAX_PYTHON": str(self.directory / "bin" / "python"),
        } | more
        return bash(command, cwd=self.directory, **variables)

    def asked(self) -> list[str]:
        """Returns the commands that gcloud was given."""
        path = self.directory / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def ended(self) -> str:
        """Returns the output of `status` once no worker is running."""
        deadline = time.monotonic() + 30
        while "running: " in (told := self.pod("status pod").stderr):
            assert time.monotonic() < deadline, told
        return told


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)


RUN = "run pod --restarts=3 pretrain --workdir=gs://my-bucket/a '--config.b=[1, 2]'"


def test_a_pod_run_goes_from_the_request_to_the_results(cloud: Cloud):
    made = cloud.pod("create pod --zone=us-west4-a --type=v5litepod-16 --spot")
    assert made.returncode == 0
    assert "nothing is charged before it is ACTIVE" in made.stderr
    assert cloud.asked() == [
        "compute tpus queued-resources create pod --node-id=pod --accelerator-type=v5litepod-16 "
        "--runtime-version=v2-alpha-tpuv5-lite --scopes=cloud-platform --spot --zone=us-west4-a --quiet"
    ]
    cloud.states("WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "ERROR", "PROVISIONING", "ACTIVE")
    begun = cloud.pod(RUN)
    assert begun.returncode == 0, begun.stderr
    told = begun.stderr.splitlines()
    assert [line.split(";")[0] for line in told if line.startswith("pod:")] == [
        "pod: WAITING_FOR_RESOURCES",
        "pod: PROVISIONING",
        "pod: ACTIVE",
    ]
    assert {"w-0: ready", "w-1: ready", "w-0: started", "w-1: started"} <= set(told)
    told = cloud.ended()
    for worker in ("w-0", "w-1"):
        home = cloud.directory / worker
        line = f"restarts|{home}/bert_jax|3|pretrain|--workdir=gs://my-bucket/a|--config.b=[1, 2]"
        assert f"{worker}: ended with exit status 0: {line}\n" in told
    assert cloud.pod("logs pod --worker=1").stdout.endswith(f"{line}\n")
    assert cloud.pod("fetch pod bert_jax/runs/pod/log here").returncode == 0
    assert "w-0/bert_jax|3|pretrain" in (cloud.directory / "here").read_text()
    assert cloud.pod("delete pod").returncode == 0
    assert cloud.asked()[-1] == "compute tpus queued-resources delete pod --force --quiet"


def test_several_slices_are_one_request_and_every_worker_is_started(tmp_path: pathlib.Path):
    cloud = Cloud(tmp_path, slices=2)
    made = cloud.pod("create pod --type=v6e-16 --slices=2 --zone=z")
    assert made.returncode == 0, made.stderr
    assert cloud.asked() == [
        "compute tpus queued-resources create pod --node-count=2 --node-prefix=pod --accelerator-type=v6e-16 "
        "--runtime-version=v2-alpha-tpuv6e --scopes=cloud-platform --zone=z --quiet"
    ]
    restarts = cloud.checkout / "bert_jax" / "runtime" / "restarts.py"
    restarts.write_text(restarts.read_text().replace("*sys.argv[1:]", 'os.environ["BERT_JAX_SECRET"]'))
    begun = cloud.pod(RUN, BERT_JAX_SECRET="open sesame")
    workers = ("w-0", "w-1", "w-1-0", "w-1-1")
    assert {f"{worker}: started" for worker in workers} <= set(begun.stderr.splitlines()), begun.stderr
    told = cloud.ended()
    assert all(f"{worker}: ended with exit status 0" in told for worker in workers)
    assert f"restarts|{tmp_path}/w-1-1/bert_jax|open sesame\n" in cloud.pod("logs pod --slice=1 --worker=1").stdout
    assert not [line for line in cloud.asked() if "sesame" in line], "commands are visible in process lists"
    (tmp_path / "refusal").write_text("ERROR: RESOURCE_EXHAUSTED\n")
    refused = cloud.pod("create pod --type=v6e-16 --slices=2").stderr
    assert "does not allow 2 slices of v6e-16 here" in refused
    assert "smaller --type, fewer --slices, another --zone" in refused


def test_a_dry_run_prints_the_commands_and_runs_none(cloud: Cloud):
    for arguments, commands in (("create pod --type=v6e-16", 1), ("status pod", 2), (RUN, 4), ("delete pod", 1)):
        command, rest = arguments.split(" pod", 1)
        shown = cloud.pod(f"{command} pod --dry-run --zone=z {rest}")
        assert (shown.returncode, shown.stderr) == (0, "")
        lines = shown.stdout.splitlines()
        assert len(lines) == commands
        assert all(line.startswith("gcloud compute tpus ") and "--zone=z" in line for line in lines)
    assert cloud.asked() == []


def test_a_refused_quota_is_reported_with_remedies(cloud: Cloud):
    (cloud.directory / "refusal").write_text(
        "ERROR: RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProject' exceeded. Limit: 0\n"
    )
    refused = cloud.pod("create pod --type=v5litepod-256")
    assert refused.returncode == 1
    assert "Limit: 0\nerror: the quota of this project does not allow v5litepod-256 here" in refused.stderr
    assert "smaller --type, another --zone, or --spot" in refused.stderr
    assert "or --spot" not in cloud.pod("create pod --type=v5litepod-256 --spot").stderr
    cloud.states("ACCEPTED", "FAILED")  # otherwise the request fails later
    refused = cloud.pod(RUN)
    assert refused.returncode == 1
    assert "the request pod has failed: Quota limit TPUV5s has been exceeded" in refused.stderr
    assert "tpu_scripts/pod.sh delete pod, then create" in refused.stderr


@pytest.mark.parametrize("state", ["SUSPENDING", "SUSPENDED"])
def test_a_slice_preempted_while_queued_ends_the_wait_with_the_remedy(cloud: Cloud, state: str):
    cloud.states("WAITING_FOR_RESOURCES", state)
    ended = cloud.pod(RUN)
    assert ended.returncode == 1
    assert f"error: the slice pod was preempted ({state}) and does not come back" in ended.stderr
    assert "a run with the same --workdir in the bucket continues" in ended.stderr
    assert not [line for line in cloud.asked() if "scp" in line]


def test_a_worker_that_cannot_install_is_named_and_nothing_is_started(cloud: Cloud):
    (cloud.directory / "w-1" / "broken").touch()
    failed = cloud.pod(RUN)
    assert failed.returncode == 1
    assert "w-0: ready" in failed.stderr
    assert "w-1: error: BERT_JAX_PYTHON=/no/such/python is not a Python 3.11 to 3.14" in failed.stderr
    assert "error: preparing failed with exit status 1" in failed.stderr
    assert "nothing was started" in cloud.pod("status pod").stderr
    (cloud.directory / "w-1" / "broken").unlink()
    mended = cloud.pod(RUN).stderr
    assert "making .venv ... " in mended
    assert "w-1: started" in mended
    assert "w-1: ended with exit status 0" in cloud.ended()


def test_lost_ssh_connections_are_retried_and_runs_continue(cloud: Cloud):
    (cloud.checkout / "bert_jax" / "runtime" / "restarts.py").write_text(UNTIL_THE_END)
    lost, end = cloud.directory / "lost", cloud.directory / "end"
    lost.write_text("1\n2\n")
    command = f"run pod pretrain {end}"
    begun = cloud.pod(command)
    assert begun.returncode == 0, begun.stderr
    assert begun.stderr.count("ssh failed (attempt ") == 2
    lost.write_text("1\n2\n3\n")
    gone = cloud.pod("logs pod")
    assert gone.returncode == 1
    assert "error: logs: a worker cannot be reached with ssh. Its processes continue; run the same command again" in gone.stderr
    deadline = time.monotonic() + 30
    while (told := cloud.pod("status pod").stderr) != "w-0: running: begun\nw-1: running: begun\n":
        assert time.monotonic() < deadline, told
    code = cloud.checkout / "bert_jax" / "pretrain.py"
    code.write_text("newer")
    again = cloud.pod(command).stderr
    assert "w-1: already running" in again
    assert "w-1: a command is running here, so its code and packages are not replaced" in again
    assert "newer" not in (cloud.directory / "w-1" / "bert_jax" / "bert_jax" / "pretrain.py").read_text()
    other = cloud.pod(f"{command} --config.seed=1")
    assert other.returncode == 1
    assert f"w-0: error: another command is running here: --restarts=20 pretrain {end}\n" in other.stderr
    end.touch()
    assert "w-0: ended with exit status 0: begun" in cloud.ended()
    cloud.states("SUSPENDED")
    lost.write_text("1\n")
    assert "the slice pod was preempted (SUSPENDED)" in cloud.pod("logs pod").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("lunch pod", "unknown command 'lunch'; known: create, run, status, logs, fetch, delete"),
        ("create", "NAME '' must be a lower-case letter"),
        ("create Pod --type=v6e-8", "NAME 'Pod' must be a lower-case letter"),
        ("create pod", "--type='' must be v2, v3, v4, v5litepod, v5p or v6e"),
        ("create pod --type=v9-8", "--type='v9-8' must be"),
        ("create pod --spot=yes", "create does not take --spot=yes"),
        ("create pod --type=v6e-8 --slices=0", "--slices=0 must be at least 1 and at most 999"),
        ("run pod --slices=2 pretrain", "run does not take --slices=2"),
        ("status pod --zone", "status does not take --zone (values as in --zone=ZONE"),
        ("status pod pretrain", "status does not take 'pretrain'"),
        ("run pod predict", "run takes pretrain, finetune, study or doctor with its arguments, not 'predict'"),
        ("run pod --restarts=0 pretrain", "--restarts=0 must be at least 1 and at most 999"),
        ("run pod --bucket=a pretrain", "run does not take --bucket=a"),
        ("fetch pod a", "fetch takes PATH and DIR"),
    ],
)
def test_a_mistake_in_the_command_is_refused_without_calling_gcloud(tmp_path: pathlib.Path, arguments: str, says: str):
    (tmp_path / "gcloud").write_text("#!/bin/sh\necho asked >&2\nexit 99\n")
    (tmp_path / "gcloud").chmod(0o755)
    refused = bash(f"'{REPOSITORY}/tpu_scripts/pod.sh' {arguments}", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: {says}")
    assert "asked" not in refused.stderr


def test_doctor_runs_on_all_workers_without_restarts():
    printed = bash(f"'{REPOSITORY}/tpu_scripts/pod.sh' run pod --dry-run doctor --workdir=gs://my-bucket/a").stdout
    (started,) = [line for line in printed.splitlines() if r"worker.sh\ start" in line]
    assert "--worker=all" in started
    assert r"start\ doctor\ --workdir=gs://my-bucket/a" in started


def test_a_missing_request_is_named(cloud: Cloud):
    cloud.states("ERROR")
    missing = cloud.pod("status pod")
    assert missing.returncode == 1
    assert "ERROR: network is unreachable\nerror: pod cannot be described; gcloud's message is above" in missing.stderr
    assert "error: pod cannot be described (gcloud's message is above)" in cloud.pod(RUN).stderr


def test_a_missing_gcloud_is_refused_with_its_source(tmp_path: pathlib.Path):
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}" if (pathlib.Path("/bin") / tool).exists() else f"/usr/bin/{tool}")
    refused = bash(f"'{REPOSITORY}/tpu_scripts/pod.sh' status pod", PATH=str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr == "error: gcloud was not found: https://cloud.google.com/sdk/docs/install\n"
