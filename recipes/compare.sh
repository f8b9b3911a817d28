#!/usr/bin/env bash
# Train several architectures on the same data for the same number of updates, and compare them.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/compare.sh DATA_DIR SRC TGT [OPTION]... ARCH...

  DATA_DIR       train, valid and test, each with the endings .SRC and .TGT
  ARCH           an architecture of the plugin or of fairseq, also with a name and flags:
                 'wide=lstm --encoder-bidirectional --decoder-hidden-size 512'

  --updates N    training updates of each model               (2000)
  --bpe N        joint byte-pair merges; 0: words             (8000)
  --subwords K   kind of subwords (--bpe sets their number): bpe, sentencepiece-unigram,
                 sentencepiece-bpe, tokenizers; none: words   (bpe)
  --max-tokens N tokens in a batch                            (2000)
  --lr X         peak learning rate                           (0.002)
  --seeds N      trainings of each model, each with another seed; the table has a row for each
                 model                                        (1)
  --from NAME    start from the last checkpoint of model NAME in --out, as the next stage of a
                 schedule
  --tokenize     tokenize as Moses does, and detokenize before sacrebleu
  --no-table     make no table, for a recipe with one of its own
  --out DIR      shared data, and a folder for each model     (runs/compare-DATA_DIR-SRC-TGT)
  --help         this text

All models share the binarized data. Two calls with the same --out may run at the same time, each
with its own architectures; the table (compare.*) always shows every model finished so far. Finished
steps are not repeated. OMP_NUM_THREADS is the number of CPU threads (1). DRY_RUN=1 only prints the
commands.
HELP
}

updates=2000 bpe=8000 max_tokens=2000 lr=0.002 tokenize="" out="" from="" seeds=1 subwords=bpe no_table=""
dictionary=()

# read_options ARGUMENT...: sets the globals above, `data`, `src`, `tgt`, `models` and `undo`.
read_options() {
    local model
    read_arguments "--updates= --bpe= --subwords= --max-tokens= --lr= --seeds= --from= --out= --tokenize \
        --no-table WORD" "$@"
    ((${#operands[@]} >= 4)) || die "needs DATA_DIR, SRC, TGT and at least one ARCH; see --help."
    src="${operands[1]}" tgt="${operands[2]}" models=("${operands[@]:3}")
    for model in "${models[@]}"; do
        [[ "$model" =~ ^\ *([A-Za-z0-9._-]+=)?[A-Za-z0-9._-]+(\ |$) ]] ||
            die "ARCH \`$model\` must be NAME=ARCHITECTURE or ARCHITECTURE, then flags; a name" \
                "has letters, digits and ._-"
    done
    data="$(own_text DATA_DIR "${operands[0]}" "$src" "$tgt")"
    undo=(--detokenize "$tgt")
    [[ -n "$tokenize" ]] || undo=(--keep-tokens) # text that comes as tokens is compared as tokens
    positive --updates --max-tokens --seeds
    [[ "$bpe" == 0 ]] || positive --bpe
    check_subwords "$subwords"
    [[ "$subwords" != none ]] || bpe=0
    if [[ "$bpe" != 0 || " ${models[*]} " == *" --share-all-embeddings "* ]]; then
        dictionary=(--joined-dictionary)
    fi
    out="$(absolute "${out:-$REPO/runs/compare-$(basename "$data")-$src-$tgt}")"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}

make_text() {
    run fairseq-ext prepare --data "$data" --src "$src" --tgt "$tgt" --out text \
        ${tokenize:+"$tokenize"}
}

binarize_all() {
    if [[ "$bpe" == 0 ]]; then
        binarize text "$src" "$tgt" "${dictionary[@]}"
    else
        split_into_subwords "$bpe" "$src" "$tgt" "$subwords"
        binarize bpe "$src" "$tgt" "${dictionary[@]}"
    fi
}

# train_one FOLDER ARCH FLAG...
train_one() {
    local folder="$1" arch="$2" criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)
    shift 2
    [[ " $* " != *" --criterion "* ]] || criterion=() # another criterion may have no label smoothing
    train "$folder" --arch "$arch" --dropout 0.2 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr "$lr" --lr-scheduler inverse_sqrt --warmup-updates $((updates / 10 + 1)) \
        --max-update "$updates" --max-tokens "$max_tokens" \
        "${criterion[@]}" --num-workers 0 --seed 1 --log-interval 50 \
        --no-epoch-checkpoints --save-interval-updates $((updates / 10 + 1)) \
        --keep-interval-updates 1 "$@"
}

evaluate_one() {
    local folder="$1"
    generate "$folder/checkpoint_last.pt" "$folder/generated.txt" --gen-subset test --beam 5 \
        --max-tokens 4000
    run fairseq-ext score --generated "$folder/generated.txt" --ref "$data/test.$tgt" \
        "${undo[@]}" --tokenized-ref "text/test.$tgt" --json "$folder/scores.json"
}

# begin_from FOLDER: copies the model of --from to where training looks for its own last checkpoint.
begin_from() {
    [[ -z "$from" ]] || run cp "models/$from/checkpoint_last.pt" "$1/checkpoint_last.pt"
}

# compare_one MODEL SEED: trains and scores MODEL (`name=arch flags…`, `arch flags…` or `arch`) in a
# folder and a process of its own, so that two calls do not disturb each other.
compare_one() (
    local name flags
    read -ra flags <<<"$1"
    name="${flags[0]%%=*}"
    flags[0]="${flags[0]#*=}"
    (($2 == 1)) || name+="@$2" flags+=(--seed "$2")
    open_run "$out/models/$name" "updates=$updates
max_tokens=$max_tokens
lr=$lr${from:+
from=$from}
model=${flags[*]}"
    run cd "$out"
    STAGES="models/$name/.stages"
    dry || joining || has_engine "models/$name/generated.txt" || rm -f "$STAGES/evaluate"
    stage "begin" begin_from "models/$name"
    stage "train" train_one "models/$name" "${flags[@]}"
    stage "evaluate" evaluate_one "models/$name"
)

compare_finished() {
    local model words folder folders=() files systems=()
    if dry; then
        for model in "${models[@]}"; do
            read -ra words <<<"$model"
            folders+=("models/${words[0]%%=*}")
        done
    else
        cd "$out"
        folders=(models/*)
    fi
    for folder in "${folders[@]}"; do
        dry || [[ -e "$folder/.stages/evaluate" && "$folder" != *.old-* ]] || continue # see open_run
        [[ "$folder" != *@* ]] || continue # a further seed
        files="$(outputs "$folder" "$seeds"),checkpoint=$folder/checkpoint_last.pt,log=$folder/train.log"
        systems+=(--system "${folder#models/}=$files")
    done
    run fairseq-ext compare "${systems[@]}" --ref "$data/test.$tgt" \
        "${undo[@]}" --tokenized-ref "text/test.$tgt" -o compare
}

# Settings that must be equal for the data to be used again, one per line.
settings() {
    cat <<SETTINGS
src=$src
tgt=$tgt
bpe=$bpe$(
        [[ "$subwords" == bpe ]] || printf '\nsubwords=%s' "$subwords"
        [[ "$bpe" != 0 || ${#dictionary[@]} == 0 ]] || printf '\njoined=1'
    )
tokenize=$tokenize
data=$data
sums=$(cat "$data"/{train,valid,test}.{"$src","$tgt"} 2>/dev/null | cksum)
SETTINGS
}

main() {
    local model seed
    read_options "$@"
    use_environment sacremoses "${SUBWORDS[$subwords]}"
    open_run "$out" "$(settings)"
    stage corpus make_text
    stage binarize binarize_all
    close_run
    for model in "${models[@]}"; do
        for ((seed = 1; seed <= seeds; seed++)); do compare_one "$model" "$seed"; done
    done
    if joining || [[ -n "$no_table" ]]; then exit 0; fi
    compare_finished
    dry && exit
    printf '\nEverything is in %s: compare.md, its numbers and picture, and the models\n' "$out"
}

main "$@"; exit
