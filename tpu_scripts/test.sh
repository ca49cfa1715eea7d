#!/usr/bin/env bash
# Sets this checkout up if necessary, then runs its tests. Passes its arguments to pytest; paths are relative to the checkout:
#
#   tpu_scripts/test.sh                                   the suite
#   tpu_scripts/test.sh tests/model -k dropout            a part of it
#   tpu_scripts/test.sh -n0 tests/model --pdb             in one process, for a debugger
#
# By default it starts one process per core, at most 8, because XLA compiles on one core most of the time.
# BERT_JAX_PYTHON and BERT_JAX_DEVICE: see tpu_scripts/set_up.sh.
set -euo pipefail
# shellcheck source=tpu_scripts/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"

set_up test
cd "$root"
export PYTHONUTF8=1 # in every locale, as commands do
# loadfile: the tests of a file share fixtures (tests/conftest.py groups files, and starts with the longest)
exec "$venv/bin/python" -m pytest -n logical --maxprocesses=8 --dist=loadfile "$@"
