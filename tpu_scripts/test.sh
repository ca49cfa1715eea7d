#!/usr/bin/env bash
# Sets this checkout up if need be, then runs its tests. Arguments go to pytest, paths relative to the checkout:
#
#   tpu_scripts/test.sh                                   the suite
#   tpu_scripts/test.sh tests/model -k dropout            some of it
#   tpu_scripts/test.sh -n0 tests/benchmarks -s           the benchmarks, on an idle machine
#
# BERT_JAX_PYTHON and BERT_JAX_DEVICE: see tpu_scripts/set_up.sh.
set -euo pipefail
# shellcheck source=tpu_scripts/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"

set_up test
cd "$root"
exec .venv/bin/python -m pytest "$@"
