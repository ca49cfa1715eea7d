#!/usr/bin/env bash
# What tpu_scripts/pod.sh and tpu_scripts/pod.yaml run on each worker of a slice, in a copy of this checkout:
#
#   worker.sh prepare [BUCKET] [CORPUS]      mounts the bucket at /mnt/bucket, copies its directory CORPUS to /mnt/corpus, and makes
#                                            the environment; what is there already stays
#   worker.sh start [--restarts=N] VERB ...  starts run.sh in the background; it outlives the ssh connection
#   worker.sh report                         whether that runs, and how it ended
#
# BERT_JAX_MOUNTS=DIR: in place of /mnt.
set -euo pipefail
# shellcheck source=tpu_scripts/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"
tell() { say "$(uname -n): $*"; }
fail() {
    tell "error: $*"
    exit 1
}

mounts="${BERT_JAX_MOUNTS:-/mnt}"
place="$root/runs/pod" # log, lock, command and exit status of what `start` has started

own_directory() { [[ -d "$1" && -w "$1" ]] || { sudo mkdir -p "$1" && sudo chown "$(id -un)" "$1"; }; }

install_gcsfuse() {
    local key=/usr/share/keyrings/cloud.google.asc list=/etc/apt/sources.list.d/gcsfuse.list from=https://packages.cloud.google.com/apt
    curl -fsS "$from/doc/apt-key.gpg" | sudo tee "$key" >/dev/null &&
        printf 'deb [signed-by=%s] %s gcsfuse-%s main\n' "$key" "$from" "$(lsb_release -cs)" | sudo tee "$list" >/dev/null &&
        sudo apt-get -q -o DPkg::Lock::Timeout=300 update && sudo apt-get -qy -o DPkg::Lock::Timeout=300 install gcsfuse
}

# mount_bucket BUCKET: checkpoints are directories that are renamed, which gcsfuse refuses beyond --rename-dir-limit entries
mount_bucket() {
    local held
    held="$(findmnt --noheadings --output SOURCE "$mounts/bucket" || true)"
    [[ "$held" == "$1" ]] && return
    [[ -z "$held" ]] || fail "$mounts/bucket holds $held, not $1; unmount it (fusermount -u $mounts/bucket) and start again"
    command -v gcsfuse >/dev/null || install_gcsfuse >&2 || fail "gcsfuse could not be installed; its messages are above"
    own_directory "$mounts/bucket" || fail "$mounts/bucket could not be made"
    gcsfuse --implicit-dirs --rename-dir-limit=100000 "$1" "$mounts/bucket" >&2 ||
        fail "the bucket $1 could not be mounted: does it exist, and may this machine's service account use it (Storage Object Admin)?"
}

# copy_corpus PATH: rows are read in random order, which is slow through a mounted bucket. The manifest is copied last, so that a
# directory with the same manifest is complete.
copy_corpus() {
    local from="$mounts/bucket/$1" to="$mounts/corpus" size free entry
    [[ -f "$from/manifest.json" ]] || fail "there is no corpus in $from (no manifest.json); name its directory in the bucket"
    if cmp -s "$from/manifest.json" "$to/manifest.json"; then return; fi
    own_directory "$to" || fail "$to could not be made"
    rm -rf "${to:?}"/*
    size="$(du -sk "$from" | cut -f1)"
    free="$(df -Pk "$to" | awk 'NR == 2 { print $4 }')"
    ((size < free)) || fail "the corpus $from has $((size / 1024)) MiB, and $to has $((free / 1024)) MiB free; take a larger boot disk"
    for entry in "$from"/*; do
        [[ "${entry##*/}" == manifest.json ]] || cp -R "$entry" "$to/" || fail "$entry could not be copied to $to; start again"
    done
    cp "$from/manifest.json" "$to/" || fail "the manifest of $from could not be copied to $to; start again"
}

prepare() {
    [[ -n "${1:-}" || -z "${2:-}" ]] || fail "the corpus $2 needs a bucket"
    if [[ -n "${1:-}" ]]; then mount_bucket "$1"; fi
    if [[ -n "${2:-}" ]]; then copy_corpus "$2"; fi
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
