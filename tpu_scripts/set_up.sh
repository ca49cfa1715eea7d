# shellcheck shell=bash
# Sourced by the other scripts: creates .venv with the pinned requirements for this machine at the first start; then uses it.
#
#   BERT_JAX_PYTHON=PATH      the Python of a new .venv    (default: the first of 3.11 to 3.14 found, else one fetched with uv)
#   BERT_JAX_DEVICE=DEVICE    cpu, tpu, cuda13 or cuda12   (default: what this machine has)
#
# `aot` has an environment of its own, .venv-tpu: if the TPU compiler is installed, JAX looks for a TPU in every program. So has an
# accelerator if .venv has JAX for another one (.venv-cuda12), since a running command may use .venv.
#
# All files are in .venv, .venv-* and .venv-setup (log, lock, a downloaded uv and Python); remove them to start again.
# Environments made by anything else are not changed.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"
setup_dir="$root/.venv-setup"
log="$setup_dir/install.log"
export PYTHONDONTWRITEBYTECODE= # containers often set it; then each start would compile JAX and the others again, for 10 s

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $*"
    exit 1
}

# suitable PYTHON: tests whether all pinned packages have wheels for its version, and whether it can create virtual environments
# with pip (on Debian and Ubuntu, ensurepip is a separate package).
suitable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1
}

# find_python: prints the path of a suitable Python, or nothing.
find_python() {
    local candidate path
    if [[ -n "${BERT_JAX_PYTHON:-}" ]]; then
        suitable "$BERT_JAX_PYTHON" ||
            fail "BERT_JAX_PYTHON=$BERT_JAX_PYTHON is not a Python 3.11 to 3.14 with venv and ensurepip"
        command -v "$BERT_JAX_PYTHON"
        return
    fi
    for candidate in python3.12 python3.11 python3.13 python3.14 python3 python \
        /usr/local/bin/python3.1[1-4] /opt/python*/bin/python3 "$HOME"/.pyenv/versions/3.1[1-4]*/bin/python; do
        path="$(command -v "$candidate")" && suitable "$path" && printf '%s\n' "$path" && return
    done
    return 0
}

# fetch_python: downloads a prebuilt Python with uv and prints its path. Needed on Cloud TPU VM images, which have Python 3.10.
fetch_python() {
    local uv candidate pin found
    uv="$(command -v uv || true)"
    for candidate in "$HOME/.local/bin/uv" "$setup_dir/uv/bin/uv"; do
        [[ -z "$uv" && -x "$candidate" ]] && uv="$candidate"
    done
    if [[ -z "$uv" ]]; then
        pin="$(requirements python)"
        for candidate in python3 python "$HOME"/.pyenv/versions/3.*/bin/python; do
            command -v "$candidate" >/dev/null &&
                "$candidate" -m pip install --quiet --target "$setup_dir/uv" "$pin" >>"$log" 2>&1 &&
                uv="$setup_dir/uv/bin/uv" && break
        done
    fi
    if [[ -n "$uv" ]]; then
        export UV_PYTHON_INSTALL_DIR="$setup_dir/python"
        "$uv" python install 3.12 >>"$log" 2>&1 || true # without a network, uv may find an installed one
        found="$("$uv" python find '>=3.11,<3.15' 2>>"$log")" && suitable "$found" && printf '%s\n' "$found"
    fi
    return 0
}

# find_device: prints cpu, tpu, cuda13 or cuda12.
find_device() {
    local card driver="" capability=""
    if [[ -n "${BERT_JAX_DEVICE:-}" ]]; then
        case "$BERT_JAX_DEVICE" in
            cpu | tpu | cuda12 | cuda13) printf '%s\n' "$BERT_JAX_DEVICE" ;;
            *) fail "BERT_JAX_DEVICE=$BERT_JAX_DEVICE: wanted cpu, tpu, cuda13 or cuda12" ;;
        esac
        return
    fi
    # a TPU has these PCI numbers; Google's 0x1ae0 alone also matches the network and disk devices of every Google Cloud machine
    for card in /sys/bus/pci/devices/*; do
        [[ -r "$card/vendor" && -r "$card/device" && "$(<"$card/vendor")" == 0x1ae0 ]] || continue
        case "$(<"$card/device")" in
            0x0027 | 0x0056 | 0x005e | 0x0062 | 0x0063 | 0x006f | 0x0076) printf 'tpu\n' && return ;;
        esac
    done
    IFS=', ' read -r driver capability < <(
        nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null
    ) || true
    if [[ ! "$driver" =~ ^[0-9]+\. ]]; then
        printf 'cpu\n'
    elif ((${driver%%.*} < 580)) || { [[ "$capability" =~ ^[0-9]+\.[0-9]$ ]] && ((${capability/./} < 75)); }; then
        printf 'cuda12\n' # CUDA 13 needs driver 580 and compute capability 7.5
    else
        printf 'cuda13\n'
    fi
}

# requirements EXTRA...: prints the pinned lines of these extras. A line `name==1 ; extra == "test"` belongs to the extra
# `test`; a line without a marker belongs to the extra `all`.
requirements() {
    local line extra wanted=" $* "
    while IFS= read -r line; do
        line="${line%%#*}"
        extra=all
        [[ "$line" == *'extra == "'* ]] && extra="${line##*extra == \"}" && extra="${extra%%\"*}"
        line="${line%%;*}"
        line="${line//[[:space:]]/}"
        [[ -n "$line" && "$wanted" == *" $extra "* ]] && printf '%s\n' "$line"
    done <"$root/requirements.txt"
    return 0
}

# stage TITLE COMMAND...: runs a command with its output in the log. Prints a line with the seconds it took; if it fails, prints
# the end of the log and exits.
stage() {
    local title="$1" start=$SECONDS pid
    shift
    printf '%s ... ' "$title" >&2
    "$@" >>"$log" 2>&1 &
    pid=$!
    while [[ -t 2 ]] && kill -0 "$pid" 2>/dev/null; do
        sleep 0.5
        printf '\r%s ... %s s ' "$title" $((SECONDS - start)) >&2
    done
    if ! wait "$pid"; then
        say "failed"
        grep -v '^WARNING' "$log" | tail -n 12 | sed 's/^/    /' >&2
        fail "$title failed; its whole output is in $log. Fix the cause and start again: an incomplete environment is made anew"
    fi
    if [[ -t 2 ]]; then printf '\r%s ... %s s \n' "$title" $((SECONDS - start)) >&2; else say "$((SECONDS - start)) s"; fi
}

# state EXTRA...: prints what a finished environment with these extras consists of. It is up to date if its stamp is equal.
state() {
    printf 'extras: %s\n' "$*"
    printf 'place: %s\n' "$root" # its scripts hold absolute paths
    printf 'system: %s\n' "$(uname -sm)"
    requirements all "$@"
}

# make_venv PYTHON, install EXTRA...: the two steps of an installation.
make_venv() {
    rm -rf "$venv" && "$1" -m venv "$venv"
}

install() {
    local site
    requirements all "$@" >"$setup_dir/requirements.txt"
    packages "$venv/bin/python" -r "$setup_dir/requirements.txt" &&
        site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" &&
        printf '%s\n' "$root" >"$site/bert_jax.pth" # bert_jax is importable from every directory
}

# packages PYTHON ARGUMENT...: installs packages in the environment of PYTHON with uv (.venv: 18 s; pip: 116 s); with pip if uv
# cannot be installed or fails. uv reads neither pip.conf nor PIP_INDEX_URL and the like, so it is told these.
packages() {
    local python="$1" pin key value place places=()
    shift
    pin="$(requirements python)"
    if [[ -n "$pin" ]] && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$pin"; then
        while IFS='=' read -r key value; do
            value="${value//[\'\"]/}"
            for place in ${value//\\n/ }; do
                case "$key" in
                    *.index-url) places+=("--default-index=$place") ;;
                    *.extra-index-url) places+=("--index=$place") ;;
                    *.find-links) places+=("--find-links=$place") ;;
                    *.no-index) places+=(--no-index) ;;
                esac
            done
        done < <("$venv/bin/python" -m pip config list)
        "$venv/bin/uv" pip install --no-progress --python "$python" --system-certs --index-strategy unsafe-best-match \
            ${places[@]+"${places[@]}"} "$@" && return
        printf 'uv failed: installing with pip\n'
    fi
    "$venv/bin/python" -m pip --python "$python" install --disable-pip-version-check --no-input "$@"
}

# report_other_python: prints a line if BERT_JAX_PYTHON is not the Python of the environment, which is kept.
report_other_python() {
    local base='import os, sys; print(os.path.realpath(sys._base_executable))' has
    [[ -n "${BERT_JAX_PYTHON:-}" ]] || return 0
    has="$("$venv/bin/python" -c "$base")"
    [[ "$("$BERT_JAX_PYTHON" -c "$base" 2>/dev/null)" == "$has" ]] ||
        say "BERT_JAX_PYTHON=$BERT_JAX_PYTHON is not used: ${venv##*/} was made with $has; remove ${venv##*/} to make it anew"
}

# choose_tpu_compiler: makes set_up prepare .venv-tpu. On a machine with a TPU, does nothing: its .venv has the compiler.
choose_tpu_compiler() {
    local device
    device="$(find_device)" || exit 1
    [[ "$device" != tpu ]] || return 0
    [[ "$(uname -sm)" == "Linux x86_64" ]] ||
        fail "aot needs the TPU compiler, which exists only for Linux on x86-64; this is $(uname -sm)"
    venv="$root/.venv-tpu"
    BERT_JAX_DEVICE=tpu
}

# set_up EXTRA...: makes or updates the environment `venv` for this checkout.
set_up() {
    local name stamp begun device has python extras wanted="$*"
    device="$(find_device)" || exit 1

    # finished: tests whether the environment is up to date; sets extras, and has (the environment's device). Extras once
    # installed stay, so run.sh after test.sh does nothing. So does JAX for an accelerator, for a machine without one (machines
    # of a cluster share the checkout) and for BERT_JAX_DEVICE=cpu. Another accelerator has an environment of its own.
    finished() {
        look
        if [[ -n "$has" && "$has" != cpu && "$has" != "$device" ]]; then
            if [[ "$device" == cpu ]]; then
                if [[ -n "${BERT_JAX_DEVICE:-}" ]]; then export JAX_PLATFORMS=cpu; fi
                device="$has"
            else
                venv="$root/.venv-$device"
                look
            fi
        fi
        extras="$device"
        if [[ " $wanted $(sed -n 's/^extras://p' "$stamp" 2>/dev/null) " == *" test "* ]]; then extras+=" test"; fi
        # shellcheck disable=SC2086
        [[ "$(cat "$stamp" 2>/dev/null)" == "$(state $extras)" ]] && "$venv/bin/python" -c '' 2>/dev/null
    }
    look() {
        name="${venv##*/}" stamp="$venv/bert_jax-stamp" has=""
        begun="$setup_dir/begun${name#.venv}"
        if grep -qsxF "place: $root" "$stamp"; then has="$(sed -n 's/^extras: \([a-z0-9]*\).*/\1/p' "$stamp")"; fi
    }
    finished && report_other_python && return

    mkdir -p "$setup_dir" || fail "$root cannot be written"
    exec 9>"$setup_dir/lock"
    if command -v flock >/dev/null && ! flock -n 9; then # macOS has no flock: start one at a time there
        say "another process is setting up; waiting for it"
        flock 9
        finished && exec 9>&- && report_other_python && return
    fi
    if [[ -e "$venv" && ! -e "$stamp" && ! -e "$begun" ]]; then
        fail "$venv was not made by these scripts, and they would have to empty it. Move it away and start again
(mv $name $name.mine), or run the commands with it: $name/bin/python -m bert_jax.pretrain"
    fi
    : >"$log"
    : >"$begun"
    case "$name$device" in
        .venv-tpu*) say "the TPU compiler has an environment of its own, .venv-tpu" ;;
        *cpu) say "device: cpu (no TPU on the PCI bus, no NVIDIA driver; BERT_JAX_DEVICE overrides)" ;;
        *) say "device: $device (BERT_JAX_DEVICE overrides)" ;;
    esac
    # incomplete (no stamp), made elsewhere, or without its Python: make it anew
    if [[ -z "$has" ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
        python="$(find_python)" || exit 1
        if [[ -z "$python" ]]; then
            say "no Python 3.11 to 3.14 with venv here (python3 is $(python3 --version 2>&1 || true)): fetching one with uv"
            python="$(fetch_python)"
        fi
        [[ -n "$python" ]] || {
            grep -v '^WARNING' "$log" | tail -n 6 | sed 's/^/    /' >&2
            fail "no Python 3.11 to 3.14 with venv was found, and uv could not fetch one (log: $log).
Install one (Ubuntu: sudo apt install python3-venv; on 22.04: python3.11 python3.11-venv) and start again, or name it:
BERT_JAX_PYTHON=/path/to/python"
        }
        say "python: $("$python" --version 2>&1) ($python)"
        stage "making $name" make_venv "$python"
    else
        report_other_python
    fi
    rm -f "$stamp"
    # shellcheck disable=SC2086
    stage "installing pinned packages (${extras// /, }; the first time takes half a minute or more)" install $extras
    # shellcheck disable=SC2086
    state $extras >"$stamp.new" && mv "$stamp.new" "$stamp"
    rm -f "$begun"
    exec 9>&-
}
