#!/usr/bin/env bash
# Tatoeba, Spanish → English or back: one small model, trained to its end and bundled. This recipe
# made the shipped tatoeba-es-en-bmt-1; shipped_models.sh made the other shipped models.
#
#   corpus       the pairs of https://www.manythings.org/anki/spa-eng.zip (sentences of tatoeba.org,
#                CC BY 2.0 FR), with capitals; 2,000 for validation and 2,000 for the test, no English
#                sentence in two of them; Moses tokens; 4,000 joint merges
#   models       of some 1.85 million parameters each
#   training     batches of 1,000 tokens; the rate falls to 0 as a cosine does, at the last update
#   translation  last checkpoint, beam 5
#   bmt-1        starts from bmt, which is the paper's first stage, and is distilled from it
#   comparison   every model of the folder that is finished, in one table with pictures
# shellcheck disable=SC2034,SC2317,SC2329  # official.sh uses the variables; `stage` calls functions
# shellcheck source-path=SCRIPTDIR source=official.sh
source "$(dirname "${BASH_SOURCE[0]}")/official.sh" # for training, translation and scores
# shellcheck source-path=SCRIPTDIR source=systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"

src=es tgt=en archive="" system=gru numbers=""
order=(transformer lstm gru linformer{,-4,-8,-16} muse muse-simple bmt bmt-1) # in the comparison
bpe=4000 dropout="" max_tokens=1000 update_freq=1 updates=15000 warmup=1000 lr="" average=1
flags=(--clip-norm 1.0)
held_out=2000

usage() {
    cat <<HELP
Usage: bash recipes/tatoeba.sh --archive spa-eng.zip [OPTION]... [NAME]

  NAME           transformer, lstm, gru, linformer (32 slots), linformer-4, -8
                   or -16, muse, muse-simple, bmt or bmt-1         ($system)

  --archive F    the archive, or any file of English and Spanish pairs separated by a tab
  --src L, --tgt L  languages: es and en, or en and es             ($src, $tgt)
  --updates N    training updates                                  ($updates)
  --warmup N     updates until the peak learning rate              ($warmup)
  --lr X         peak learning rate                                (0.002; bmt and
                   bmt-1: 0.004)
  --dropout F    dropout                                           (0.2; bmt-1: 0,
                   because 1-bit weights regularize a model already)
  --numbers K    number format, as of fairseq-ext bundle           (bf16; bmt: fp32,
                   bmt-1: bits)
  --out DIR      folder of the corpus and of each model            (runs/tatoeba-SRC-TGT)
  --help         this text

Several calls, each with its own model, may run at the same time. SMOKE=1 needs no file: it runs
every step at a tiny size on some of the shipped sentences. DRY_RUN=1 only prints the commands. If
stopped, the recipe continues when run again.
HELP
}

read_options() {
    read_arguments "--archive= --src= --tgt= --updates= --warmup= --lr= --dropout= --numbers= --out= WORD" \
        "$@"
    ((${#operands[@]} <= 1)) || die "give one model at a time, not \`${operands[*]}\`."
    system="${operands[0]:-$system}"
    [[ "$src $tgt" =~ ^(es en|en es)$ ]] ||
        die "\`--src\` and \`--tgt\` must be es and en, or en and es, but are \`$src\` and \`$tgt\`."
    positive --updates --warmup
    ((warmup < updates)) ||
        die "\`--warmup\` must be less than the $updates updates, but is $warmup."
    if [[ "${SMOKE:-0}" != 1 ]]; then
        [[ -r "$archive" ]] || die "\`--archive\` must be the file spa-eng.zip, of" \
            "https://www.manythings.org/anki; see --help."
        archive="$(absolute "$archive")"
    fi
    out="$(absolute "${out:-$REPO/runs/${SMOKE:+smoke-}tatoeba-$src-$tgt}")"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}

use_smoke_settings() {
    updates=12 warmup=2 bpe=300 max_tokens=2000 held_out=20
}

# describe: sets the model's architecture and flags, and `parent`, the model that it starts from.
describe() {
    local words
    parent=""
    case "$system" in
    bmt) words="${matched[bmt]} --bmt-preset float" lr="${lr:-0.004}" ;;
    bmt-1)
        words="${matched[bmt]} --bmt-preset bmt-1" parent=bmt
        lr="${lr:-0.004}" dropout="${dropout:-0}"
        ;;
    linformer-4 | linformer-8 | linformer-16)
        words="${matched[linformer]} --linformer-k ${system#*-}"
        ;;
    *) words="${matched[$system]-}" ;;
    esac
    [[ -n "$words" && "$system" != @(binary|ternary) ]] ||
        die "\`$system\` must be a model that --help lists, but is not."
    lr="${lr:-0.002}" dropout="${dropout:-0.2}"
    # Rounding could change the signs of the weights that a binary model binarizes.
    if [[ -z "$numbers" ]]; then
        case "$system" in
        bmt) numbers=fp32 ;;
        bmt-1) numbers=bits ;;
        *) numbers=bf16 ;;
        esac
    fi
    read -r arch words <<<"$words"
    read -ra model <<<"$words"
    if [[ -n "$parent" ]]; then
        model+=(--finetune-from-model "models/$parent/checkpoint_last.pt")
        criterion=(--criterion distillation --teacher "models/$parent/checkpoint_last.pt")
    fi
}

# prepare_corpus: reference/ has the text as it is, text/ its tokens, bpe/ their pieces.
prepare_corpus() {
    local columns=1,2
    [[ "$src" == en ]] || columns=2,1
    if [[ "${SMOKE:-0}" == 1 ]]; then
        smoke_text "$src" "$tgt" 400 1 1 pairs
        run fairseq-ext corpus pairs --source "pairs/train.$src" \
            --target "pairs/train.$tgt" --src "$src" --tgt "$tgt" \
            --valid "$held_out" --test "$held_out" --out reference
    else
        run fairseq-ext corpus pairs "$archive" --columns "$columns" \
            --src "$src" --tgt "$tgt" --valid "$held_out" --test "$held_out" \
            --out reference
    fi
    run fairseq-ext prepare --data reference --src "$src" --tgt "$tgt" --out text \
        --tokenize
    split_into_subwords "$bpe" "$src" "$tgt"
    binarize bpe "$src" "$tgt" --joined-dictionary
}

# train_system: trains the model; the one that it starts from must be finished.
train_system() {
    [[ -z "$parent" ]] || dry || [[ -e "models/$parent/.stages/train" ]] ||
        die "\`$system\` starts from \`$parent\`; train that first."
    train_model "models/$system" "${model[@]}"
}

translate_test() {
    translate "models/$system/checkpoint_last.pt" "models/$system/generated.txt"
    run fairseq-ext score --generated "models/$system/generated.txt" --ref "reference/test.$tgt" \
        --detokenize "$tgt" --tokenized-ref "text/test.$tgt" --json "models/$system/scores.json"
    run fairseq-ext hypotheses "models/$system/generated.txt" -o "models/$system/hyp.$tgt"
}

bundle_model() {
    local pairs="the" about
    dry || pairs="$(wc -l <"text/train.$src")"
    about="Trained by \`recipes/tatoeba.sh --src $src --tgt $tgt $system\`, seed 1, on $pairs pairs of
sentences that the members of tatoeba.org wrote and translated (CC BY 2.0 FR), as
manythings.org/anki has them. The sentences are short: six words on average. For scores,
$held_out pairs of the same collection were held out, of which neither side is in the training text."
    [[ -z "$parent" ]] || about+=" The training starts from \`$parent\`, trained for equally many updates."
    run fairseq-ext bundle "models/$system/checkpoint_last.pt" --data bin --numbers "$numbers" \
        --scores "models/$system/scores.json" --about "$about" --licence cc-by-2.0 \
        -o "models/$system/tatoeba-$src-$tgt-$system"
}

compare_finished() {
    local name folder text systems=() texts=() logs=() relative=()
    for name in "${order[@]}"; do
        folder="models/$name"
        if dry; then [[ "$name" == "$system" ]]; else [[ -e "$folder/.stages/translate" ]]; fi || continue
        [[ "$name" != transformer ]] || relative=(--relative-to transformer)
        text="$name=$folder/generated.txt"
        texts+=(--system "$text")
        systems+=(--system "$text,checkpoint=$folder/checkpoint_last.pt,log=$folder/train.log")
        logs+=(--log "$name=$folder/train.log")
    done
    run fairseq-ext plot curves "${logs[@]}" -o curves.png
    run fairseq-ext plot lengths "${texts[@]}" --ref "reference/test.$tgt" --detokenize "$tgt" \
        --buckets 4,6,8,10,12,15 "${relative[@]}" -o lengths.png
    run fairseq-ext compare "${systems[@]}" --ref "reference/test.$tgt" --detokenize "$tgt" \
        --tokenized-ref "text/test.$tgt" -o compare --pictures curves.png lengths.png
}

corpus_settings() {
    cat <<SETTINGS
src=$src
tgt=$tgt
archive=$([[ -z "$archive" ]] || cksum <"$archive")
bpe=$bpe
held_out=$held_out
SETTINGS
}

model_settings() {
    cat <<SETTINGS
model=$arch ${model[*]}
updates=$updates $warmup $lr
batch=$max_tokens
dropout=$dropout
SETTINGS
}

main() {
    local model=() parent
    [[ "${SMOKE:-0}" != 1 ]] || use_smoke_settings
    read_options "$@"
    describe
    cosine
    use_environment sacremoses subword_nmt
    open_run "$out" "$(corpus_settings)"
    stage corpus prepare_corpus
    close_run
    open_run "$out/models/$system" "$(model_settings)"
    run cd "$out"
    STAGES="models/$system/.stages"
    stage train train_system
    stage translate translate_test
    stage bundle bundle_model
    compare_finished
    dry && exit
    printf '\nThe model is %s\n' "$out/models/$system/tatoeba-$src-$tgt-$system"
}

main "$@"; exit
