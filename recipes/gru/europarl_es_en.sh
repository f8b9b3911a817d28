#!/usr/bin/env bash
# The GRU-with-attention paper's experiment: Europarl, Spanish → English, as its sections 4 and 5
# describe it. What the paper says, and what this recipe does:
#
#   at most 50 words, lower-cased     both, on Moses tokens ("usual tokenization methods")
#   900K / 80K / 20K sentence pairs   --train, --valid, --test; no sentence is in two of them
#   vocabulary without limit          every word of the training text, no subwords
#   sorted by length                  fairseq always forms batches of neighbours in length order;
#                                     the paper also visits them in that order, shortest first,
#                                     where fairseq would shuffle them: --curriculum keeps the
#                                     order up to an epoch, here for the whole run. To sort only
#                                     the composition of batches, give `-- --curriculum 0`.
#   batches of 32 sentences           --batch-size 32; fairseq sets no limit in tokens by default
#   Adam                              with a learning rate of 1e-3, which the paper does not give
#   stop when the validation error    --patience: epochs without a better loss (1)
#     stops decreasing
#   Xavier-uniform, 256, 100          all in the architecture gru_europarl_es_en
#   greedy search                     beam 1, and beam 5 for comparison
#
# The paper trained some 20 hours and reports 25.76 BLEU on its own, unpublished split.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/gru/europarl_es_en.sh --source FILE --target FILE [OPTION]...
                                          [-- FAIRSEQ_TRAIN_FLAG...]

  --source F     Spanish text, one sentence per line (plain or .gz); Europarl v7 calls it
                 europarl-v7.es-en.es
  --target F     English translation of this text, line by line
  --train N      training pairs: the first that are not in valid or test  (900000)
  --valid N      validation pairs                                         (80000)
  --test N       test pairs                                               (20000)
  --patience N   end after N epochs without a better validation loss      (1)
  --max-epoch N  end after N epochs at the latest                         (50)
  --arch A       architecture                                 (gru_europarl_es_en)
  --out DIR      folder for all output                   (runs/europarl-es-en-ARCH)
  --help         this text
  -- FLAG...     more flags for fairseq-train, which override the recipe's

SMOKE=1 needs no files: it runs every step on a tiny corpus of the shipped sentences. DRY_RUN=1 only
prints the commands. If stopped, the recipe continues when run again.
HELP
}

source="" target="" train=900000 valid=80000 test=20000 patience=1 max_epoch=50
arch=gru_europarl_es_en out="" name=europarl
if [[ "${SMOKE:-0}" == 1 ]]; then
    train=300 valid=30 test=30 max_epoch=2 name=smoke-europarl
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi

# read_options ARGUMENT...: sets the globals above.
read_options() {
    local option
    read_arguments "--source= --target= --train= --valid= --test= --patience= --max-epoch= --arch= \
        --out= --" "$@"
    positive --train --valid --test --patience --max-epoch
    if [[ "${SMOKE:-0}" != 1 ]]; then
        [[ -n "$source" && -n "$target" ]] || die "\`--source\` and \`--target\` must name your Europarl files."
        for option in source target; do
            [[ -r "${!option}" ]] || die "\`--$option ${!option}\` cannot be read; check the path."
            printf -v "$option" '%s' "$(absolute "${!option}")"
        done
    fi
    out="$(absolute "${out:-$REPO/runs/$name-es-en-$arch}")"
}

make_text() {
    local side
    if [[ -z "$source" ]]; then
        smoke_text es en $((train + 2 * (valid + test))) 1 1 pairs
        source=pairs/train.es target=pairs/train.en
    fi
    run fairseq-ext corpus pairs --source "$source" --target "$target" \
        --src es --tgt en --tokenize --lowercase --max-words 50 \
        --valid "$valid" --test "$test" --out split
    run mkdir -p text
    run cp split/text.json text/
    for side in es en; do
        run cp "split/valid.$side" "split/test.$side" text/
        into "text/train.$side" head -n "$train" "split/train.$side"
    done
}

# No checkpoints inside an epoch: fairseq validates at each, and --patience would count them.
train_model() {
    train checkpoints --arch "$arch" --optimizer adam --lr 1e-3 --lr-scheduler fixed \
        --criterion cross_entropy --batch-size 32 --curriculum "$max_epoch" \
        --patience "$patience" --max-epoch "$max_epoch" --no-epoch-checkpoints \
        --seed 1 --num-workers 0 --log-interval 100 "${extra[@]}"
}

# decode BEAM: translates with the best checkpoint and scores. The paper's own BLEU is on
# lower-cased tokens; sacrebleu's is on the same text put back together.
decode() {
    local beam="$1"
    run mkdir -p "beam$beam"
    generate checkpoints/checkpoint_best.pt "beam$beam/generated.txt" --gen-subset test \
        --beam "$beam" --batch-size 32
    run fairseq-ext score --generated "beam$beam/generated.txt" --ref reference.en \
        --detokenize en --tokenized-ref text/test.en --json "beam$beam/scores.json"
    run fairseq-ext hypotheses "beam$beam/generated.txt" --detokenize en -o "beam$beam/hyp.en"
}

detokenize_reference() {
    show sacremoses -l en detokenize '<' text/test.en '>' reference.en
    dry || sacremoses -l en -q detokenize <text/test.en >reference.en
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    cat <<SETTINGS
arch=$arch
source=$source $([[ -z "$source" ]] || cksum <"$source")
target=$target $([[ -z "$target" ]] || cksum <"$target")
pairs=$train $valid $test
patience=$patience
max_epoch=$max_epoch
flags=${extra[*]}
SETTINGS
}

main() {
    local beam
    read_options "$@"
    use_environment sacremoses
    open_run "$out" "$(settings)"
    stage corpus make_text
    stage binarize binarize text es en
    stage train train_model
    stage reference detokenize_reference
    stage greedy decode 1
    stage beam decode 5
    dry && exit
    for beam in 1 5; do
        python "$REPO/recipes/report.py" --dir . --decoded "beam$beam" --src es --tgt en \
            --title "es → en, $arch, beam $beam, $(wc -l <text/test.en) unseen sentences"
    done
    printf '\nEverything is in %s\n' "$out"
}

main "$@"; exit
