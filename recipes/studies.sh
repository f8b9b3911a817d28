#!/usr/bin/env bash
# Train the systems that answer one question, and make a table and pictures: which part of an
# architecture makes the difference, all else equal?
#
#   bmt              what its norms and shortcuts, the rate, and the dropout of its paper cost or gain
#                    in float; how much dropout 1-bit weights bear (bmt-1-… start from bmt, their teacher)
#   linformer-slots  BLEU by source length: slots, kinds of projection, and their initial values
#   muse-rows        the MUSE paper's Table 3: kernels, projections, ordinary convolution
#
# The rate falls to 0 as a cosine does, so that losses are flat at the end of a short training too.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"

updates=3000 bpe=4000 max_tokens=1000 tokenize="" buckets=4,6,8,10,12,15 out=""
names=() systems=()

usage() {
    cat <<HELP
Usage: bash recipes/studies.sh STUDY DATA_DIR SRC TGT [OPTION]... [NAME]... [-- FLAG...]

  STUDY           bmt, linformer-slots or muse-rows
  DATA_DIR        train, valid and test, each with the endings .SRC and .TGT
  NAME            systems of the study (all); a dry run lists them

  --updates N     updates of each training                           ($updates)
  --bpe N         joint byte-pair merges                             ($bpe)
  --max-tokens N  tokens in a batch                                  ($max_tokens)
  --tokenize      tokenize as Moses does, and detokenize before sacrebleu
  --buckets LIST  greatest source length in words of each bucket of lengths.png
                                                     ($buckets)
  --out DIR       shared data, and a folder for each model
                                             (runs/STUDY-DATA_DIR-SRC-TGT)
  --help          this text
  -- FLAG...      flags for each training, such as --encoder-layers 2

All systems have 4 encoder and 4 decoder layers with 4 heads, embeddings of 128 and feed-forward
layers of 256, and, unless their names say otherwise, dropout 0.2 and a peak learning rate of 0.002.
Calls with other names and the same --out may run at the same time; the table shows the finished
systems. If stopped, the recipe continues when run again. DRY_RUN=1 only prints the commands.
HELP
}

read_options() {
    read_arguments "--updates= --bpe= --max-tokens= --buckets= --out= --tokenize WORD --" "$@"
    ((${#operands[@]} >= 4)) || die "needs STUDY, DATA_DIR, SRC and TGT; see --help."
    study="${operands[0]}" src="${operands[2]}" tgt="${operands[3]}" names=("${operands[@]:4}")
    list_systems
    choose_systems
    positive --updates
    local word
    for word in "${extra[@]}"; do # compare.sh takes them in one string
        [[ "$word" != *[[:space:]]* ]] ||
            die "\`$word\` contains white space; write such values without, like '(0.9,0.98)'."
    done
    ((updates > 10)) || die "\`--updates\` must be more than 10, but is $updates."
    data="$(own_text DATA_DIR "${operands[@]:1:3}")"
    out="$(absolute "${out:-$REPO/runs/$study-$(basename "$data")-$src-$tgt}")"
}

# list_systems: sets `systems`, NAME=ARCH FLAG…; all are compared with the first.
list_systems() {
    local float="${matched[bmt]} --bmt-preset float"
    local linformer="${matched[linformer]}" muse="muse_tiny --share-all-embeddings" k
    local last="models/bmt/checkpoint_last.pt" pre_norm
    case "$study" in
    bmt)
        pre_norm="${matched[transformer]} --encoder-normalize-before --decoder-normalize-before"
        systems=("transformer=${matched[transformer]}" "pre-norm=$pre_norm")
        for k in 0.004 0.008; do systems+=("pre-norm-rate-$k=$pre_norm --lr $k"); done
        systems+=("bmt-plain=$float --bmt-ffn none --bmt-attention-output plain" "bmt=$float")
        for k in 0.001 0.004 0.008; do systems+=("bmt-rate-$k=$float --lr $k"); done
        systems+=("bmt-dropout=$float --attention-dropout 0.1 --activation-dropout 0.1")
        for k in 0.2 0.1 0; do
            systems+=("bmt-1-$k=${float/preset float/preset bmt-1} --dropout $k \
--finetune-from-model $last --criterion distillation --teacher $last")
        done
        ;;
    linformer-slots)
        systems=("transformer=${matched[transformer]}")
        for k in 32 16 8 4; do systems+=("slots-$k=$linformer --linformer-k $k"); done
        for k in 32 16 8 4; do
            systems+=("slots-$k-normal=$linformer --linformer-k $k --linformer-init normal")
        done
        for k in mean-pool convolution; do # a window of 8 tokens for each slot
            systems+=("slots-8-$k=$linformer --linformer-k 8 --linformer-max-len 64 \
--linformer-projection $k")
        done
        ;;
    muse-rows)
        systems=("muse=$muse" "simple=$muse --muse-kernels none")
        for k in 3 5 7; do
            systems+=("ordinary-$k=$muse --muse-convolution ordinary --muse-kernels $k")
        done
        systems+=("separate=$muse --muse-separate-projection")
        for k in 3 7 15 31; do systems+=("kernel-$k=$muse --muse-kernels $k"); done
        systems+=("growing=$muse --muse-kernels 3/7/15/31")
        ;;
    *) die "\`$study\` must be bmt, linformer-slots or muse-rows, but is not." ;;
    esac
}

# choose_systems: sets `chosen` to the named systems, or to all.
choose_systems() {
    local name system known
    chosen=("${systems[@]}")
    ((${#names[@]})) || return 0
    chosen=()
    for name in "${names[@]}"; do
        known=0
        for system in "${systems[@]}"; do
            [[ "${system%%=*}" != "$name" ]] || { chosen+=("$system") && known=1; }
        done
        ((known)) || die "\`$name\` must be a system of $study (${systems[*]%%=*}), but is not."
    done
}

train_systems() {
    local warmup=$((updates / 10 + 1)) system # the warm-up of compare.sh
    local schedule="--lr-scheduler cosine --lr-period-updates $((updates - warmup)) --min-lr 1e-9"
    schedule+=" --lr-shrink 1e-6" # fairseq's cosine restarts with the last update
    for system in "${chosen[@]}"; do
        bash "$REPO/recipes/compare.sh" "$data" "$src" "$tgt" --out "$out" --updates "$updates" \
            --bpe "$bpe" --max-tokens "$max_tokens" ${tokenize:+"$tokenize"} --no-table \
            "$system $schedule${extra[*]+ ${extra[*]}}"
    done
}

compare_finished() {
    local system name folder texts=() logs=() all=() undo=(--detokenize "$tgt")
    [[ -n "$tokenize" ]] || undo=(--keep-tokens) # text that comes as tokens is compared as tokens
    for system in "${systems[@]}"; do
        name="${system%%=*}" folder="models/${system%%=*}"
        dry || [[ -e "$folder/.stages/evaluate" ]] || continue
        system="$name=$folder/generated.txt"
        texts+=(--system "$system")
        logs+=(--log "$name=$folder/train.log")
        all+=(--system "$system,checkpoint=$folder/checkpoint_last.pt,log=$folder/train.log")
    done
    run fairseq-ext plot curves "${logs[@]}" -o curves.png
    run fairseq-ext plot lengths "${texts[@]}" --tokenized-ref "text/test.$tgt" \
        --buckets "$buckets" -o lengths.png
    run fairseq-ext compare "${all[@]}" --ref "$data/test.$tgt" \
        "${undo[@]}" --tokenized-ref "text/test.$tgt" -o compare --pictures curves.png lengths.png
}

main() {
    local study src tgt data chosen=()
    read_options "$@"
    use_environment sacremoses subword_nmt
    train_systems
    run cd "$out"
    compare_finished
    dry || printf '\nEverything is in %s: compare.*, curves.png, lengths.png and the models\n' "$out"
}

main "$@"; exit
