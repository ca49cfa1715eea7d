"""How a command ends, and how it handles its standard streams and its locale. The latter is tested with small programs that are
started like commands."""

from __future__ import annotations

import errno
import io
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from bert_jax.errors import UserError, WorkersMissing
from bert_jax.interface import command

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def run_program(main: str, *arguments: Any, shell: str = '"$@"', **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a command with these arguments, whose main() is `main`, and returns how it ends; `shell` runs it as "$@"."""
    program = f"import sys, os, pathlib\nfrom bert_jax.interface.command import *\ndef main():\n    {main}\nrun_main(main)\n"
    command = ["sh", "-c", shell, "sh", sys.executable, "-c", program, *map(os.fsencode, map(str, arguments))]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "", **environment}
    return subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        (None, 0, ""),
        (0, 0, ""),
        (3, 3, ""),
        (UserError("no"), 2, "error: no\n"),
        (WorkersMissing("no"), 43, "error: no\n"),
        (MemoryError(), 2, "error: this machine ran out of memory (no more could be allocated); end other programs, or use a "),
        (
            MemoryError("Unable to allocate 9 GiB"),
            2,
            "error: this machine ran out of memory (Unable to allocate 9 GiB); end other",
        ),
        (RuntimeError("can't start new thread"), 2, "error: this machine ran out of memory (can't start new thread);"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (OSError(errno.ENOSPC, "full", "a"), 2, "error: full: a; free disk space and rerun the same command, which resumes\n"),
        (OSError(errno.EMFILE, "many"), 2, "error: many; end other programs, or allow more open files (ulimit -n)\n"),
        (OSError(errno.EAGAIN, "again"), 2, "error: again; end other programs, or allow more processes (ulimit -u)\n"),
        (OSError(errno.ENOMEM, "no room", "a"), 2, "error: this machine ran out of memory (no room); end other programs, or use"),
        (OSError(errno.ENOTCONN, "gone", "a"), 2, "error: gone: a; the network or a network file system does not answer; repair"),
        (OSError(errno.ENODEV, "none", "a"), 2, "error: none: a; the disk or the network file system failed; use another one\n"),
        (OSError(errno.EBUSY, "busy", "a"), 2, "error: busy: a; another program uses it; end that program, or give another"),
    ],
)
def test_a_command_ends_with_the_status_and_message_of_its_error(ends: Any, status: int, said: str, capsys):
    with pytest.raises(SystemExit) as ended:
        command.run_main(lambda: done(ends))
    assert ended.value.code == status
    assert capsys.readouterr().err.startswith(said)


def done(ends: Any) -> int | None:
    if isinstance(ends, BaseException):
        raise ends
    return ends


def test_a_command_is_silent_after_its_reader_has_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as ended:
        command.run_main(lambda: done(BrokenPipeError()))
    assert (ended.value.code, sys.stderr.closed) == (141, True)


@pytest.mark.parametrize("error", [OSError("without a number"), OSError(errno.ECHILD, "no remedy"), ValueError("a bug")])
def test_an_error_without_a_remedy_keeps_its_traceback(error: Exception):
    with pytest.raises(type(error), match=str(error.args[-1])):
        command.run_main(lambda: done(error))


COMMANDS = {"run": "runs", "stop": "ends what runs"}


def test_a_command_group_runs_its_first_argument_and_lists_commands_without_one(capsys):
    for arguments in ([], ["-h"], ["--help", "run"]):
        assert command.choose_command("program", "What it does.\n", COMMANDS, arguments) is None
        listed = "Commands (each has --help):\n  run            runs\n  stop           ends what runs\n"
        assert capsys.readouterr().out == f"usage: program COMMAND [--FLAG=VALUE ...]\n\nWhat it does.\n\n{listed}"
    assert command.choose_command("program", "", COMMANDS, ["run", "--help"]) == "run"
    with pytest.raises(UserError, match=r"^--x must come after the command: program COMMAND --x; commands are run, stop$"):
        command.choose_command("program", "", COMMANDS, ["--x", "run"])
    with pytest.raises(UserError, match=r"^unknown command 'stp': did you mean 'stop'\?; program --help$"):
        command.choose_command("program", "", COMMANDS, ["stp", "run"])


def test_characters_that_a_stream_cannot_encode_are_escaped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "ascii", errors="surrogateescape"))
    command._prepare_streams()
    assert (sys.stdout.errors, sys.stderr.errors) == ("backslashreplace", "surrogateescape")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    command._prepare_streams()


def test_a_command_may_open_as_many_files_as_the_hard_limit_or_macos_allows(monkeypatch: pytest.MonkeyPatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        command._allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(soft, 1 << 20)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard
        monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
        limits: list[tuple[int, int]] = []

        def set_as_on_macos(which: int, limit: tuple[int, int]) -> None:
            if limit[0] > 10_240:
                raise ValueError("current limit exceeds maximum limit")
            limits.append(limit)

        with monkeypatch.context() as patched:
            patched.setattr(resource, "setrlimit", set_as_on_macos)
            command._allow_open_files()
        assert limits == [(10_240, resource.RLIM_INFINITY)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_replaced_standard_error_keeps_its_descriptor_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", None)
    copy = os.dup(2)
    try:
        command._prepare_streams()
        sys.stderr.close()
        assert os.path.samestat(os.fstat(2), os.fstat(copy))
    finally:
        os.dup2(copy, 2)
        os.close(copy)


def test_an_ascii_locale_changes_neither_arguments_nor_files_nor_output(tmp_path):
    directory = tmp_path / "Prüfung"
    directory.mkdir()
    main = r"p = pathlib.Path(sys.argv[1]) / '\u4e2d'; p.write_text(sys.argv[2]); print(p.read_text()); raise UserError(str(p))"
    done = run_program(main, directory, "größer", LC_ALL="C", PYTHONUTF8="0")
    assert done.stdout.decode() == "größer\n"
    assert done.stderr.decode() == f"error: {directory}/中\n"
    assert (done.returncode, (directory / "中").read_text(encoding="utf-8")) == (2, "größer")


@pytest.mark.parametrize("environment", [{}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_a_name_that_cannot_be_encoded_is_still_printed(environment):
    done = run_program(r"print('\udcff', '\u4e2d'); print('end')", **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"end\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_output_to_a_closed_stream_goes_into_no_file(tmp_path, closed):
    file = tmp_path / "file"
    main = "f = open(sys.argv[1], 'w'); assert f.fileno() == 3; "
    main += "print('o'); print('err', file=sys.stderr); os.system('echo x; echo y >&2'); f.write('x')"
    done = run_program(main, file, shell=f'"$@" {closed}')
    assert done.returncode == 0
    assert file.read_text() == "x"
    assert b"err" not in done.stdout
    assert b"Traceback" not in done.stderr


def test_a_command_with_closed_standard_output_refuses_to_run():
    done = run_program("require_stdout('open it'); print('answer')", shell='"$@" >&-')
    assert done.stderr == b"error: standard output is closed, so the results would be lost; open it\n"
    assert done.returncode == 2


def test_a_full_disk_for_standard_output_is_one_sentence():
    done = run_program("print('answer')", shell='"$@" >/dev/full')
    assert done.stderr.startswith(b"error: standard output cannot be written: No space left on device; redirect it")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_a_reader_that_leaves_before_any_output_ends_the_command_quietly(tmp_path):
    status = tmp_path / "status"
    done = run_program("sys.stdin.read(); print('answer')", shell=f'{{ sleep 0.2 | "$@"; echo $? >{status}; }} | true')
    assert done.stderr == b""
    assert status.read_text() == "141\n"


def test_an_error_that_nobody_reads_keeps_its_status(tmp_path):
    status = tmp_path / "status"
    shell = f'{{ sleep 0.2 | "$@" 2>&1; echo $? >{status}; }} | true'
    done = run_program("sys.stdin.read(); raise UserError('no')", shell=shell)
    assert (done.stderr, status.read_text()) == (b"", "2\n")


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (lambda: pathlib.Path("/nowhere/x").read_text(), "error: No such file or directory: /nowhere/x; give an existing path"),
        (lambda: pathlib.Path("/").read_text(), "error: Is a directory: /; give an existing path"),
        (lambda: pathlib.Path("/dev/null/x").read_text(), "error: Not a directory: /dev/null/x; give an existing path"),
        (lambda: pathlib.Path("x" * 300).read_text(), "error: File name too long: xxx"),
        (lambda: done(PermissionError(13, "Permission denied", b"secret")), "error: Permission denied: secret; change its perm"),
        (lambda: done(BlockingIOError(11, "write could not complete", 9)), "error: write could not complete; standard out"),
        (lambda: done(OSError(5, "Input/output error")), "error: Input/output error; the disk or the network file system failed"),
    ],
)
def test_a_system_error_is_one_sentence_with_a_remedy(fails: Callable[[], None], says: str, capsys):
    with pytest.raises(SystemExit) as ended:
        command.run_main(fails)
    said = capsys.readouterr().err
    assert said.startswith(says)
    assert (ended.value.code, said.count("\n")) == (2, 1)


def started(tmp_path: pathlib.Path, module: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.Popen[bytes]:
    """Starts a command whose module has this text, as `python -m` would; its standard output shows how far it is."""
    (tmp_path / "made.py").write_text(textwrap.dedent(module))
    program = "from bert_jax.interface.command import run_command; run_command('made')"
    own = {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}", "PYTHONUNBUFFERED": "1"}
    variables = os.environ | own | {"XLA_FLAGS": ""} | environment  # another process would read the flags of the tests
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=variables, stdout=stdout, stderr=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Returns (exit status, standard output, standard error) of a process."""
    said, complained = process.communicate(timeout=60)
    return process.returncode, (said or b"").decode(), complained.decode()


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Sends Ctrl-C to a process after its first line of output. Returns how it ends."""
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    return end(process)


WAITS = "while True: time.sleep(0.01)"


@pytest.mark.parametrize(
    ("module", "leaves"),
    [
        (f"import time\nprint('importing')\n{WAITS}", ""),
        (f"import time\ndef main():\n  try:\n    print('at work')\n    {WAITS}\n  finally:\n    print('cleared')", "cleared\n"),
        # as in JAX, a callback of the garbage collector swallows a KeyboardInterrupt
        (
            "import gc, time\ndef collected(phase, info):\n  end = time.monotonic() + 0.3\n  print('collecting')\n"
            f"  while time.monotonic() < end: pass\ndef main():\n  gc.callbacks.append(collected)\n  gc.collect()\n  {WAITS}",
            None,
        ),
        ("import time\ndef main():\n  try:\n    print('at work')\n    time.sleep(60)\n  except BaseException:\n    pass", ""),
        (
            "import time\ndef main():\n  try:\n    print('at work')\n    time.sleep(60)\n  except BaseException as error:\n"
            "    raise RuntimeError('a program on the devices failed') from error",
            "",
        ),
        (f"import atexit, time\ndef late():\n  print('at its end')\n  {WAITS}\ndef main():\n  atexit.register(late)", ""),
    ],
    ids=["importing", "at work", "collecting garbage", "swallowed", "made another error of", "exiting"],
)
def test_ctrl_c_always_ends_a_command(tmp_path: pathlib.Path, module: str, leaves: str | None):
    status, said, complained = interrupted(started(tmp_path, module))
    assert (status, complained) == (130, "interrupted\n")
    assert leaves is None or said == leaves


def test_a_command_started_to_ignore_ctrl_c_continues(tmp_path: pathlib.Path):
    module = "import time\ndef main():\n  print('at work')\n  time.sleep(0.3)\n  print('done')"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # like `nohup` and `&` in a script
    try:
        process = started(tmp_path, module)
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupted(process) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        (
            "JAX_ENABLE_X64",
            "maybe",
            "error: JAX cannot start: invalid truth value 'maybe'.*; correct JAX_ENABLE_X64=maybe, or .*",
        ),
        (
            "JAX_DEFAULT_MATMUL_PRECISION",
            "x",
            'error: JAX cannot start: Invalid value "x" for JAX flag .*; correct JAX_DEFAULT_MATMUL_PRECISION=x, or unset it',
        ),
        (
            "XLA_FLAGS",
            "--xla_made_up=1",
            "error: JAX cannot start: Unknown flag in XLA_FLAGS: --xla_made_up=1; correct XLA_FLAGS=--xla_made_up=1, or unset it",
        ),
        (
            "XLA_FLAGS",
            "--xla_force_host_platform_device_count=0",
            "error: JAX cannot start: .*; unset XLA_FLAGS=--xla_.*=0, or .*",
        ),
    ],
)
def test_a_startup_error_of_jax_is_one_sentence(tmp_path: pathlib.Path, variable: str, value: str, says: str):
    environment = {"JAX_PLATFORMS": "cpu", variable: value}
    status, _, complained = end(started(tmp_path, "import jax\ndef main():\n  jax.devices()", **environment))
    assert re.fullmatch(says + "\n", complained)
    assert status == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--xla_made_up=1", "Unknown flag in XLA_FLAGS: --xla_made_up=1$"),
        ("--xla_force_host_platform_device_count=x", "Couldn't interpret value x for .*count"),
        (" ", "$"),
    ],
)
def test_flags_that_xla_cannot_parse_are_named(monkeypatch: pytest.MonkeyPatch, flags: str, says: str):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert re.match(says, command._start_parsing_xla_flags()())


@pytest.mark.parametrize(
    ("given", "jaxlib", "plugins", "becomes"),
    [
        ("", "0.10.2", ["jax_cuda12_plugin"], "--xla_gpu_ftz=true"),
        ("--a=1", "0.11.0", ["jax_cuda13_plugin"], "--a=1 --xla_gpu_ftz=true"),
        ("--xla_gpu_ftz=false", "0.10.2", ["jax_cuda13_plugin"], "--xla_gpu_ftz=false"),
        ("", "0.11.1", ["jax_cuda13_plugin"], ""),
        ("", "0.10.2", [], ""),
    ],
)
def test_gradients_are_added_in_one_instruction_on_gpus_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, given: str, jaxlib: str, plugins: list[str], becomes: str
):
    monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in plugins else None)
    monkeypatch.setattr("importlib.metadata.version", {"jaxlib": jaxlib}.__getitem__)
    command._add_in_one_instruction()
    assert os.environ["XLA_FLAGS"] == becomes
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    refused = command._jax_refusal(RuntimeError("Unable to initialize backend 'cuda': no driver"))
    assert (f"unset XLA_FLAGS={given}, or correct it" if given else "no driver; end other programs that") in str(refused)


def test_a_platform_that_is_not_there_is_named_with_its_variable(tmp_path: pathlib.Path):
    module = """
        import os, jax
        from bert_jax.interface.command import run_main
        def main():
            for platform in ("tpu", "cuda", "gpu"):
                os.environ["JAX_PLATFORMS"] = platform
                jax.config.update("jax_platforms", platform)
                try:
                    run_main(jax.devices)
                except SystemExit as ended:
                    print(ended.code, flush=True)
    """
    status, said, complained = end(started(tmp_path, module))
    assert (status, said) == (0, "2\n2\n2\n")
    says = ["error: JAX cannot start: .*; unset JAX_PLATFORMS=tpu, or correct it; .*BERT_JAX_DEVICE=.*"]
    says += ["error: JAX cannot start: there is no such device; unset JAX_PLATFORMS=cuda, or correct it; .*"]
    says += ["error: JAX cannot start: .*not in the list of known backends.*; unset JAX_PLATFORMS=gpu, .*"]
    for sentence, pattern in zip(complained.splitlines(), says, strict=True):
        assert re.fullmatch(pattern, sentence)


def test_the_backend_of_matplotlib_does_not_matter(tmp_path: pathlib.Path):
    module = "import matplotlib\ndef main():\n  print('drawn')"
    assert end(started(tmp_path, module, MPLBACKEND="none.such")) == (0, "drawn\n", "")


def test_running_out_of_memory_while_importing_is_one_sentence(tmp_path: pathlib.Path):
    module = "raise ImportError('libx.so: failed to map segment from shared object')"
    status, _, complained = end(started(tmp_path, module))
    assert complained.startswith("error: this machine ran out of memory (libx.so: failed to map segment from shared object);")
    assert status == 2
    assert "Traceback" in end(started(tmp_path, "raise ImportError('no such name')"))[2]


def test_a_current_directory_that_was_removed_is_named(tmp_path: pathlib.Path):
    module = f"import os\ndef main():\n  os.mkdir('{tmp_path}/a')\n  os.chdir('{tmp_path}/a')\n  os.rmdir('{tmp_path}/a')\n"
    status, _, complained = end(started(tmp_path, module + "  os.getcwd()"))
    assert complained == "error: No such file or directory; the current directory was removed, change to another one\n"
    assert status == 2


HOSTILE = "\\x1b[2Jred\\x07\\x9b1m\\r\\tend"
SHOWN = "\\u001b[2Jred\\u0007\\u009b1m\\u000d\tend"


def test_control_characters_of_texts_and_names_do_not_reach_the_terminal(tmp_path: pathlib.Path):
    main = f"text = '{HOSTILE}'\ndef main():\n  print('text', text)\n  print(text, file=sys.stderr)\n"
    main += "  sys.stderr.write('\\r\\x1b[2K' + 'progress' + text + '\\n')\n  raise UserError(text)"
    module = f"import sys\nfrom bert_jax.errors import UserError\n{main}"
    status, said, complained = end(started(tmp_path, module))
    assert (status, said) == (2, "text \x1b[2Jred\x07\x9b1m\r\tend\n"), "a file or another program gets the text as it is"
    assert complained == f"{SHOWN}\n\r\x1b[2Kprogress{SHOWN}\nerror: {SHOWN}\n"
    ours, theirs = os.openpty()
    process = started(tmp_path, module, stdout=theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        assert terminal.readline().decode() == f"text {SHOWN}\r\n"
        assert end(process)[0] == 2


def test_very_long_errors_are_shown_without_their_middle(tmp_path: pathlib.Path):
    module = """
        import sys
        from bert_jax.errors import UserError
        def main():
            print("warning: " + "y" * 5000, file=sys.stderr)
            raise UserError(f"--to={'x' * 5000}: too long ({'a b ' * 2000}); name another")
    """
    warning, error = end(started(tmp_path, module))[2].splitlines()
    assert warning == f"warning: {'y' * 150}... (4,700 characters) ...{'y' * 150}"
    assert error.startswith(f"error: --to={'x' * 145}... (4,")
    assert error.endswith("a b ); name another")
    assert len(error) < 2500


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_full_disk_for_standard_output_is_not_reported_as_that_of_the_outputs(tmp_path: pathlib.Path, size: int):
    module = f"""
        from bert_jax.errors import UserError
        def main():
            try:
                print("x" * {size})
            except OSError as error:
                raise UserError("--output cannot be written") from error
    """
    with pathlib.Path("/dev/full").open("wb") as full:
        status, _, complained = end(started(tmp_path, module, stdout=full.fileno()))
    said = "error: standard output cannot be written: No space left on device; redirect it, for example >FILE\n"
    assert (status, complained) == (2, said)
