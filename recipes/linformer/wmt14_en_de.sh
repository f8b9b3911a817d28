#!/usr/bin/env bash
# The Linformer paper's experiment (Pampaloni): WMT14 English → German, as its sections 2, 3 and 5
# describe it. What the paper says, and what this recipe does:
#
#   half of the training CSV, the last   preprocess/wmt14_csv.py, by row
#     1 % of that for validation
#   BART's tokenizer, 50,272 entries     the same byte-level BPE (GPT-2's) as fairseq token ids
#   sentences cut to 256 tokens,         --truncate-source, --truncate-target and --source-bos of
#     <s> and </s> included              the task translation_ext
#   random batches of 88, trimmed to     --random-batches, --batch-size 88
#     their longest sentence
#   512 / 2048 / 8 heads / 6 + 6         linformer_wmt_en_de, k = 32; --k 64; and for the baseline
#                                        --arch transformer_wmt_en_de
#   negative log-likelihood              --criterion cross_entropy
#   warm-up over 4,000 updates from      the recipe counts the updates of 10 epochs; fairseq's cosine
#     1e-7 to 1e-4, cosine to 1e-6 at    would restart at its end, with the recipe's flags it goes on
#     the end of epoch 10                from 1e-6
#   mixed precision                      --amp, where there is a GPU
#   checkpoint of the best validation    checkpoint_best.pt
#   greedy search, at most 256 tokens    --beam 1 --max-len-b 255: 255 and </s>
#
# Not in the paper, so chosen here: Adam with betas 0.9 and 0.98, dropout 0.1, one embedding matrix
# for source, target and output, no clipping of gradients. Its BLEU tool is not named; sacrebleu on
# the untouched references is given first.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/linformer/wmt14_en_de.sh --data DIR_OR_ZIP --download DIR [OPTION]...
                                             [-- FAIRSEQ_TRAIN_FLAG...]

  --data D        folder or .zip with wmt14_translate_de-en_train.csv and _test.csv
                  (Kaggle: mohamedlotfy50/wmt-2014-english-german)
  --download DIR  folder for GPT-2's encoder.json and vocab.bpe, downloaded once …
  --vocabulary F  … or your own encoder.json (BART: vocab.json)
  --merges F      … and your own vocab.bpe (BART: merges.txt)
  --arch A        architecture                                (linformer_wmt_en_de)
  --k N           slots of a Linformer (the paper's k), or a list with a number for each layer  (32)
  --fraction F    share of the training rows to use, from the first     (1/2)
  --csv-valid     validate on the CSV validation file, not on the last 1 %
  --batch-size N  sentences in a batch                                  (88)
  --epochs N      epochs of training                                    (10)
  --lr F          peak learning rate                                    (1e-4)
  --warmup N      updates until the peak learning rate                  (4000)
  --out DIR       folder for all output               (runs/wmt14-en-de-ARCH[-kN])
  --help          this text
  -- FLAG...      more flags for fairseq-train, which override the recipe's

SMOKE=1 needs no files: it runs every step on a tiny corpus of the shipped sentences with an encoding
learnt from it. DRY_RUN=1 only prints the commands. If stopped, the recipe continues when run
again, training after its last epoch.
HELP
}

src=en tgt=de positions=256 init_lr=1e-7 min_lr=1e-6 dropout=0.1
data="" download="" vocabulary="" merges="" fraction=1/2 csv_valid=""
arch=linformer_wmt_en_de k=32 batch_size=88 epochs=10 lr=1e-4 warmup=4000
out="" name=wmt14
if [[ "${SMOKE:-0}" == 1 ]]; then
    arch=linformer_tiny k=8 batch_size=22 epochs=2 warmup=8 lr=3e-3 name=smoke-wmt14
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi

# Flags that prepare both sides of the corpus, for training and for everything after it.
task=(--task translation_ext --source-lang "$src" --target-lang "$tgt" --truncate-source
    --truncate-target --source-bos --max-source-positions "$positions"
    --max-target-positions "$positions")

# read_options ARGUMENT...: sets the globals above, `model` and `model_flags`.
read_options() {
    local option
    read_arguments "--data= --download= --vocabulary= --merges= --arch= --k= --fraction= --batch-size= \
        --epochs= --lr= --warmup= --out= --csv-valid --" "$@"
    positive --batch-size --epochs --warmup
    [[ "$lr" =~ ^[0-9]*\.?[0-9]+(e-?[0-9]+)?$ && "$lr" =~ [1-9] ]] ||
        die "\`--lr\` must be a number above 0, but is \`$lr\`."
    # From these the recipe computes the schedule.
    refuse_extra "--batch-size --max-sentences --max-tokens --update-freq --max-epoch --max-update --lr \
--min-lr --warmup-updates" "\`--batch-size\`, \`--epochs\`, \`--lr\` and \`--warmup\`" \
        ", because the schedule would not fit it"
    [[ "${SMOKE:-0}" == 1 ]] || check_files
    model="$arch" model_flags=()
    if [[ "$arch" == linformer* ]]; then
        model="$arch (k=$k)"
        model_flags=(--linformer-k "$k" --linformer-max-len "$positions")
    fi
    option="${model//[^a-z0-9_=,]/}"
    option="${option/k=/-k}"
    out="$(absolute "${out:-$REPO/runs/$name-$src-$tgt-${option//,/_}}")"
}

check_files() {
    local option
    [[ -n "$data" ]] || die "\`--data\` must name the folder or .zip with the CSV files."
    if [[ -n "$download" ]]; then
        [[ -z "$vocabulary$merges" ]] || die "\`--download\` goes without \`--vocabulary\` and \`--merges\`."
        [[ "$download" == /* ]] || download="$PWD/$download"
    else
        [[ -n "$vocabulary" && -n "$merges" ]] ||
            die "give \`--vocabulary\` and \`--merges\`, or \`--download\`."
    fi
    for option in data ${vocabulary:+vocabulary} ${merges:+merges}; do
        [[ -r "${!option}" ]] || die "\`--$option ${!option}\` cannot be read; check the path."
        [[ "${!option}" == /* ]] || printf -v "$option" '%s' "$PWD/${!option}"
    done
}

make_text() {
    local encoding=(--download "$download")
    [[ -n "$download" ]] || encoding=(--vocabulary "$vocabulary" --merges "$merges")
    if [[ -z "$data" ]]; then
        smoke_text "$src" "$tgt" 600 20 20 pairs # the recipe takes half of the 600
        run python "$REPO/recipes/linformer/smoke.py" --pairs pairs --src "$src" --tgt "$tgt" \
            --out csv --size 600 --encoding encoding
        data=csv encoding=(--vocabulary encoding/encoder.json --merges encoding/vocab.bpe)
    fi
    run rm -rf text bpe
    run python "$REPO/preprocess/wmt14_csv.py" --data "$data" --src "$src" --tgt "$tgt" \
        "${encoding[@]}" --fraction "$fraction" ${csv_valid:+"$csv_valid"} --out .
}

train_model() {
    local schedule=("<schedule.txt>") precision=()
    dry || read -ra schedule <schedule.txt
    if on_gpu; then precision=(--amp); fi
    train checkpoints "${task[@]}" --random-batches --arch "$arch" "${model_flags[@]}" \
        --share-all-embeddings --dropout "$dropout" --criterion cross_entropy \
        --optimizer adam --adam-betas '(0.9, 0.98)' "${schedule[@]}" \
        --batch-size "$batch_size" --max-epoch "$epochs" "${precision[@]}" \
        --no-epoch-checkpoints --seed 1 --num-workers 0 --log-interval 100 "${extra[@]}"
}

measure_perplexity() {
    quietly validate.log fairseq-validate bin --user-dir "$USER_DIR" "${task[@]}" \
        --path checkpoints/checkpoint_best.pt --valid-subset test --batch-size "$batch_size" \
        --no-progress-bar
    run python "$REPO/recipes/linformer/table3.py" perplexity validate.log -o perplexity.json
}

translate() {
    generate checkpoints/checkpoint_best.pt generated.txt "${task[@]}" --gen-subset test \
        --beam 1 --max-len-a 0 --max-len-b $((positions - 1)) --batch-size "$batch_size"
    run fairseq-ext hypotheses generated.txt -o "hyp.$tgt"
}

# Scores plain text with sacrebleu, and also Moses tokens, because papers of the time did so.
score() {
    tokenize "hyp.$tgt" "hyp.tok.$tgt"
    tokenize "text/test.$tgt" "reference.tok.$tgt"
    run fairseq-ext score --hyp "hyp.$tgt" --ref "text/test.$tgt" --json scores.json \
        --tokenized-hyp "hyp.tok.$tgt" --tokenized-ref "reference.tok.$tgt"
}

# tokenize TEXT TOKENS
tokenize() {
    show sacremoses -l "$tgt" -q tokenize '<' "$1" '>' "$2"
    dry || sacremoses -l "$tgt" -q tokenize <"$1" >"$2"
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    cat <<SETTINGS
arch=$arch
k=$k
data=$data $(sum "$data")
encoding=$download $vocabulary $merges $(sum "$vocabulary") $(sum "$merges")
fraction=$fraction $csv_valid
batch_size=$batch_size
epochs=$epochs
lr=$lr
warmup=$warmup
flags=${extra[*]}
SETTINGS
}

# sum PATH: prints the checksum of a file, or of the CSV files in a folder.
sum() {
    if [[ -d "$1" ]]; then
        cat "$1"/wmt14_translate_de-en_* 2>/dev/null | cksum
    elif [[ -n "$1" ]]; then
        cksum <"$1"
    fi
}

main() {
    local file pairs="<pairs>"
    read_options "$@"
    use_environment tokenizers
    open_run "$out" "$(settings)"
    stage corpus make_text
    stage binarize binarize bpe "$src" "$tgt" --joined-dictionary --srcdict bpe/dict.txt
    # The schedule goes into a file, so that a run that is continued uses the same schedule.
    dry || pairs="$(wc -l <"bpe/train.$src")"
    stage schedule into schedule.txt cosine_schedule "$pairs" "$batch_size" "$epochs" "$warmup" \
        "$init_lr" "$lr" "$min_lr"
    stage train train_model
    stage perplexity measure_perplexity
    stage translate translate
    stage score score
    stage draw run fairseq-ext plot curves --log "$arch=checkpoints/train.log" -o curves.png
    dry && exit
    printf '%s\n' "$model" >model.txt
    python "$REPO/recipes/report.py" --dir . --src "$src" --tgt "$tgt" \
        --title "$src → $tgt, $model, greedy, $(wc -l <"text/test.$tgt") test sentences"
    printf '\nEverything is in %s:\n' "$out"
    for file in results.md table3.md curves.png checkpoints/checkpoint_best.pt; do
        echo "  $file"
    done
    printf '\nTable 3 of the paper\n\n'
    python "$REPO/recipes/linformer/table3.py" table . --out .
}

main "$@"; exit
