#!/usr/bin/env bash
# Every test, after the same set-up as the recipes: bash tests/run.sh [--long] [PYTEST_ARGUMENT...]
# Tests marked `long` take minutes each and are skipped unless --long is given.
# bash tests/run.sh --quick: some tests of every room, in less than a minute.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../recipes/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../recipes/lib.sh"

use_environment tokenizers pytest hypothesis
cd "$REPO"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Two workers where pytest-xdist is installed: a test uses one thread, the smallest machine has two.
workers=()
if python -c 'import xdist' 2>/dev/null; then workers=(-n 2 --dist worksteal); fi
files=()
if [[ " $* " == *" --quick "* ]]; then mapfile -t files < <(python -m tests.support.quick); fi
run python -m pytest --durations 20 ${files[@]+"${files[@]}"} ${workers[@]+"${workers[@]}"} "$@"
