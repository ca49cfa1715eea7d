#!/usr/bin/env bash
# What tpu_scripts/pod.sh and tpu_scripts/pod.yaml run on each worker of a slice, in a copy of this checkout:
#
#   worker.sh prepare                           makes the environment; what is there already stays
#   worker.sh start [--restarts=N] COMMAND ...  starts run.sh in the background; it outlives the ssh connection
#   worker.sh report                            whether that runs, and how it ended
set -euo pipefail
# shellcheck source=tpu_scripts/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"
tell() { say "$(uname -n): $*"; }
fail() {
    tell "error: $*"
    exit 1
}

place="$root/runs/pod" # log, lock, command and exit status of what `start` has started

prepare() {
    # shellcheck disable=SC2119 # no extras
    set_up
    tell "ready"
}

# start ARGUMENT...: what is started inherits descriptor 8 and thereby holds the lock as long as it lives
start() {
    mkdir -p "$place"
    exec 8>"$place/lock"
    if ! flock -n 8; then
        [[ "$(cat "$place/command")" == "$*" ]] || fail "another command runs here: $(cat "$place/command")"
        tell "runs already"
        return
    fi
    printf '%s\n' "$*" >"$place/command"
    rm -f "$place/status"
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid nohup bash -c '"${@:2}"; echo "$?" >"$1"' bash "$place/status" "$root/tpu_scripts/run.sh" "$@" \
        >>"$place/log" 2>&1 </dev/null &
    tell "started"
}

report() {
    local last
    last="$(tail -n 1 "$place/log" 2>/dev/null || true)"
    if [[ ! -e "$place/command" ]]; then
        tell "nothing was started"
    elif ! flock -n "$place/lock" true; then
        tell "runs: $last"
    elif [[ -e "$place/status" ]]; then
        tell "ended with exit status $(<"$place/status"): $last"
    else
        tell "ended without an exit status, as after a reboot: $last"
    fi
}

case "${1:-}" in
    prepare | start | report) "$@" ;;
    *) fail "worker.sh ${1:-}: wanted prepare, start or report" ;;
esac
