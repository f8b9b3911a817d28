#!/usr/bin/env bash
# Everything that a GPU can show, in order of worth: each step in its own time box, results as JSON.
#   bash tests/gpu.sh [--out DIR] [--steps a,b,…] [--budget SECONDS] [--tiny] [--data ARCHIVE]
# Steps: laws, processes (these two at once, since neither is timed), updates, layers, generation,
# multi30k (which takes the seconds that are left). A cell whose result is in DIR is not run again.
# --tiny runs every step on the CPU with tiny sizes. The status is 1 if a step failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=runs/gpu steps=laws,processes,updates,layers,generation,multi30k budget=540 tiny=() data=.gpu/multi30k.tar.xz
while (($#)); do
    case "$1" in
    --out) out="${2:?--out needs a folder}" && shift ;;
    --steps) steps="${2:?--steps needs names}" && shift ;;
    --budget) budget="${2:?--budget needs seconds}" && shift ;;
    --data) data="${2:?--data needs an archive}" && shift ;;
    --tiny) tiny=(--tiny) ;;
    *) echo "gpu.sh: \`$1\` is not an option; the head of this file lists them." >&2 && exit 1 ;;
    esac
    shift
done
for step in ${steps//,/ }; do
    [[ -f "tests/gpu/$step.py" ]] || { echo "gpu.sh: \`$step\` is not a step." >&2 && exit 1; }
done

mkdir -p "$out"
out="$(cd "$out" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=1
began=$SECONDS

# limit STEP: its time box in seconds, or what is left of the budget.
limit() {
    local left=$((budget - (SECONDS - began))) box
    case "$1" in
    laws | processes) box=110 ;;
    updates) box=230 ;;
    layers) box=70 ;;
    generation) box=110 ;;
    *) box=$left ;;
    esac
    echo $((box < left ? box : left))
}

run_step() {
    local seconds
    seconds="$(limit "$1")"
    ((seconds > 5)) || { echo "$1: no time left" && return; }
    echo "=== $1: $seconds s, at $((SECONDS - began)) s"
    timeout --kill-after 5 "$((seconds + 3))" python -m "tests.gpu.$1" --out "$out" --work "$work" \
        --seconds "$seconds" --data "$data" ${tiny[@]+"${tiny[@]}"} >>"$out/log.txt" 2>&1 ||
        { echo "$1: ended with status $? (see log.txt)" && touch "$work/failed"; }
}

together=()
for step in ${steps//,/ }; do
    case "$step" in
    laws | processes)
        run_step "$step" &
        together+=($!)
        ;;
    *)
        ((${#together[@]} == 0)) || wait "${together[@]}"
        together=()
        run_step "$step"
        ;;
    esac
done
wait
tail -c 8000000 "$out/log.txt" >"$work/log" && cp "$work/log" "$out/log.txt"
python -m tests.gpu.table "$out" | tee "$out/table.txt"
[[ ! -e "$work/failed" ]]
