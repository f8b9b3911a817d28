#!/usr/bin/env bash
# MUSE (Zhao et al., 2019) on WMT 2014, English → German: sections 3.1 to 3.2, and where the paper
# is silent, the commands that its authors published. What they say, and what this recipe does:
#
#   4.5M pairs, newstest2013 and 2014   fairseq-ext corpus wmt14_en_de, from WMT's own archives.
#                                       The authors took Google's ready "WMT16" files, whose news
#                                       commentary is of 2016: expect small differences
#   joint BPE of 32K                    32,000 merges, one dictionary of at most 32,768 entries
#   12 + 12 blocks, 768, 3072, 16       muse_wmt_en_de; --arch transformer_vaswani_wmt_en_de_big the
#     heads, kernels 3 and 15             baseline
#   batches of 3584, every 32 an        on one GPU an update every 128 batches, which have as many
#     update                              tokens as 32 batches on each of the authors' four GPUs
#   30K updates, rate 0.001, cosine,    one half-period of 20K after the warm-up. fairseq's cosine
#     warm-up 10K                         restarts at its end, which is where the training ends
#   dropout 0.3                         and 0.1 on attention and its input, in the architecture
#   average of tuned checkpoints        --average 10: of the last 10 epochs
#   beam 5, length penalty 0.6          the same
#   multi-bleu                          BLEU on tokens with compounds split, as the paper's 29.9;
#                                         without; and sacrebleu
#
# Paper: 29.9 BLEU, MUSE-simple 29.8.
# shellcheck source-path=SCRIPTDIR source=../official.sh
source "$(dirname "${BASH_SOURCE[0]}")/../official.sh"
# shellcheck disable=SC2034,SC2329  # official.sh uses them

corpus=wmt14_en_de src=en tgt=de
dictionary=(--joined-dictionary --nwordssrc 32768 --nwordstgt 32768)
arch=muse_wmt_en_de dropout=0.3
max_tokens=3584 update_freq=128 updates=30000 warmup=10000 lr=0.001
flags=(--share-all-embeddings --clip-norm 0 --save-interval-updates 1000
    --keep-interval-updates 1)
average=10 beam=5 lenpen=0.6 compounds=1
paper="29.9 BLEU on tokens with compounds split (MUSE-simple 29.8)"

choose_schedule() { cosine; }

main "$@"; exit
