#!/usr/bin/env bash
# Sentence classification with an encoder alone: the Linformer, or its twin with exact attention.
# The Linformer paper measures translation, and suggests in section 7 that sentence classification
# might be the better benchmark.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/linformer/classify.sh DATA_DIR [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

  DATA_DIR       folder with {train,valid,test}.text and .label: a sentence and its class (one
                 word) on each line, UTF-8
  --arch A       linformer_encoder, linformer_encoder_tiny; or with exact attention
                 transformer_encoder, transformer_encoder_tiny        (linformer_encoder)
  --marks LANG   read {train,valid,test}.LANG of DATA_DIR instead, one side of a translation
                 corpus; the class to predict from a sentence's words is its final mark,
                 . ? or !
  --k N          slots to which a Linformer projects a sentence       (32)
  --max-len N    longest sentence in tokens; longer ones are cut      (256)
  --bpe N        byte-pair merges                                     (8000)
  --words        words of the text as tokens, instead of byte pairs
  --batch-size N sentences in a batch                                 (32)
  --max-epoch N  end after N epochs at the latest                     (20)
  --patience N   end after N epochs without a better accuracy         (5)
  --out DIR      folder for all output                 (runs/classify-DATA_DIR-ARCH)
  --help         this text
  -- FLAG...     more flags for fairseq-train, which override the recipe's

To compare, run it once for each --arch, then
    python recipes/linformer/classify_scores.py compare RUN...

SMOKE=1 needs no DATA_DIR: it tells statements, questions and exclamations apart, among the Spanish
sentences that come with the package. DRY_RUN=1 only prints the commands. If stopped, the recipe
continues when run again.
HELP
}

data="" marks="" arch=linformer_encoder k=32 max_len=256 bpe=8000 words="" batch_size=32 max_epoch=20
patience=5 out=""
if [[ "${SMOKE:-0}" == 1 ]]; then
    arch=linformer_encoder_tiny k=8 max_len=32 bpe=300 max_epoch=5
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi
task=(--task sentence_prediction --criterion sentence_prediction)

# read_options ARGUMENT...: sets the globals above.
read_options() {
    read_arguments "--arch= --marks= --k= --max-len= --bpe= --batch-size= --max-epoch= --patience= \
        --out= --words WORD --" "$@"
    words="${words#--}"
    ((${#operands[@]} < 2)) ||
        die "give one DATA_DIR, not both \`${operands[0]}\` and \`${operands[1]}\`."
    data="${operands[*]}"
    positive --k --max-len --bpe --batch-size --max-epoch --patience
    if [[ -n "$data" ]]; then
        [[ -d "$data" ]] || die "DATA_DIR must be a folder, but \`$data\` is not; --help says what it must hold."
        data="$(cd "$data" && pwd)"
    elif [[ "${SMOKE:-0}" != 1 ]]; then
        die "DATA_DIR is missing: a folder with {train,valid,test}.text and .label; see --help."
    fi
    out="$(absolute "${out:-$REPO/runs/classify-$(basename "${data:-smoke}")-$arch}")"
}

make_text() {
    local from=(--data "$data" ${marks:+--marks "$marks"})
    if [[ -z "$data" ]]; then
        smoke_text es en 800 100 200 pairs
        from=(--data pairs --marks es)
    fi
    run python "$REPO/recipes/linformer/classify_data.py" "${from[@]}" --out text
}

# make_input: writes the text as fairseq reads it to input/.
make_input() {
    local split
    run rm -rf input
    run mkdir -p input
    [[ -n "$words" ]] || run subword-nmt learn-bpe --symbols "$bpe" --input text/train.text \
        --output input/codes
    for split in train valid test; do
        if [[ -n "$words" ]]; then
            run cp "text/$split.text" input/
        else
            run subword-nmt apply-bpe --codes input/codes \
                --input "text/$split.text" --output "input/$split.text"
        fi
    done
}

# The dictionary of labels is not padded to a round size, because each extra symbol would be a class.
make_binary() {
    run rm -rf bin
    preprocess input text input0 --workers 2
    preprocess text label label --padding-factor 1
}

# preprocess FOLDER ENDING NAME FLAG...
preprocess() {
    local folder="$1" ending="$2" name="$3"
    shift 3
    quietly "preprocess-$name.log" fairseq-preprocess --user-dir "$USER_DIR" --only-source \
        --trainpref "$folder/train.$ending" --validpref "$folder/valid.$ending" \
        --testpref "$folder/test.$ending" --destdir "bin/$name" "$@"
}

train_model() {
    # shellcheck disable=SC2016  # a dry run shows the command
    local classes='$(LC_ALL=C sort -u text/train.label | wc -l)' model_flags=()
    dry || classes="$(LC_ALL=C sort -u text/train.label | wc -l)"
    [[ "$arch" != linformer* ]] || model_flags=(--linformer-k "$k" --linformer-max-len "$max_len")
    train checkpoints "${task[@]}" --num-classes "$classes" --arch "$arch" \
        "${model_flags[@]}" --max-positions "$max_len" \
        --shorten-method truncate --batch-size "$batch_size" --dropout 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --lr 5e-4 --clip-norm 1.0 \
        --lr-scheduler inverse_sqrt --warmup-updates 100 \
        --max-epoch "$max_epoch" --patience "$patience" --no-epoch-checkpoints \
        --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric \
        --seed 1 --num-workers 0 --log-interval 100 "${extra[@]}"
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    cat <<SETTINGS
arch=$arch
k=$k
data=$data $([[ -z "$data" ]] || cat "$data"/{train,valid,test}.{"${marks:-text}",label} 2>/dev/null | cksum)
max_len=$max_len
input=${words:-bpe $bpe}
batch_size=$batch_size
max_epoch=$max_epoch
patience=$patience
flags=${extra[*]}
SETTINGS
}

main() {
    read_options "$@"
    use_environment subword_nmt scipy
    open_run "$out" "$(settings)"
    stage text make_text
    stage input make_input
    stage binarize make_binary
    stage train train_model
    stage predict quietly predict.log python "$REPO/recipes/linformer/classify_scores.py" predict \
        --bin bin --checkpoint checkpoints/checkpoint_best.pt --batch-size "$batch_size" \
        --out predicted.label
    dry && exit
    python "$REPO/recipes/linformer/classify_scores.py" report --dir . \
        --title "$(basename "${data:-kinds of sentence}"), $arch, $(wc -l <text/test.label) test sentences"
    printf '\nEverything is in %s, the predictions in predicted.label.\n' "$out"
}

main "$@"; exit
