#!/usr/bin/env bash
# Multi30k, English → German, with any architecture: 29,000 image descriptions, small enough to
# train a model to its end in under an hour on one GPU, and to learn something in an hour on a CPU.
#
#   corpus       fairseq-ext corpus multi30k: lower-cased, normalized, tokenized; 10,000 merges
#   model        by default fairseq's transformer with 4 + 4 layers, embeddings of 128, feed-forward
#                layers of 256, 4 heads and one embedding matrix: the "transformer tiny" of text-only
#                baselines, about 41 tokenized BLEU on the test set of 2016 in the literature
#   training     8,000 updates with batches of 4,096 tokens; the learning rate rises to 0.005 in 2,000
#                updates, then falls with the inverse square root; dropout 0.3
#   translation  average of the last 10 epochs, beam 5
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=official.sh
source "$(dirname "${BASH_SOURCE[0]}")/official.sh"
# shellcheck disable=SC2034,SC2329  # official.sh uses them

corpus=multi30k src=en tgt=de
arch=transformer dropout=0.3
dictionary=(--joined-dictionary)
max_tokens=4096 update_freq=1 updates=8000 warmup=2000 lr=0.005
flags=(--share-all-embeddings --clip-norm 1.0)
average=10 beam=5 lenpen=1 buckets=8,12,16,20
paper="about 41 BLEU on tokens for transformer tiny in the literature"

tiny=(--encoder-layers 4 --decoder-layers 4 --encoder-embed-dim 128 --decoder-embed-dim 128
    --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256
    --encoder-attention-heads 4 --decoder-attention-heads 4)

usage() {
    cat <<HELP
Usage: bash recipes/multi30k.sh [--tok] [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

  --tok            the files as their authors tokenized them, not the raw ones; must come first
  --arch A         architecture of the plugin or of fairseq     ($arch of tiny size)
  --mirror M       folder or address with the files of github.com/multi30k/dataset, data/task1:
                   raw/*.gz or, with --tok, tok/*.lc.norm.tok.*
  --data DIR       folder of the corpus, made once for all runs (runs/data/$corpus)
  --any-counts     accept another edition of the corpus, with other numbers of pairs
  --bpe N          joint byte-pair merges; 0 for words          (10000)
  --max-tokens N   target tokens in a batch                     ($max_tokens)
  --update-freq N  batches in an update                         ($update_freq)
  --updates N      training updates                             ($updates)
  --warmup N       updates until the peak learning rate         ($warmup)
  --dropout F      dropout                                      ($dropout)
  --average N      average the last N epochs; 1: the last checkpoint  ($average)
  --out DIR        folder for all output                        (runs/$corpus-ARCH)
  --help           this text
  -- FLAG...       more flags for fairseq-train, which override the recipe's

SMOKE=1 needs no files and takes a tiny corpus of the shipped sentences. DRY_RUN=1 only prints the
commands. If stopped, the recipe continues when run again.
HELP
}

choose_schedule() {
    inverse_sqrt
    [[ "$arch" != transformer ]] || flags+=("${tiny[@]}")
}

if [[ "${1:-}" == --tok ]]; then
    corpus=multi30k_tok
    shift
fi
# On one line: bash reads a script while it runs, and this one may be edited meanwhile.
main "$@"; exit
