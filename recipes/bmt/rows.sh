# Code that table1.sh and ablations.sh share: models trained by recipes/compare.sh, and smoke mode.
# A script sources this file after lib.sh, and sets `operands` to DATA_DIR, SRC and TGT.
# shellcheck shell=bash disable=SC2034,SC2154  # variables of the script that sources this

tiny=() needs_text=0 modules=(sacremoses) subwords=bpe tokenize=""

# use_smoke_settings: makes every step run at a tiny size.
use_smoke_settings() {
    local side
    stages=8,4,4 warmup=2 bpe=200 max_tokens=1000
    for side in encoder decoder; do
        tiny+=("--$side-layers" 1 "--$side-embed-dim" 16 "--$side-ffn-embed-dim" 32
            "--$side-attention-heads" 2)
    done
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}

# check_vocabulary: requires joint subwords, because both languages share one embedding table.
check_vocabulary() {
    positive --bpe
    check_subwords "$subwords"
    [[ "$subwords" != none ]] || die "\`--subwords none\` does not go with this recipe."
}

# choose_folders NAME: sets the output folder and, for a smoke run without DATA_DIR, the corpus.
choose_folders() {
    if [[ "${SMOKE:-0}" == 1 && ${#operands[@]} == 0 ]]; then
        out="${out:-$REPO/runs/smoke-$1}" operands=("$out.text" en de) needs_text=1
    fi
    ((${#operands[@]} == 3)) || die "needs DATA_DIR, SRC and TGT; see --help."
    ((needs_text)) || operands[0]="$(own_text DATA_DIR "${operands[@]}")"
    out="${out:-$REPO/runs/$1-$(basename "${operands[0]}")-${operands[1]}-${operands[2]}}"
}

make_smoke_text() {
    ((needs_text)) || return 0
    [[ -e "${operands[0]}/test.de" ]] ||
        smoke_text en de 300 30 30 "${operands[0]}"
}

# compare NAME UPDATES STAGES [--from NAME] -- FLAG...: trains and scores one model.
compare() {
    local name="$1" total="$2" lengths="$3" from=()
    shift 3
    [[ "$1" == -- ]] || from=("$1" "$2")
    shift $((${#from[@]} + 1))
    bash "$REPO/recipes/compare.sh" "${operands[@]}" --out "$out" --updates "$total" --lr "$lr" \
        --bpe "$bpe" --subwords "$subwords" --max-tokens "$max_tokens" --no-table \
        ${tokenize:+"$tokenize"} "${from[@]}" \
        "$name=$arch --share-all-embeddings --lr-scheduler staged_cosine --stage-updates $lengths \
--warmup-updates $warmup $*${tiny[*]+ ${tiny[*]}}"
}
