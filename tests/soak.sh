#!/usr/bin/env bash
# The long checks behind docs/reliability.md: bash tests/soak.sh [PART...]
# All of them take some 35 minutes of one core. Parts: see PARTS below, and `fuzz` for both of its
# kind. Each writes docs/results/reliability_PART.json; the end is a table.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../recipes/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../recipes/lib.sh"

PARTS=(kills disk memory serve fuzz_readers fuzz_binary)
LONGEST=5400 # seconds of a part

# choose_parts ARGUMENT...: sets `chosen`.
choose_parts() {
    local word
    chosen=()
    for word in "$@"; do
        case " ${PARTS[*]} fuzz " in
        *" $word "*) ;;
        *) die "\`$word\` is no part; there are ${PARTS[*]}, and fuzz for both of its kind." ;;
        esac
        if [[ "$word" == fuzz ]]; then chosen+=(fuzz_readers fuzz_binary); else chosen+=("$word"); fi
    done
    ((${#chosen[@]})) || chosen=("${PARTS[@]}")
}

main() {
    local part status=0
    choose_parts "$@"
    use_environment tokenizers starlette
    cd "$REPO"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    for part in "${chosen[@]}"; do
        log "$part …"
        run timeout "$LONGEST" python -m "tests.soak.$part" \
            --json "docs/results/reliability_$part.json" || status=1
    done
    run python -m tests.soak.report
    return "$status"
}

main "$@"
