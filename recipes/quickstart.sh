#!/usr/bin/env bash
# Install everything, make a corpus, train, translate, score and show the result.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh" # the shipped models' sizes

usage() {
    cat <<'HELP'
Usage: bash recipes/quickstart.sh [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

Installs everything into .venv (unless the active Python environment already works), trains a
translation model on the Spanish and English sentences that come with the package (Tatoeba,
CC BY 2.0 FR), and shows after each validation how the model now translates one sentence. Then it
translates the test set and ends with scores, sample translations, two pictures, and a table that
compares the model with a larger one that comes with the package. After the installation this takes
some 6 minutes on two CPU cores. If stopped at any point, it continues when run again.

  --arch A       architecture of the plugin or of fairseq           (gru_attention)
  --src L        source language                                    (es)
  --tgt L        target language                                    (en)
  --data DIR     your own text instead: train, valid and test, each with the
                 endings .SRC and .TGT, one sentence per line
  --tokenize     tokenize --data as Moses does, and undo it in translations
  --updates N    training updates                                   (1600)
  --bpe N        joint byte-pair merges                             (4000)
  --subwords K   kind of subwords (--bpe sets their number): bpe, sentencepiece-unigram,
                 sentencepiece-bpe, tokenizers; none: words         (bpe)
  --out DIR      folder for all output               (runs/quickstart-SRC-TGT-ARCH;
                 with --data runs/quickstart-DATA-SRC-TGT-ARCH)
  --help         this text
  -- FLAG...     more flags for fairseq-train, which override the recipe's

SMOKE=1 runs everything at a tiny size, in under a minute. DRY_RUN=1 only prints the commands.
OMP_NUM_THREADS is the number of CPU threads (2).
HELP
}

# The settings of an ordinary run, and smaller ones with which every step still makes sense.
arch=gru_attention src=es tgt=en data="" tokenize="" out="" subwords=bpe
updates=1600 bpe=4000 pairs=(--valid 300 --test 1000) name=quickstart
if [[ "${SMOKE:-0}" == 1 ]]; then
    updates=20 bpe=200 pairs=(--sample 400,40,40) name=smoke
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi

# read_options ARGUMENT...: sets the globals above and `interval`.
read_options() {
    read_arguments "--arch= --src= --tgt= --data= --updates= --bpe= --subwords= --out= --tokenize --" "$@"
    positive --updates --bpe
    check_subwords "$subwords"
    [[ "$src" != "$tgt" ]] || die "\`--src\` and \`--tgt\` are both \`$src\`; choose two languages."
    [[ -z "$tokenize" || -n "$data" ]] || die "\`--tokenize\` goes with \`--data\`."
    if [[ -n "$data" ]]; then
        data="$(own_text --data "$data" "$src" "$tgt")"
    else
        [[ "$src $tgt" =~ ^(es en|en es)$ ]] || die "the sentences that come with the package are" \
            "Spanish and English; for $src and $tgt give your own with \`--data\`."
        tokenize=--tokenize
    fi

    out="$(absolute "${out:-$REPO/runs/$name-${data:+$(basename "$data")-}$src-$tgt-$arch}")"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
    # Some sixteen checkpoints in a run; the last five are kept, to go on from and to average.
    interval=$((updates < 100 ? (updates + 4) / 5 : updates > 8000 ? 500 : updates / 16))
}

# pairs/ has the shipped sentences as they are written; text/ has their tokens, or the user's text.
make_text() {
    [[ -n "$data" ]] || run fairseq-ext corpus tatoeba "${pairs[@]}" --out pairs
    run fairseq-ext prepare --data "${data:-pairs}" --src "$src" --tgt "$tgt" \
        --out text ${tokenize:+"$tokenize"}
}

# Two test sentences of medium length become a test set of their own, for the picture of the
# attention. They are decoded one by one, because padding shifts the attention of fairseq's `lstm`.
learn_subwords() {
    local side middling='NR == FNR { if (NF >= 8 && NF <= 14 && n < 2) { chosen[FNR]; n++ }; next }'
    split_into_subwords "$bpe" "$src" "$tgt" "$subwords"
    for side in "$src" "$tgt"; do
        into "bpe/picture.$side" awk "$middling FNR in chosen || FNR == 1 && !n" \
            "text/test.$src" "bpe/test.$side"
    done
}

# Small batches matter most here: in the same time, larger ones learn far less. At each validation the
# validation set is translated, greedily, and the terminal shows one of its sentences.
train_model() {
    local pieces=subword_nmt detok=space samples=() shape=()
    [[ "$subwords" != sentencepiece-* ]] || pieces=sentencepiece
    [[ -z "$tokenize" ]] || detok=moses
    [[ "$subwords" == tokenizers ]] || samples=(--eval-bleu --eval-bleu-print-samples
        --eval-bleu-remove-bpe "$pieces" --eval-bleu-detok "$detok"
        --eval-bleu-detok-args "{\"source_lang\": \"$src\", \"target_lang\": \"$tgt\"}"
        --eval-bleu-args '{"beam": 1, "max_len_a": 1.5, "max_len_b": 10}' --batch-size-valid 100)
    [[ "$arch" != gru_attention ]] || read -ra shape <<<"${matched[gru]#* }"
    train checkpoints --arch "$arch" "${shape[@]}" --dropout 0.1 "${samples[@]}" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr 3e-3 --lr-scheduler polynomial_decay --total-num-update "$updates" \
        --warmup-updates $((updates / 12)) --max-update "$updates" \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --max-tokens 800 --num-workers 0 --seed 1 \
        --log-interval $((interval < 100 ? interval : 100)) \
        --no-epoch-checkpoints --save-interval-updates "$interval" --keep-interval-updates 5 "${extra[@]}"
}

translate() {
    generate checkpoints/average.pt generated.txt --gen-subset test --beam 5 --max-tokens 4000
    local keep=() # text that comes as tokens is compared as tokens
    [[ -n "$tokenize" ]] || keep=(--keep-tokens)
    run fairseq-ext hypotheses generated.txt -o "hyp.$tgt" "${keep[@]}"
}

# compare_with_shipped: compares with the shipped model of the same languages on the same sentences,
# which were not in its training text either.
compare_with_shipped() {
    into "shipped.$tgt" fairseq-ext translate --model "tatoeba-$src-$tgt" --input "pairs/test.$src"
    quietly compare.log fairseq-ext compare --ref "pairs/test.$tgt" \
        --system "quickstart=text:hyp.$tgt,checkpoint=checkpoints/average.pt,log=checkpoints/train.log" \
        --system "tatoeba-$src-$tgt=text:shipped.$tgt,checkpoint=$REPO/models/tatoeba-$src-$tgt" \
        -o compare
}

draw() {
    run fairseq-ext plot curves --log "$arch=checkpoints/train.log" -o curves.png
    # Some stock architectures give no attention; then only this picture is missing.
    if generate checkpoints/average.pt aligned.txt --gen-subset test1 --batch-size 1 --beam 5 \
        --print-alignment soft; then
        run fairseq-ext plot alignment aligned.txt --index 0 -o alignment.png --remove-bpe
    else
        log "no picture of the attention: \`$arch\` does not give it (see $out/aligned.txt.log)"
    fi
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    cat <<SETTINGS
arch=$arch
src=$src
tgt=$tgt
updates=$updates
bpe=$bpe$([[ "$subwords" == bpe ]] || printf '\nsubwords=%s' "$subwords")
pairs=${pairs[*]}
tokenize=$tokenize
data=$data
sums=$([[ -z "$data" ]] || cat "$data"/{train,valid,test}.{"$src","$tgt"} 2>/dev/null | cksum)
flags=${extra[*]}
SETTINGS
}

main() {
    read_options "$@"
    use_environment sacremoses "${SUBWORDS[$subwords]}"
    check_architecture "$arch" "${extra[@]}"
    open_run "$out" "$(settings)"
    stage corpus make_text
    stage bpe learn_subwords
    stage binarize binarize bpe "$src" "$tgt" --joined-dictionary --testpref bpe/test,bpe/picture
    stage train train_model
    stage average average_last 4
    stage translate translate
    stage score run fairseq-ext score --ref "${data:-pairs}/test.$tgt" --hyp "hyp.$tgt" \
        --json scores.json
    stage draw draw
    [[ -n "$data" ]] || stage compare compare_with_shipped
    dry && exit
    python "$REPO/recipes/report.py" --dir . --text "${data:-pairs}" --src "$src" --tgt "$tgt" \
        --title "$src → $tgt, $arch, beam 5, $(wc -l <"text/test.$tgt") unseen sentences"
    if [[ -z "$data" ]]; then
        printf '\nThis model, and the one that comes with the package:\n'
        sed -n '/^|/p; /^## /q' compare.md
    fi
    list_results results.md compare.md curves.png alignment.png checkpoints/average.pt
    show_next
}

# Prints commands that use the trained model, ready to be pasted.
show_next() {
    local sentence activate=""
    sentence="$(sed "s/'//g;1q" "${data:-pairs}/test.$src")"
    [[ -z "${VIRTUAL_ENV:-}" ]] || activate=" && . $(printf '%q' "$VIRTUAL_ENV")/bin/activate"
    cat <<NEXT

Translate a sentence of yours:
  cd $(printf '%q' "$PWD")$activate
  echo '$sentence' | fairseq-ext translate bin --path checkpoints/average.pt
The same on a page in a browser, with the model's attention:
  fairseq-ext demo $arch=checkpoints/average.pt --data bin
NEXT
}

main "$@"; exit
