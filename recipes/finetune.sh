#!/usr/bin/env bash
# Fine-tune a trained model on a user's own text, and report what it has gained.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/finetune.sh --model MODEL --data DIR --src L --tgt L [OPTION]... [-- FLAG...]

Trains a model further, with its own dictionaries, subwords and options. The run ends with a bundle,
and compares it with the original model on the test set. If stopped at any point, it continues when
run again.

  --model M      model to train: a bundle, the name of one that comes with the package, the folder
                 of a run, or a folder, archive or name of a model that fairseq's authors publish
  --data DIR     train, valid and test, each with the endings .SRC and .TGT: text as people write
                 it, one sentence per line
  --src L        source language, as the model calls it
  --tgt L        target language
  --updates N    training updates                                   (1000)
  --lr X         learning rate                                      (3e-5)
  --max-tokens N tokens in a batch                                  (2000)
  --out DIR      folder for all output                 (runs/finetune-DATA-SRC-TGT)
  --help         this text
  -- FLAG...     more flags for fairseq-train, which override the recipe's

DRY_RUN=1 only prints the commands. OMP_NUM_THREADS is the number of CPU threads (2).
HELP
}

model="" data="" src="" tgt="" updates=1000 lr=3e-5 max_tokens=2000 out=""

read_options() {
    read_arguments "--model= --data= --src= --tgt= --updates= --lr= --max-tokens= --out= --" "$@"
    [[ -n "$model" && -n "$data" && -n "$src" && -n "$tgt" ]] ||
        die "\`--model\`, \`--data\`, \`--src\` and \`--tgt\` are needed; --help says what they are."
    positive --updates --max-tokens
    data="$(own_text --data "$data" "$src" "$tgt")"
    [[ ! -e "$model" ]] || model="$(absolute "$model")"
    out="$(absolute "${out:-$REPO/runs/finetune-$(basename "$data")-$src-$tgt}")"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
    interval=$((updates < 10 ? 1 : updates / 10))
}

# Makes a bundle of the model, whatever form it has, with a card, dictionaries and text steps.
make_start() {
    run rm -rf start
    run fairseq-ext bundle "$model" --src "$src" --tgt "$tgt" -o start
}

# Test sentences that are also in the training text would only be learnt by heart.
make_tokens() {
    local seen
    run fairseq-ext subwords "$data" --like start --src "$src" --tgt "$tgt" -o bpe
    dry && return
    seen="$(awk 'NR == FNR { train[$0]; next } $0 in train { n++ } END { print n + 0 }' \
        "$data/train.$src" "$data/test.$src")"
    ((seen == 0)) || log "$seen sentences of test.$src are in train.$src too; their translations" \
        "say little about other text. \`fairseq-ext corpus pairs\` splits text without such overlap."
}

# loss_of MODEL FILE: writes the loss on the validation set, in bits per token, to FILE.
loss_of() {
    quietly "$2.log" fairseq-validate bin --user-dir "$USER_DIR" --path "$1" --valid-subset valid \
        --task translation --criterion cross_entropy --max-tokens "$max_tokens"
    dry && return
    sed -n 's/.*| loss \([0-9.]*\) .*/\1/p' "$2.log" | tail -n 1 >"$2"
    log "loss on the validation set, $1: $(cat "$2")"
}

train_model() {
    local flags=()
    dry || mapfile -t flags < <(python "$REPO/recipes/finetune_flags.py" start)
    dry || ((${#flags[@]})) || die "the options of the model cannot be read; see above."
    train checkpoints "${flags[@]}" --finetune-from-model start \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr "$lr" --lr-scheduler inverse_sqrt --warmup-updates "$interval" \
        --max-update "$updates" --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --max-tokens "$max_tokens" --num-workers 0 --seed 1 --log-interval "$interval" \
        --no-epoch-checkpoints --save-interval-updates "$interval" --keep-interval-updates 3 "${extra[@]}"
}

# Makes a bundle that searches by default as the model did before.
make_bundle() {
    local search=()
    dry || mapfile -t search < <(python -c 'import json
for name, value in json.load(open("start/bundle.json"))["search"].items():
    print(f"--{name}={value}".replace("_", "-"))')
    run rm -rf bundle
    run fairseq-ext bundle checkpoints/average.pt --data bin "${search[@]}" -o bundle
}

compare_both() {
    local system
    for system in start bundle; do
        into "$system.$tgt" fairseq-ext translate --path "$system" --input "$data/test.$src"
    done
    quietly compare.log fairseq-ext compare --ref "$data/test.$tgt" \
        --system "before=text:start.$tgt" --system "after=text:bundle.$tgt" -o compare
}

settings() {
    cat <<SETTINGS
model=$model
data=$data
sums=$(cat "$data"/{train,valid,test}.{"$src","$tgt"} 2>/dev/null | cksum)
src=$src
tgt=$tgt
updates=$updates
lr=$lr
max_tokens=$max_tokens
flags=${extra[*]}
SETTINGS
}

main() {
    read_options "$@"
    use_environment sacremoses
    open_run "$out" "$(settings)"
    stage start make_start
    stage tokens make_tokens
    stage binarize binarize bpe "$src" "$tgt" --srcdict "start/dict.$src.txt" \
        --tgtdict "start/dict.$tgt.txt"
    stage before loss_of start before
    stage train train_model
    stage average average_last 3
    stage bundle make_bundle
    stage after loss_of bundle after
    stage compare compare_both
    dry && exit
    printf '\nLoss on the validation set: %s before, %s after.\n\n' "$(cat before)" "$(cat after)"
    sed -n '/^|/p; /^## /q' compare.md
    printf '\nThe model is %s:\n  fairseq-ext translate --model %q "…"\n' "$out/bundle" "$out/bundle"
}

main "$@"; exit
