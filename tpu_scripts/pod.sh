#!/usr/bin/env bash
# Trains on one or more Cloud TPU slices with gcloud alone: requests them, waits in the queue, and
# starts run.sh on every worker. tpu_scripts/pod.yaml does the same through SkyPilot, which also
# restarts the run in another zone after a preemption.
#
#   tpu_scripts/pod.sh create NAME --type=v5litepod-16 [--spot] [--valid-until-duration=6h]
#                                       requests a slice; with --slices=2, two slices for one run,
#                                       which communicate over the network between slices
#   tpu_scripts/pod.sh run NAME [--restarts=20] COMMAND [ARGUMENT ...]
#                                       waits for all slices, copies this checkout to all workers,
#                                       installs, and starts the command; the workdir and the corpus
#                                       are in a bucket: gs://BUCKET/PATH; passes BERT_JAX_SECRET on,
#                                       if it is set
#   tpu_scripts/pod.sh status NAME      shows the state of the request, and of each worker
#   tpu_scripts/pod.sh logs NAME [--slice=0] [--worker=0] [--follow]
#                                       shows the log of a worker
#   tpu_scripts/pod.sh fetch NAME PATH DIR
#                                       copies a file or directory of worker 0 of slice 0 to DIR
#   tpu_scripts/pod.sh delete NAME      deletes the slices with their disks; the bucket stays
#
# For example:
#
#   tpu_scripts/pod.sh create large --zone=us-west4-a --type=v5litepod-16 --spot
#
# All of them accept --zone=ZONE and --project=PROJECT (default: the values in `gcloud config`), and
# --dry-run, which only prints the gcloud commands.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
pod=tpu_scripts/pod.sh
say() { [[ -n "${dry_run:-}" ]] || printf '%s\n' "$*" >&2; }

# fail STATUS MESSAGE: status 2 for a mistake in the command, 1 for a refusal by Google Cloud or a worker
fail() {
    printf '%s\n' "error: $2" >&2
    exit "$1"
}

# ----------------------------------------------------------------------------------------------------------------- command line
subcommand="${1:-}"
case "$subcommand" in
    -h | --help | help | "")
        sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
        exit
        ;;
    create | run | status | logs | fetch | delete) ;;
    *) fail 2 "unknown command '$subcommand'; known: create, run, status, logs, fetch, delete ($pod --help)" ;;
esac
name="${2:-}"
[[ "$name" != -h && "$name" != --help ]] || exec "$0" --help
[[ "$name" =~ ^[a-z][-a-z0-9]{0,61}$ ]] || fail 2 "NAME '$name' must be a lower-case letter followed by letters, digits and \
dashes, at most 62 characters: $pod $subcommand my-pod"
shift 2

dry_run="" where=() type="" slices=1 spot="" valid_until="" restarts=20 slice=0 worker=0 follow=""
while [[ "${1:-}" == -* ]]; do
    case "$subcommand:$1" in
        *:--dry-run) dry_run=yes ;;
        *:--zone=?* | *:--project=?*) where+=("$1") ;;
        create:--type=?*) type="${1#*=}" ;;
        create:--slices=?*) slices="${1#*=}" ;;
        create:--spot) spot=yes ;;
        create:--valid-until-duration=?*) valid_until="${1#*=}" ;;
        run:--restarts=?*) restarts="${1#*=}" ;;
        logs:--slice=?*) slice="${1#*=}" ;;
        logs:--worker=?*) worker="${1#*=}" ;;
        logs:--follow) follow=yes ;;
        *) fail 2 "$subcommand does not take $1 (values as in --zone=ZONE; $pod --help has the flags)" ;;
    esac
    shift
done
case "$subcommand" in
    run | fetch) ;;
    *) (($# == 0)) || fail 2 "$subcommand does not take '$1' ($pod --help)" ;;
esac
[[ -n "$dry_run" ]] || command -v gcloud >/dev/null || fail 1 "gcloud was not found: https://cloud.google.com/sdk/docs/install"

# ----------------------------------------------------------------------------------------------------------------------- gcloud
# tpu ARGUMENT...: runs gcloud compute tpus ARGUMENT... in the zone; a dry run only prints it
tpu() {
    local command=(gcloud compute tpus "$@" ${where[@]+"${where[@]}"} --quiet)
    if [[ -n "$dry_run" ]]; then
        printf '%q ' "${command[@]}"
        printf '\n'
    else
        "${command[@]}"
    fi
}

# request FIELD: prints a field of the queued resource
request() { tpu queued-resources describe "$name" --format="value($1)"; }

# require_usable STATE: exits if the request can no longer become a slice
require_usable() {
    local again="$pod delete $name, then create and run as before: a run with the same --workdir in the bucket continues"
    case "$1" in
        FAILED) fail 1 "the request $name has failed: $(request state.failedData.error.message). If the quota is too small, \
ask for more in the console (IAM, Quotas), or use a smaller --type, another --zone or --spot, whose quota is separate. $again" ;;
        SUSPENDING | SUSPENDED) fail 1 "the slice $name was preempted ($1) and does not come back. $again" ;;
        DELETING) fail 1 "$name is being deleted; after that, create it again: $pod create $name" ;;
    esac
}

wait_until_active() {
    local state="" seen="" failures=0
    [[ -z "$dry_run" ]] || { request state.state && return; }
    while true; do
        if state="$(request state.state)"; then
            failures=0
            require_usable "$state"
            [[ "$state" == ACTIVE ]] && break
            [[ "$state" == "$seen" ]] ||
                say "$name: $state; nothing is charged before it is ACTIVE. Ctrl-C ends the wait, not the request"
            seen="$state"
        else
            failures=$((failures + 1))
            [[ -n "$seen" ]] || fail 1 "$name cannot be described (gcloud's message is above); to create it: $pod create $name"
            ((failures < 20)) ||
                fail 1 "gcloud has failed 20 times in a row; run the same command again when the network is back"
        fi
        sleep 30
    done
    say "$name: ACTIVE"
}

# reach WHAT COMMAND...: runs a gcloud command that uses ssh. If ssh itself fails after all of gcloud's own attempts (status
# 255, or any status of scp), runs it up to two more times.
reach() {
    local what="$1" attempt status
    shift
    for attempt in 1 2 3; do
        status=0
        "$@" || status=$?
        ((status == 0)) && return
        require_usable "$(request state.state)"
        [[ "$status" == 255 || "$*" == *" scp "* ]] || fail 1 "$what failed with exit status $status; the message of the \
worker, or of gcloud, is above. Fix the cause and run the same command again; steps that are done are not repeated"
        say "ssh failed (attempt $attempt of 3)"
        ((attempt == 3)) || sleep 15
    done
    fail 1 "$what: a worker cannot be reached with ssh. Its processes continue; run the same command again ($pod status $name)"
}

# on_workers WORKER COMMAND [SLICE]: runs COMMAND on one worker, or all of them, of one slice, or by default of all slices
on_workers() { tpu queued-resources ssh "$name" --node="${3:-all}" --worker="$1" --command="$2"; }

# --------------------------------------------------------------------------------------------------------------------- commands
create() {
    local said runtime nodes=(--node-id="$name") many=""
    [[ "$slices" =~ ^[1-9][0-9]{0,2}$ ]] || fail 2 "--slices=$slices must be at least 1 and at most 999; --slices=2 runs on \
two slices of --type"
    case "$type" in
        v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
        v5p-*) runtime=v2-alpha-tpuv5 ;;
        v6e-*) runtime=v2-alpha-tpuv6e ;;
        v[234]-*) runtime=tpu-ubuntu2204-base ;;
        *) fail 2 "--type='$type' must be v2, v3, v4, v5litepod, v5p or v6e with a number of cores or chips, \
e.g. --type=v5litepod-16" ;;
    esac
    if ((slices > 1)); then nodes=(--node-count="$slices" --node-prefix="$name") many="$slices slices of "; fi
    set -- queued-resources create "$name" "${nodes[@]}" --accelerator-type="$type" --runtime-version="$runtime" \
        --scopes=cloud-platform ${spot:+--spot} ${valid_until:+--valid-until-duration="$valid_until"}
    if [[ -n "$dry_run" ]]; then
        tpu "$@"
    elif ! said="$(tpu "$@" 2>&1)"; then
        say "$said"
        case "$said" in
            *[Qq]uota* | *RESOURCE_EXHAUSTED*)
                fail 1 "the quota of this project does not allow $many$type here. Ask for more in the console (IAM, Quotas), \
or use a smaller --type, ${many:+fewer --slices, }another --zone${spot:-, or --spot, whose quota is separate}"
                ;;
            *ALREADY_EXISTS* | *"already exists"*) fail 1 "$name exists already: $pod status $name, or $pod delete $name" ;;
            *) fail 1 "gcloud refused the request; its message is above" ;;
        esac
    else
        say "$name is in the queue; nothing is charged before it is ACTIVE. Next: $pod run $name ... waits for it"
    fi
}

run() {
    local packed archive command lock=bert_jax/runs/pod/lock
    case "${1:-}" in
        pretrain | finetune | study | doctor) ;;
        *) fail 2 "run takes pretrain, finetune, study or doctor with its arguments, not '${1:-}'" ;;
    esac
    [[ "$restarts" =~ ^[1-9][0-9]{0,2}$ ]] || fail 2 "--restarts=$restarts must be at least 1 and at most 999"
    [[ "$1" == doctor ]] || set -- "--restarts=$restarts" "$@" # a restart does not fix what doctor finds
    wait_until_active
    packed="$(mktemp -d)"
    # shellcheck disable=SC2064 # expanded now
    trap "rm -rf '$packed'" EXIT
    archive="$packed/bert_jax.tar"
    (cd "$root" && git ls-files -z --cached --others --exclude-standard | tar --null -cf "$archive" -T -) ||
        fail 1 "$root could not be packed; it must be a git checkout without missing files (git status)"
    if [[ -n "${BERT_JAX_SECRET:-}" ]]; then # in the archive: commands are visible in process lists and logs
        (umask 077 && printf '%s\n' "$BERT_JAX_SECRET" >"$packed/.bert_jax_secret")
        tar -rf "$archive" -C "$packed" .bert_jax_secret # on its own: the tar of macOS applies -C to the names of -T - too
    fi
    gzip "$archive"
    reach "copying the checkout" tpu queued-resources scp "$archive.gz" "$name:bert_jax.tar.gz" --node=all --worker=all
    reach "preparing" on_workers all "if [ -e $lock ] && ! flock -n $lock true; then \
echo \"\$(uname -n): a command is running here, so its code and packages are not replaced\" >&2; \
else mkdir -p bert_jax && rm -f bert_jax/.bert_jax_secret && tar -xzf bert_jax.tar.gz -C bert_jax && \
bert_jax/tpu_scripts/worker.sh prepare; fi"
    printf -v command ' %q' "$@"
    reach "starting" on_workers all "cd bert_jax && tpu_scripts/worker.sh start$command"
    say "started on all workers; $pod logs $name --follow"
}

status() {
    local state
    if [[ -n "$dry_run" ]]; then
        request state.state
    else
        state="$(request state.state)" || fail 1 "$name cannot be described; gcloud's message is above"
        printf '%s: %s\n' "$name" "$state"
        require_usable "$state"
        [[ "$state" == ACTIVE ]] || return 0
    fi
    # shellcheck disable=SC2016 # expanded on the worker
    reach "status" on_workers all 'bert_jax/tpu_scripts/worker.sh report || echo "$(uname -n): the checkout is not here yet"'
}

logs() { reach "logs" on_workers "$worker" "tail -n 100 ${follow:+-F }bert_jax/runs/pod/log" "$slice"; }

fetch() {
    (($# == 2)) || fail 2 "fetch takes PATH and DIR: $pod fetch $name bert_jax/runs/pod/log ."
    reach "fetch" tpu queued-resources scp "$name:$1" "$2" --recurse --node=0 --worker=0
}

delete() {
    tpu queued-resources delete "$name" --force || fail 1 "$name was not deleted (gcloud's message is above); it costs \
money as long as it is ACTIVE"
}

"$subcommand" "$@"
