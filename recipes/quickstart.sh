#!/usr/bin/env bash
# The main job: install, make a corpus, train, translate, score and show the result.
# shellcheck disable=SC2329  # the functions are handed to `stage`
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=own_text.sh
source "$(dirname "${BASH_SOURCE[0]}")/own_text.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/quickstart.sh [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

Installs everything into .venv (unless the active Python environment already works), makes a
parallel corpus from locale data, trains a translation model on it, translates the test set and
ends with scores, sample translations and two pictures. Some 5 minutes of two CPU cores after
the installation. Stopped at any point and started again, it continues.

  --arch A       fairseq architecture, ours or a stock one          (gru_attention)
  --src L        source language                                    (en)
  --tgt L        target language                                    (de)
  --data DIR     your own text instead: train, valid and test, each with the
                 endings .SRC and .TGT, one sentence per line
  --tokenize     with --data: Moses tokenization before, and undone after
  --updates N    how many training updates                          (1500)
  --bpe N        how many joint byte-pair merges                    (2000)
  --subwords K   or N pieces of another kind: sentencepiece-unigram,
                 sentencepiece-bpe, tokenizers; none for words      (bpe)
  --out DIR      where everything goes               (runs/quickstart-SRC-TGT-ARCH)
  --help         this text
  -- FLAG...     more flags for fairseq-train; they win over the recipe's

SMOKE=1 runs everything at a tiny size, in under a minute. DRY_RUN=1 only prints the commands.
OMP_NUM_THREADS is the number of CPU threads (2).
HELP
}

# What an ordinary run takes, and the size at which every step still means something.
arch=gru_attention src=en tgt=de data="" tokenize="" out="" subwords=bpe extra=()
updates=1500 bpe=2000 sizes=(19000 500 500) name=quickstart
if [[ "${SMOKE:-0}" == 1 ]]; then
    updates=20 bpe=200 sizes=(400 40 40) name=smoke
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi

# read_options ARGUMENT...: sets the globals above and `interval`.
read_options() {
    while (($#)); do
        case "$1" in
        --arch | --src | --tgt | --data | --updates | --bpe | --subwords | --out)
            set_option "$@"
            shift
            ;;
        --tokenize) tokenize=--tokenize ;;
        --help | -h) usage && exit ;;
        --) shift && extra=("$@") && break ;;
        *) die "\`$1\` is not an option; --help lists them. Flags for fairseq-train come after \`--\`." ;;
        esac
        shift
    done
    positive --updates "$updates"
    positive --bpe "$bpe"
    check_subwords "$subwords"
    [[ "$src" != "$tgt" ]] || die "\`--src\` and \`--tgt\` are both \`$src\`; choose two languages."
    [[ -z "$tokenize" || -n "$data" ]] || die "\`--tokenize\` goes with \`--data\`."
    [[ -z "$data" ]] || data="$(own_text --data "$data" "$src" "$tgt")"

    out="${out:-$REPO/runs/$name-${data:+$(basename "$data")-}$src-$tgt-$arch}"
    out="$(absolute "$out")"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
    # Some twenty checkpoints in a run; the last five are kept, to go on from and to average.
    interval=$((updates < 100 ? (updates + 4) / 5 : updates > 10000 ? 500 : updates / 20))
}

make_text() {
    if [[ -n "$data" ]]; then
        run python "$REPO/recipes/prepare.py" --data "$data" --src "$src" --tgt "$tgt" \
            --out text ${tokenize:+"$tokenize"}
    else
        run python "$REPO/preprocess/locale_corpus.py" --src "$src" --tgt "$tgt" --seed 1 \
            --train "${sizes[0]}" --valid "${sizes[1]}" --test "${sizes[2]}" --out text
    fi
}

# Two test sentences of middling length become a test set of their own, for the picture of the
# attention: decoded one by one, because fairseq's `lstm` misplaces its attention beside padding.
learn_subwords() {
    local side middling='NR == FNR { if (NF >= 8 && NF <= 14 && n < 2) { chosen[FNR]; n++ }; next }'
    split_into_subwords "$bpe" "$src" "$tgt" "$subwords"
    for side in "$src" "$tgt"; do
        into "bpe/picture.$side" awk "$middling FNR in chosen || FNR == 1 && !n" \
            "text/test.$src" "bpe/test.$side"
    done
}

# Small batches matter most here: with 3,000 tokens a batch, 19,000 pairs are learnt far slower.
train_model() {
    train checkpoints --arch "$arch" --dropout 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr 3e-3 --lr-scheduler polynomial_decay --total-num-update "$updates" \
        --warmup-updates $((updates / 12)) --max-update "$updates" \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --max-tokens 800 --num-workers 0 --seed 1 \
        --log-interval $((interval < 100 ? interval : 100)) \
        --no-epoch-checkpoints --save-interval-updates "$interval" --keep-interval-updates 5 \
        ${extra[@]+"${extra[@]}"}
}

average_checkpoints() {
    # The newest four before the end, and the end, which has no name of its own where an epoch ends.
    local file files=()
    while read -r _ file; do
        files+=("checkpoints/$file")
    done < <(find checkpoints -name 'checkpoint_*_*.pt' 2>/dev/null |
        sed -nE 's/.*\/(checkpoint_[0-9]+_([0-9]+)\.pt)$/\2 \1/p' | sort -n |
        awk -v end="$updates" '$1 < end' | tail -n 4)
    run fairseq-ext average --inputs ${files[@]+"${files[@]}"} checkpoints/checkpoint_last.pt \
        -o checkpoints/average.pt
}

translate() {
    generate checkpoints/average.pt generated.txt --gen-subset test --beam 5 --max-tokens 4000
    local keep=() # text that comes as tokens is compared as tokens
    [[ -n "$tokenize" ]] || keep=(--keep-tokens)
    run fairseq-ext hypotheses generated.txt -o "hyp.$tgt" ${keep[@]+"${keep[@]}"}
}

score() {
    run fairseq-ext score --ref "${data:-text}/test.$tgt" --hyp "hyp.$tgt" --json scores.json
}

draw() {
    run fairseq-ext plot curves --log "$arch=checkpoints/train.log" -o curves.png
    # Not every stock architecture gives its attention; the rest of the report does without.
    if generate checkpoints/average.pt aligned.txt --gen-subset test1 --batch-size 1 --beam 5 \
        --print-alignment soft; then
        run fairseq-ext plot alignment aligned.txt --index 0 -o alignment.png --remove-bpe
    else
        log "no picture of the attention: \`$arch\` does not give it (see $out/aligned.txt.log)"
    fi
}

# What makes it the same run: one setting per line.
settings() {
    cat <<SETTINGS
arch=$arch
src=$src
tgt=$tgt
updates=$updates
bpe=$bpe$([[ "$subwords" == bpe ]] || printf '\nsubwords=%s' "$subwords")
sizes=${sizes[*]}
tokenize=$tokenize
data=$data
sums=$([[ -z "$data" ]] || cat "$data"/{train,valid,test}.{"$src","$tgt"} 2>/dev/null | cksum)
flags=${extra[*]-}
SETTINGS
}

main() {
    read_options "$@"
    use_environment babel num2words "${SUBWORDS[$subwords]}"
    open_run "$out" "$(settings)"
    stage corpus make_text
    stage bpe learn_subwords
    stage binarize binarize bpe "$src" "$tgt" --joined-dictionary --testpref bpe/test,bpe/picture
    stage train train_model
    stage average average_checkpoints
    stage translate translate
    stage score score
    stage draw draw
    dry && exit
    python "$REPO/recipes/report.py" run --dir . --src "$src" --tgt "$tgt" \
        --title "$src → $tgt, $arch, beam 5, $(wc -l <"text/test.$tgt") unseen sentences"
    printf '\nEverything is in %s:\n' "$out"
    for file in results.md curves.png alignment.png checkpoints/average.pt; do
        if [[ -e "$file" ]]; then echo "  $file"; fi
    done
    show_next
}

# How to use what was trained, ready to be pasted.
show_next() {
    local sentence activate=""
    sentence="$(sed "s/'//g;1q" "${data:-text}/test.$src")"
    [[ -z "${VIRTUAL_ENV:-}" ]] || activate=" && . $(printf '%q' "$VIRTUAL_ENV")/bin/activate"
    cat <<NEXT

Translate a sentence of yours:
  cd $(printf '%q' "$PWD")$activate
  echo '$sentence' | fairseq-ext translate bin --path checkpoints/average.pt
The same on a page in a browser, with the model's attention:
  pip install -c $(printf '%q' "$REPO")/constraints.txt gradio
  fairseq-ext demo $arch=checkpoints/average.pt --data bin
NEXT
}

# On one line: bash reads a script while it runs, and this one may be edited meanwhile.
main "$@"; exit
