#!/usr/bin/env bash
# BMT (Zhang et al., 2023) on WMT 2017, German → English: section 4.1, any row of Table 1. What the
# paper says, and what this recipe does:
#
#   trained on WMT2017, tested on        fairseq-ext corpus wmt17_de_en, from WMT's own archives;
#     WMT2014                              newstest2013 to validate: the paper names no such set
#   6 + 6 layers, 1024, 4096, 16 heads   bmt_wmt_de_en, one embedding matrix
#   weights of 399 MB                    fits only one table of 32,000: 32,000 joint merges, and a
#                                          dictionary of at most 32,000 entries
#   three stages of 50,000, 88,339 and   --stage-updates, each with a cosine to 0 from 0.001; the
#     88,339 updates                       paper does not give the warm-up: 4,000 updates
#   batches of 1,024 sentences           64 sentences, and an update every 16 batches; if memory is
#                                          short, smaller batches and more of them
#   Adam with 0.9 and 0.98               ε = 1e-9, as in the authors' code; no weight decay
#   dropout 0.1                          also on attention and hidden units, in the architecture
#   distillation, which is optional      --kd or --teacher; without them label smoothing of 0.1
#   bfloat16                             --bf16 with a GPU that has it, --fp16 with another
#   beam 4, length penalty 0.6           --gnmt-lenpen of the task translation_ext: the paper's
#                                          formula is GNMT's, fairseq's --lenpen has another
#   sacreBLEU                            the same
#
# Paper: 26.35 BLEU in float, 25.93 with BMT-1, 17.87 with BMT-6.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR source=../official.sh
source "$(dirname "${BASH_SOURCE[0]}")/../official.sh" # for corpus, scores and pictures
# shellcheck disable=SC2034,SC2329  # official.sh uses them

corpus=wmt17_de_en src=de tgt=en
dictionary=(--joined-dictionary --nwordssrc 32000 --nwordstgt 32000)
arch=bmt_wmt_de_en preset=bmt-1 dropout=0.1
batch_size=64 update_freq=16 stages=50000,88339,88339 warmup=4000 lr=0.001
checkpoint=checkpoints/checkpoint_last.pt beam=4 gnmt_lenpen=0.6 teacher="" kd=""
[[ "${KD:-0}" != 1 ]] || kd=--kd
paper="26.35 BLEU in float, BMT-1 25.93, BMT-2 25.44, BMT-3 24.11, BMT-6 17.87 (distilled)"

usage() {
    cat <<HELP
Usage: bash recipes/bmt/$corpus.sh [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

  --preset P       row of Table 1: float, bmt-1 … bmt-8, xnor-base, bmt-s   ($preset)
  --kd             train a float teacher first, in the same folder and for as
                   long, and distil from it (also set by KD=1 in the environment)
  --teacher FILE   checkpoint to distil from, with the same dictionary
  --stages F,W,A   updates in float, with binary weights, and with binary
                   activations; A may be missing if the row has none
                                                     ($stages)
  --warmup N       updates at the start of each stage in which the rate rises
                                                                     ($warmup)
  --lr X           peak learning rate of each stage                  ($lr)
  --batch-size N   sentences in a batch                              ($batch_size)
  --update-freq N  batches in an update; N times the sentences in a batch should
                   be 1,024                                          ($update_freq)
  --arch A         architecture of the family of \`bmt\`       ($arch)
  --dropout F      dropout                                           ($dropout)
  --data DIR       folder of the corpus, made once for all runs
                   (runs/data/$corpus)
  --mirror M       folder or address to take the official archives from
  --any-counts     accept another edition of the corpus, with other numbers of pairs
  --bpe N          merges of the byte-pair encoding                  (32000)
  --subwords K     kind of subwords (--bpe sets their number): bpe,
                   sentencepiece-unigram, sentencepiece-bpe, tokenizers  (bpe)
  --out DIR        folder for all output         (runs/$corpus-PRESET)
  --help           this text
  -- FLAG...       more flags for fairseq-train, which override the recipe's

SMOKE=1 needs no files: it runs every step on a tiny corpus of the shipped sentences, packed as the
official archives are. DRY_RUN=1 only prints the commands. If stopped, the recipe continues when run
again: the corpus after its last step, training after its last checkpoint.
HELP
}

# use_smoke_settings: makes every step run at a tiny size.
use_smoke_settings() {
    arch=bmt_tiny batch_size=32 update_freq=2 stages=10,6,6 warmup=2 bpe=400
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}

read_options() {
    read_arguments "--preset= --teacher= --stages= --warmup= --lr= --batch-size= --update-freq= --arch= \
        --dropout= --data= --mirror= --bpe= --subwords= --out= --kd --any-counts --" "$@"
    check_options
    choose_folders "$preset"
    row="$preset"
}

check_options() {
    positive --warmup --batch-size --update-freq ${bpe:+--bpe}
    check_subwords "$subwords"
    [[ "$subwords" != none ]] || die "\`--subwords none\` does not go with this recipe."
    [[ "$subwords" == bpe ]] || other_subwords="$subwords"
    check_stages
    if [[ -n "$teacher" ]]; then
        [[ -z "$kd" ]] || die "\`--teacher\` does not go with \`--kd\`, which trains one."
        [[ -f "$teacher" ]] || die "\`--teacher\`: $teacher does not exist; check the path."
        teacher="$(absolute "$teacher")"
    elif [[ -n "$kd" ]]; then
        teacher=teacher/checkpoint_last.pt
    fi
    # From these the recipe computes other settings.
    refuse_extra "--batch-size --update-freq --max-update --stage-updates --warmup-updates" \
        "\`--batch-size\`, \`--update-freq\`, \`--stages\` and \`--warmup\`"
}

# check_stages: checks --stages, and sets `updates` to the updates of all stages together.
check_stages() {
    local length lengths least=3
    case "$preset" in
    float) least=1 ;;
    bmt-1) least=2 ;;
    bmt-[2-8] | bmt-s | xnor-base) ;;
    *) die "\`--preset\` must be a row of Table 1, such as bmt-1, but is \`$preset\`." ;;
    esac
    [[ "$stages" =~ ^[1-9][0-9]*(,[1-9][0-9]*){0,2}$ ]] ||
        die "\`--stages\` must be up to three numbers of updates like 50000,88339,88339," \
            "but is \`$stages\`."
    IFS=, read -ra lengths <<<"$stages"
    ((${#lengths[@]} >= least)) ||
        die "\`--stages\` must have $least numbers for \`$preset\`, but is \`$stages\`."
    updates=0
    for length in "${lengths[@]}"; do
        ((warmup < length)) ||
            die "\`--warmup\` must be less than the $length updates of a stage, but is $warmup."
        updates=$((updates + length))
    done
}

# train_as FOLDER PRESET FLAG...: trains a model of Table 1.
train_as() {
    local folder="$1" precision=()
    if ! dry; then read -ra precision < <(half_precision); fi
    train "$folder" --source-lang "$src" --target-lang "$tgt" --arch "$arch" --bmt-preset "$2" \
        --share-all-embeddings --dropout "$dropout" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-9 --lr "$lr" \
        --lr-scheduler staged_cosine --stage-updates "$stages" --warmup-updates "$warmup" \
        --max-update "$updates" --batch-size "$batch_size" --update-freq "$update_freq" \
        --no-epoch-checkpoints --save-interval-updates 2000 --keep-interval-updates 1 \
        "${@:3}" "${precision[@]}" --seed 1 --num-workers 0 --log-interval 100 "${extra[@]}"
}

# half_precision: prints this machine's flag; the weights stay in single precision for Adam.
half_precision() {
    python -c 'import torch
found = torch.cuda.is_available()
print("" if not found else "--bf16" if torch.cuda.is_bf16_supported() else "--fp16")'
}

from_references=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)

train_teacher() { train_as teacher float "${from_references[@]}"; }

train_model() {
    local criterion=("${from_references[@]}")
    [[ -z "$teacher" ]] || criterion=(--criterion distillation --teacher "$teacher")
    train_as checkpoints "$preset" "${criterion[@]}"
}

translate() {
    generate "$checkpoint" generated.txt --source-lang "$src" \
        --target-lang "$tgt" --task translation_ext --gnmt-lenpen "$gnmt_lenpen" \
        --gen-subset test --beam "$beam" --batch-size 128
}

draw() {
    local logs=(--log "$preset=checkpoints/train.log")
    [[ -z "$kd" ]] || logs+=(--log "teacher=teacher/train.log")
    run fairseq-ext plot curves "${logs[@]}" -o curves.png
    draw_lengths
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    cat <<SETTINGS
arch=$arch $preset
teacher=$teacher
data=$data $bpe${other_subwords:+ $other_subwords}
batch=$batch_size $update_freq
stages=$stages $warmup $lr
dropout=$dropout
flags=${extra[*]}
SETTINGS
}

choose_schedule() { :; } # --stages is the schedule

make_translations() {
    if [[ -n "$kd" ]]; then stage teacher train_teacher; fi
    stage train train_model
    stage translate translate
}

main "$@"; exit
