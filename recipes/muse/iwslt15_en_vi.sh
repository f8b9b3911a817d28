#!/usr/bin/env bash
# MUSE (Zhao et al., 2019) on IWSLT 2015, English → Vietnamese: sections 3.1 to 3.2. The authors
# published no commands for this task; where the paper is silent, those of German → English stand in.
#
#   133K pairs, tst2012 and tst2013      fairseq-ext corpus iwslt15_en_vi: Stanford's files, which
#                                        are Moses tokens already, in their own case
#   dictionaries of 17.2K and 6.8K       words that occur 5 times or more, as in Stanford's lists
#     words, no BPE                        (17.2K and 7.7K). The authors' script makes 10,000 joint
#                                          merges instead: --bpe 10000
#   12 + 12 blocks, 384, 768, 4 heads,   muse_iwslt_en_vi; --arch transformer_iwslt_de_en the
#     kernels 3 and 15                     baseline
#   batches of 4K, every 4 an update     --max-tokens 4000 --update-freq 4, on one GPU
#   10K updates, rate 0.001, warm-up 4K  the same
#   average of the last 10 checkpoints   --average 10: of the last 10 epochs
#   beam 5, length penalty 1             the same
#   multi-bleu                           BLEU on tokens; sacrebleu beside it
#
# Paper: 31.3 BLEU, MUSE-simple 30.7.
# shellcheck source-path=SCRIPTDIR source=../official.sh
source "$(dirname "${BASH_SOURCE[0]}")/../official.sh"
# shellcheck disable=SC2034,SC2329  # official.sh uses them

corpus=iwslt15_en_vi src=en tgt=vi
folder=text # words
arch=muse_iwslt_en_vi dropout=0.3
max_tokens=4000 update_freq=4 updates=10000 warmup=4000 lr=0.001
flags=(--weight-decay 0.0001 --clip-norm 25)
average=10 beam=5 lenpen=1
paper="31.3 BLEU on tokens (MUSE-simple 30.7)"

choose_schedule() {
    inverse_sqrt
    [[ "$folder" != text ]] || dictionary=(--thresholdsrc 5 --thresholdtgt 5)
}

main "$@"; exit
