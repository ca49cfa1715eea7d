#!/usr/bin/env bash
# Runs bert_jax from a fresh checkout. Makes the environment first; only Python has to be installed.
#
#   tpu_scripts/run.sh                      the quickstart: builds a corpus from the English text that
#                                           Python carries, pretrains a small BERT on it in minutes on
#                                           a CPU, and lets it fill in masked words
#   tpu_scripts/run.sh COMMAND [ARGUMENT ...]
#                                           runs one of the commands below, for example
#       tpu_scripts/run.sh pretrain --config=experiments/pretrain/bert_base.py --workdir=runs/base
#   tpu_scripts/run.sh COMMAND --help       shows the flags of a command
#   tpu_scripts/run.sh --restarts=5 COMMAND [ARGUMENT ...]
#                                           starts pretrain, finetune or study again after a hang,
#                                           a lost process or a crash: up to 5 times, with growing
#                                           pauses, and not if the same step fails twice
#
# On a TPU pod slice, run the same command on every worker (tpu_scripts/pod.sh, tpu_scripts/pod.yaml).
#
# BERT_JAX_DEVICE=cpu|tpu|cuda13|cuda12     the accelerator to install for (default: the one found)
# BERT_JAX_PYTHON=PATH                      Python of a new .venv, 3.11 to 3.14 (default: first found)
set -euo pipefail
# shellcheck source=tpu_scripts/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"

# commands: prints the names of all modules bert_jax/NAME.py that can be run, one per line
commands() {
    local file
    while IFS= read -r file; do
        file="${file##*/}"
        printf '%s\n' "${file%.py}"
    done < <(grep -lE '^if __name__ == "__main__"' "$root"/bert_jax/*.py)
}

# about COMMAND: prints the first line of its docstring
about() {
    sed -n '1s/^r\{0,1\}"""//; 1s/"""$//; 1p' "$root/bert_jax/$1.py"
}

usage() {
    sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
    printf '\nCommands:\n'
    commands | sort | while IFS= read -r command; do printf '  %-10s  %s\n' "$command" "$(about "$command")"; done
}

# unknown COMMAND: prints an error with the most similar command, using any Python, since the environment may not exist yet
unknown() {
    local python hint="" code='import sys; from bert_jax.errors import nearest; print(nearest(sys.argv[1], sys.argv[2:]))'
    for python in "$root/.venv/bin/python" python3 python; do
        # shellcheck disable=SC2046
        hint="$(PYTHONPATH="$root" "$python" -c "$code" "$1" $(commands) 2>/dev/null)" && break
    done
    say "error: unknown command '$1': ${hint:-known: $(commands | sort | paste -sd ' ' -)} (tpu_scripts/run.sh --help)"
    exit 2
}

# check_topology ARGUMENT...: prints the error of `aot` for a --topology that does not exist, before its compiler is installed,
# which takes minutes. Uses any Python; if that is too old, `aot` itself reports the error later.
check_topology() {
    local python status
    for python in "$root/.venv/bin/python" "${BERT_JAX_PYTHON:-python3}" python3; do
        command -v "$python" >/dev/null || continue
        PYTHONPATH="$root" "$python" -c 'import sys
try:
    from bert_jax.tpu.costs.topologies import check_topology
except Exception:
    sys.exit(3)
sys.exit(check_topology(sys.argv[1:]))' "$@"
        status=$?
        if ((status == 2)); then exit 2; elif ((status == 0)); then return; fi
    done
}

quickstart() {
    local start=$SECONDS model=runs/quickstart
    cd "$root"
    say ""
    say "1/3  a corpus: tokenising the English text that comes with Python and its packages, with a vocabulary trained on it"
    if [[ -f runs/embedded_corpus/manifest.json ]]; then # with newer packages the corpus would differ: no run could continue
        say "runs/embedded_corpus already exists"
    else
        # 3 % held out: the usual 1 % of 6 MB has too few documents for an evaluation. --alphabet=1000: the numbers in README were
        # measured with it; by default, a vocabulary keeps the characters that cover 99.99 % of its text
        "${python[@]}" bert_jax.corpus --source=embedded --train-vocab=wordpiece --vocab-size=8192 --alphabet=1000 --lowercase \
            --eval-fraction=0.03 --output=runs/embedded_corpus
    fi
    say ""
    say "2/3  pretraining a small BERT on it (experiments/pretrain/quickstart.py)"
    "${python[@]}" bert_jax.pretrain --config=experiments/pretrain/quickstart.py --workdir="$model"
    say ""
    say "3/3  what it has learned: the most probable words for [MASK]"
    "${python[@]}" bert_jax.predict fill-mask --model="$model" \
        "The function returns a [MASK] of strings." \
        "If the [MASK] is not found, an error is raised." \
        "The [MASK] of the array must be a positive integer."
    say ""
    say "Done in $(((SECONDS - start) / 60))m$(printf '%02d' $(((SECONDS - start) % 60)))s. Look at"
    say "  $root/$model/curves.png      how it learned"
    say "  $root/$model/results.json    the final numbers"
    say "  $root/$model/model/          the model: transformers.BertForPreTraining.from_pretrained loads it"
}

restarts=0
if [[ "${1:-}" == --restarts* ]]; then
    restarts="${1#--restarts=}"
    if [[ ! "$restarts" =~ ^[1-9][0-9]{0,2}$ ]]; then
        say "error: $1 must be --restarts=N with a whole number from 1 to 999, e.g. --restarts=5"
        exit 2
    fi
    shift
    if [[ "${1:-}" != pretrain && "${1:-}" != finetune && "${1:-}" != study ]]; then
        say "error: --restarts=$restarts is only for pretrain, finetune and study, which continue from their \
--workdir${1:+, not for $1}"
        exit 2
    fi
fi

case "${1:-}" in
    -h | --help | help)
        usage
        exit
        ;;
    "") ;;
    *) grep -qxF -- "$1" <<<"$(commands)" || unknown "$1" ;;
esac

if [[ "${1:-}" == aot && " $* " != *" --help "* && " $* " != *" -h "* ]]; then
    check_topology "${@:2}" || true
    choose_tpu_compiler
fi
# shellcheck disable=SC2119 # no extras
set_up
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" # XLA's C++ log: errors only
# Large arrays use huge pages: a CPU step allocates its memory at every call, and with pages of 4 KB, 175,000 page faults take a
# sixth of the time (needs glibc 2.35 or later; has no effect elsewhere).
export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"
# The code of this checkout is used, even if the current directory has another bert_jax (-P), or `pip install .` copied one
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
python=("$venv/bin/python" -P -m)
if (($# == 0)); then
    quickstart
elif ((restarts)); then
    exec "${python[@]}" bert_jax.runtime.restarts "$restarts" "$@"
else
    exec "${python[@]}" "bert_jax.$1" "${@:2}" # exec: a SIGTERM reaches the run, which saves before it ends
fi
