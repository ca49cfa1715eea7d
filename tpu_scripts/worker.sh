#!/usr/bin/env bash
# Runs on each worker of a slice, in a copy of this checkout; tpu_scripts/pod.sh and tpu_scripts/pod.yaml call it:
#
#   worker.sh prepare                           makes the environment, or updates it
#   worker.sh start [--restarts=N] COMMAND ...  starts run.sh in the background; it outlives the ssh connection
#   worker.sh report                            prints whether that process is running, and how it ended
set -euo pipefail
# shellcheck source=tpu_scripts/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"
tell() { say "$(uname -n): $*"; }
fail() {
    tell "error: $*"
    exit 1
}

place="$root/runs/pod" # log, lock, command and exit status of the process that `start` started

prepare() {
    # shellcheck disable=SC2119 # no extras
    set_up
    tell "ready"
}

# start ARGUMENT...: the process inherits descriptor 8, so it holds the lock until it ends
start() {
    mkdir -p "$place"
    exec 8>"$place/lock"
    if ! flock -n 8; then
        [[ "$(cat "$place/command")" == "$*" ]] || fail "another command is running here: $(cat "$place/command")"
        tell "already running"
        return
    fi
    if [[ -e "$root/.bert_jax_secret" ]]; then
        BERT_JAX_SECRET="$(<"$root/.bert_jax_secret")"
        export BERT_JAX_SECRET
    fi
    printf '%s\n' "$*" >"$place/command"
    rm -f "$place/status"
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid nohup bash -c '"${@:2}"; echo "$?" >"$1"' bash "$place/status" "$root/tpu_scripts/run.sh" "$@" \
        >>"$place/log" 2>&1 </dev/null &
    tell "started"
}

report() {
    local state
    if [[ ! -e "$place/command" ]]; then
        tell "nothing was started"
        return
    elif ! flock -n "$place/lock" true; then
        state="running"
    elif [[ -e "$place/status" ]]; then
        state="ended with exit status $(<"$place/status")"
    else
        state="ended without an exit status (was the machine rebooted?)"
    fi
    # The log is read after the state, so the line of a process that ended is its last one.
    tell "$state: $(tail -n 1 "$place/log" 2>/dev/null || true)"
}

case "${1:-}" in
    prepare | start | report) "$@" ;;
    *) fail "worker.sh ${1:-}: wanted prepare, start or report" ;;
esac
