#!/usr/bin/env bash
# Sets this checkout up if need be, then runs its tests. Arguments go to pytest, paths relative to the checkout:
#
#   tpu_scripts/test.sh                                   the suite
#   tpu_scripts/test.sh tests/model -k dropout            some of it
#   tpu_scripts/test.sh -n0 tests/model --pdb             in one process, as a debugger needs it
#
# All cores share the work unless -n says otherwise: most of the time is XLA compiling on one core.
# BERT_JAX_PYTHON and BERT_JAX_DEVICE: see tpu_scripts/set_up.sh.
set -euo pipefail
# shellcheck source=tpu_scripts/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"

set_up test
cd "$root"
# Python keeps what it compiles, whatever this machine's default is: pytest's form of 400 test files is 6 s of each worker's start.
export PYTHONDONTWRITEBYTECODE=
# loadfile: a file's tests share what they are made of (tests/conftest.py says which files go together, and begins with the longest)
exec .venv/bin/python -m pytest -n logical --maxprocesses=8 --dist=loadfile "$@"
