#!/usr/bin/env bash
# Every test, after the same set-up as the recipes: bash tests/run.sh [PYTEST_ARGUMENT...]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../recipes/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../recipes/lib.sh"

use_environment babel num2words tokenizers pytest
cd "$REPO"
run python -m pytest "$@"
