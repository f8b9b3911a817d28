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

own_usage='  --tok            the files as their authors tokenized them, not the raw ones; must come first.
                   --mirror has the files of github.com/multi30k/dataset, data/task1: raw/*.gz
                   or, with --tok, tok/*.lc.norm.tok.*. The transformer is of tiny size.
'

choose_schedule() {
    inverse_sqrt
    [[ "$arch" != transformer ]] || flags+=("${tiny[@]}")
}

if [[ "${1:-}" == --tok ]]; then
    corpus=multi30k_tok
    shift
fi
main "$@"; exit
