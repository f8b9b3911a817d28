#!/usr/bin/env bash
# The long checks behind docs/reliability.md: bash tests/soak.sh [PART...]
# All of them take some 20 minutes of one core. Each writes docs/results/reliability_PART.json; the
# end is a table.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../recipes/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../recipes/lib.sh"

PARTS=(kills disk memory serve)
LONGEST=5400 # seconds of a part

main() {
    local part status=0
    (($#)) || set -- "${PARTS[@]}"
    for part in "$@"; do
        case " ${PARTS[*]} " in
        *" $part "*) ;;
        *) die "\`$part\` is no part; there are ${PARTS[*]}." ;;
        esac
    done
    use_environment tokenizers starlette
    cd "$REPO"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    for part in "$@"; do
        log "$part …"
        run timeout "$LONGEST" python -m "tests.soak.$part" \
            --json "docs/results/reliability_$part.json" || status=1
    done
    run python -m tests.soak.report
    return "$status"
}

main "$@"
