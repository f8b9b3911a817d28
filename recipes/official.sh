# shellcheck shell=bash
# Code that the recipes of MUSE, BMT's WMT17 and Multi30k share: from an official corpus, made by
# `fairseq-ext corpus`, to scores and pictures. A script sources this file, sets the variables below,
# and calls `main "$@"`.
# shellcheck disable=SC2034,SC2329  # the scripts set and use them; `stage` calls the functions
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

corpus="" src="" tgt=""     # its name in fairseq_ext/corpora/catalogue.py, and its languages
arch="" dropout=""          # of the model; the architecture has the task's other settings
dictionary=()               # flags of fairseq-preprocess, as `fairseq-ext corpus` prints them
max_tokens="" update_freq="" # target tokens in a batch, and batches in an update
updates="" warmup="" lr=""
schedule=()                 # flags of the schedule after the warm-up
flags=()                    # further flags of fairseq-train
criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)
half=--fp16 seed=1          # precision on a GPU, as the authors'
average=10 beam=5 lenpen=1  # checkpoints averaged, and search
buckets=15,30,45,60,75,90,105 # longest sources of the ranges in lengths.png, as in the MUSE paper
compounds=0                 # 1: also tokenized BLEU with compounds split
paper=""                    # the paper's figures, for the last line
bpe=""                      # number of merges, if not the paper's
subwords=bpe                # kind of subwords
checkpoint=checkpoints/average.pt # which checkpoint translates
folder=bpe                  # which of the corpus's folders is binarized
own_usage=""                # lines of the help on options that only the script has
averaged="the last N epochs" # for the help: which checkpoints --average averages

usage() {
    local script
    script="$(absolute "$0")"
    cat <<HELP
Usage: bash ${script#"$REPO/"} [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

$own_usage  --against NAME=GENERATED
                   draw BLEU by length against another run's generated.txt,
                   even if all other steps are done
$(training_usage)

SMOKE=1 needs no files: it runs every step on a tiny corpus of the shipped sentences, packed as the
official archives are. DRY_RUN=1 only prints the commands. If stopped, the recipe continues when run
again: the corpus after its last step, training after its last checkpoint.
HELP
}

# training_usage: help on the options of the corpus and the training.
training_usage() {
    cat <<HELP
  --arch A         architecture, such as transformer_iwslt_de_en  ($arch)
  --data DIR       folder of the corpus, made once for all runs
                   (runs/data/$corpus)
  --mirror M       folder or address to take the official archives from
  --any-counts     accept another edition of the corpus, with other numbers of pairs
  --bpe N          merges of the byte-pair encoding; 0 for words  (the corpus's)
  --subwords K     kind of subwords (--bpe sets their number): bpe,
                   sentencepiece-unigram, sentencepiece-bpe, tokenizers; none: words  (bpe)
  --max-tokens N   target tokens in a batch                       ($max_tokens)
  --update-freq N  batches in an update; with less memory, make batches smaller
                   and this number larger                         ($update_freq)
  --updates N      training updates                               ($updates)
  --warmup N       updates until the peak learning rate           ($warmup)
  --dropout F      dropout                                        ($dropout)
  --average N      average $averaged; 1: the last checkpoint  ($average)
  --out DIR        folder for all output             (runs/${run_name:-$corpus-ARCH})
  --help           this text
  -- FLAG...       more flags for fairseq-train, which override the recipe's
HELP
}

# use_smoke_settings: makes every step run at a tiny size.
use_smoke_settings() {
    arch=muse_tiny max_tokens=3000 update_freq=1 updates=24 warmup=6
    average=$((average < 2 ? average : 2))
    [[ "$folder" == text ]] || bpe=400
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}

# read_options ARGUMENT...: sets the globals above and those of the next line.
data="" mirror="" any_counts="" out="" against="" other_subwords=""
read_options() {
    read_arguments "--arch= --data= --mirror= --bpe= --subwords= --max-tokens= --update-freq= --updates= \
        --warmup= --dropout= --average= --against= --out= --any-counts --" "$@"
    positive --max-tokens --update-freq --updates --warmup --average
    ((warmup < updates)) ||
        die "\`--warmup\` must be less than the $updates updates, but is $warmup."
    [[ -z "$bpe" || "$bpe" =~ ^[0-9]{1,7}$ ]] ||
        die "\`--bpe\` must be a whole number, but is \`$bpe\`."
    check_subwords "$subwords"
    [[ "$subwords" != none ]] || bpe=0
    # From these the recipe computes other settings.
    refuse_extra "--max-tokens --update-freq --max-update --warmup-updates --lr-period-updates" \
        "\`--max-tokens\`, \`--update-freq\`, \`--updates\` and \`--warmup\`"
    if [[ "$bpe" == 0 ]]; then folder=text; elif [[ -n "$bpe" ]]; then folder=bpe; fi
    [[ "$subwords" =~ ^(bpe|none)$ ]] || other_subwords="$subwords"
    choose_folders "$arch"
    if [[ -n "$against" ]]; then check_against; fi
}

# choose_folders ENDING: sets the folders of the run and of the corpus, and the mirror's path.
choose_folders() {
    local name="$corpus"
    [[ "${SMOKE:-0}" != 1 ]] || name="smoke-$corpus"
    out="$(absolute "${out:-$REPO/runs/$name-$1}")"
    data="$(absolute "${data:-$REPO/runs/data/$corpus${bpe:+-$bpe}${other_subwords:+-$other_subwords}}")"
    [[ -z "$mirror" || "$mirror" == *://* ]] || mirror="$(absolute "$mirror")"
}

# check_against: makes the path absolute, because the run changes its folder.
check_against() {
    local file="${against#*=}"
    [[ "$against" == ?*=?* && "${against%%=*}" != "$arch" ]] ||
        die "\`--against\` must be NAME=GENERATED, with another name than $arch, but is \`$against\`."
    [[ -f "$file" ]] || die "\`--against\`: $file does not exist; check the path."
    against="${against%%=*}=$(absolute "$file")"
}

prepare_corpus() { prepare_official; }

prepare_official() {
    if [[ "${SMOKE:-0}" == 1 ]]; then
        smoke_text "$src" "$tgt" 600 30 40 pairs
        run python "$REPO/preprocess/smoke_archives.py" --corpus "$corpus" --pairs pairs \
            --out archives
        data="$out/data" mirror=archives any_counts=--any-counts
    fi
    run fairseq-ext corpus "$corpus" --out "$data" ${mirror:+--mirror "$mirror"} \
        ${bpe:+--bpe "$bpe"} ${other_subwords:+--subwords "$other_subwords"} \
        ${any_counts:+"$any_counts"}
    link_corpus
}

# link_corpus: links the corpus to the places where the later steps look for it.
link_corpus() {
    run ln -sfn "$data/text" text
    run ln -sfn "$data/$folder" final
    run ln -sfn "$data/reference" reference
}

binarize_corpus() {
    binarize final "$src" "$tgt" "${dictionary[@]}"
}

# train_model [FOLDER [FLAG...]]: trains, and keeps only the checkpoints that the average needs.
train_model() {
    local precision=()
    if on_gpu; then precision=("$half"); fi
    train "${1:-checkpoints}" --source-lang "$src" --target-lang "$tgt" --arch "$arch" \
        --dropout "$dropout" "${criterion[@]}" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --lr "$lr" --warmup-updates "$warmup" \
        --warmup-init-lr 1e-7 "${schedule[@]}" --max-tokens "$max_tokens" \
        --update-freq "$update_freq" --max-update "$updates" --keep-last-epochs "$average" \
        "${flags[@]}" "${precision[@]}" --seed "$seed" \
        --num-workers 0 --log-interval 100 "${extra[@]}" "${@:2}"
}

# inverse_sqrt: sets a learning rate that falls as 1 / sqrt(update) after the warm-up.
inverse_sqrt() { schedule=(--lr-scheduler inverse_sqrt --stop-min-lr 1e-9); }

# cosine: sets one half-period that ends with the training. fairseq begins the next one at --lr times
# --lr-shrink; this factor prevents a jump if the training is ever prolonged.
cosine() {
    schedule=(--lr-scheduler cosine --min-lr 1e-9 --lr-period-updates "$((updates - warmup))"
        --t-mult 1 --lr-shrink 1e-6)
}

# average_checkpoints [FOLDER FILE]: averages the checkpoints of the last epochs.
average_checkpoints() {
    local folder="${1:-checkpoints}" file="${2:-checkpoints/average.pt}" epochs="$average" there
    if ((epochs > 1)) && ! dry; then
        there="$(find "$folder" -name 'checkpoint[0-9]*.pt' | wc -l)"
        # `--average` cannot be changed once a run has begun, so a short training averages what it has.
        if ((there < epochs)); then
            log "the training had $there epochs: the average is of these, not of $epochs."
            epochs="$there"
        fi
    fi
    if ((epochs <= 1)); then
        run cp "$folder/checkpoint_last.pt" "$file"
    else
        run fairseq-ext average --dir "$folder" --last-epochs "$epochs" -o "$file"
    fi
}

# translate [CHECKPOINT FILE]
translate() {
    generate "${1:-checkpoints/average.pt}" "${2:-generated.txt}" --source-lang "$src" \
        --target-lang "$tgt" --gen-subset test --beam "$beam" --lenpen "$lenpen" --batch-size 128
}

# The paper's BLEU is on the corpus's own tokens, and sacrebleu's on text.
score() {
    local split=()
    ((compounds == 0)) || split=(--split-compounds)
    run fairseq-ext score --generated generated.txt --ref "reference/test.$tgt" \
        --detokenize "$tgt" --tokenized-ref "text/test.$tgt" "${split[@]}" \
        --json scores.json
    run fairseq-ext hypotheses generated.txt -o "hyp.$tgt"
}

draw() {
    run fairseq-ext plot curves --log "$arch=checkpoints/train.log" -o curves.png
    draw_lengths
    if has_gates; then run fairseq-ext plot gates checkpoints/average.pt -o gates.png; fi
}

# draw_lengths NAME=GENERATED...: draws BLEU by length, as the MUSE paper's Figure 3, for this run
# and the named ones.
draw_lengths() {
    local system systems=()
    for system in "$arch=generated.txt" "$@"; do
        systems+=(--system "$system")
    done
    run fairseq-ext plot lengths "${systems[@]}" --tokenized-ref "text/test.$tgt" \
        --buckets "$buckets" -o lengths.png
}

# has_gates: whether the model has gates to draw: a MUSE with several kernels.
has_gates() {
    local word before="" kernels=3,15
    [[ "$arch" == muse* ]] || return 1
    [[ "$arch" != muse_simple* ]] || kernels=none
    for word in "${extra[@]}"; do
        [[ "$before" != --muse-kernels ]] || kernels="$word"
        [[ "$word" != --muse-kernels=* ]] || kernels="${word#*=}"
        before="$word"
    done
    [[ "$kernels" == *,* ]]
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    cat <<SETTINGS
arch=$arch
data=$data $folder $bpe${other_subwords:+ $other_subwords}
batch=$max_tokens $update_freq
updates=$updates $warmup $lr
dropout=$dropout
average=$average
flags=${extra[*]}
SETTINGS
}

# make_translations: trains the model, and translates the test set with it.
make_translations() {
    stage train train_model
    stage average average_checkpoints
    stage translate translate
}

main() {
    [[ "${SMOKE:-0}" != 1 ]] || use_smoke_settings
    read_options "$@"
    choose_schedule
    use_environment sacremoses "${SUBWORDS[$subwords]}"
    open_run "$out" "$(settings)"
    stage corpus prepare_corpus
    stage binarize binarize_corpus
    make_translations
    stage score score
    stage draw draw
    [[ -z "$against" ]] || draw_lengths "$against"
    dry && exit
    python "$REPO/recipes/report.py" --dir . --src "$src" --tgt "$tgt" --title \
        "$src → $tgt, ${row:-$arch}, beam $beam, $(wc -l <"reference/test.$tgt") test sentences"
    list_results results.md curves.png lengths.png gates.png "$checkpoint"
    show_table
    printf '\nThe paper: %s\n' "$paper"
}

# show_table: prints the command that compares this run with another.
show_table() {
    local here
    here="$(printf '%q' "$out")"
    cat <<NEXT

A table and pictures of this run and another:
  fairseq-ext compare --ref $here/reference/test.$tgt -o table \\
    --system $arch=$here/generated.txt,checkpoint=$here/$checkpoint,log=$here/checkpoints/train.log \\
    --system NAME=OTHER_RUN/generated.txt
NEXT
}
