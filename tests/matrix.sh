#!/usr/bin/env bash
# The tests on every fairseq and Python that the plugin is meant for, each in an environment of its
# own: bash tests/matrix.sh [--core] [--only NAME] [--envs DIR] [--upstream DIR_OR_URL] [PART...]
#
#   --core                  the tests that depend on fairseq most, instead of the whole suite
#   PART...                 these alone: `trial` is tests/models/test_trial.py
#   --only NAME             one environment: fixed-3.X (fairseq-fixed, on each supported Python),
#                           pypi-3.10 (fairseq 0.12.2) or main-3.10 (a clone of fairseq)
#   --envs DIR              where the environments are made and kept (runs/matrix)
#   --upstream DIR_OR_URL   a git repository of fairseq; without it main-3.10 is left out
#
# Ends with a table of the environments, in docs/compatibility.md and its JSON in docs/results too. Started again, it
# goes on with the first environment that this commit has not been tested in.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../recipes/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../recipes/lib.sh"

CORE=('*_layers' laws files registration bad_input evaluation resume system trial patches repairs doctor)
read -ra NAMES < <(pythons PYTHONS)
# Other fairseqs do not import on Python 3.11 and later.
NAMES=("${NAMES[@]/#/fixed-}" pypi-3.10 main-3.10)
parts=() selection=suite only="" envs="$REPO/runs/matrix" upstream=""

main() {
    parse "$@"
    cd "$REPO"
    envs="$(absolute "$envs")"
    mkdir -p "$envs"
    local name status
    for name in "${NAMES[@]}"; do
        [[ -z "$only" || "$only" == "$name" ]] || continue
        set +e # in a condition, set -e would not hold inside the function
        (set -e; examine "$name")
        status=$?
        set -e
        ((status == 0)) || log "$name: failed; see above, and $envs/$name"
    done
    python3 tests/support/matrix_table.py table "$envs" --out docs/results/compatibility.json \
        --page docs/compatibility.md --names "${NAMES[@]}"
}

parse() {
    while (($#)); do
        case "$1" in
            --core) parts=("${CORE[@]}") selection=core && shift ;;
            --only | --envs | --upstream) set_option "$1" "${@:2}" && shift 2 ;;
            -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit ;;
            -*) die "unknown option \`$1\`; --help lists the options." ;;
            *) parts+=("$1") selection="${parts[*]}" && shift ;;
        esac
    done
    [[ -z "$only" || " ${NAMES[*]} " == *" $only "* ]] ||
        die "\`--only\` must be one of ${NAMES[*]}, but is \`$only\`."
}

# examine NAME: makes the environment unless it is there, tests in it unless this commit has been.
examine() {
    local name="$1" folder="$envs/$1" python="python${1#*-}" tested
    tested="$selection of $(git describe --always --dirty --exclude '*')"
    if [[ "$(cat "$folder/tested" 2>/dev/null)" == "$tested" && "$tested" != *-dirty ]]; then
        log "$name: done before"
        return
    fi
    if [[ "$name" == main-* && -z "$upstream" && ! -e "$folder/ready" ]]; then
        log "$name: left out; it needs \`--upstream\`"
        return
    fi
    if ! "$python" -c '' 2>/dev/null; then
        log "$name: left out; there is no $python on PATH"
        return
    fi
    mkdir -p "$folder"
    [[ -e "$folder/ready" ]] || make_environment "$name" "$folder" "$python"
    test_here "$name" "$folder"
    printf '%s\n' "$tested" >"$folder/tested"
}

# enter FOLDER: what follows uses its Python, and installs the versions named there.
enter() {
    export VIRTUAL_ENV="$1/venv" PATH="$1/venv/bin:$PATH" CONSTRAINTS="$1/constraints.txt"
    export PIP_CONSTRAINT="" PIP_REQUIRE_VIRTUALENV=1 PIP_DISABLE_PIP_VERSION_CHECK=1
    unset PYTHONHOME PYTHONPATH
}

make_environment() {
    local name="$1" folder="$2"
    log "$name: installing; some minutes, once"
    "$3" -m venv "$folder/venv"
    enter "$folder"
    # fairseq's own limits, other than fairseq-fixed's. Current pip refuses this omegaconf.
    if [[ "$name" != fixed-* ]]; then python -m pip install --quiet 'pip<24.1'; fi
    constrain "$name" >"$CONSTRAINTS"
    install_base dev
    case "$name" in
        fixed-*) install_fairseq fairseq-fixed ;;
        pypi-*) pip_install --no-deps fairseq==0.12.2 ;; # where torch is in sight, its build fails
        main-*)
            rm -rf "$folder/fairseq"
            git clone --quiet --depth 1 "$upstream" "$folder/fairseq"
            install_fairseq "$folder/fairseq"
            ;;
    esac
    touch "$folder/ready"
}

# constrain NAME: the tested set, with the hydra that this fairseq asks for.
constrain() {
    if [[ "$1" == fixed-* ]]; then
        cat constraints.txt
    else
        sed '/^hydra-core\|^omegaconf\|^antlr4/d' constraints.txt
        printf '%s\n' 'hydra-core>=1.0.7,<1.1' 'omegaconf<2.1'
    fi
}

test_here() {
    local name="$1" folder="$2" files=() part status=0
    enter "$folder"
    constrain "$name" >"$CONSTRAINTS"
    pip_install --no-build-isolation -e '.[dev]' # it may have been another clone's
    # shellcheck disable=SC2206 # a part may stand for several files
    for part in ${parts[@]+"${parts[@]}"}; do files+=(tests/*/test_$part.py); done
    rm -f "$folder"/row.json "$folder/tests.xml"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    quietly "$folder/tests.log" nice -n 5 python -m pytest -q --junitxml "$folder/tests.xml" \
        ${files[@]+"${files[@]}"} || status=$?
    ((status < 2)) || return "$status" # 1: some test failed, which is a result
    python tests/support/matrix_table.py row "$folder" --names "$name" --selection "$selection" \
        --commit "$(git describe --always --dirty --exclude '*')"
}

main "$@"
