#!/usr/bin/env bash
# MUSE (Zhao et al., 2019) on WMT 2014, English → French: sections 3.1 to 3.2, and where the paper
# is silent, the commands that its authors published. What they say, and what this recipe does:
#
#   36M pairs                           fairseq-ext corpus wmt14_en_fr: fairseq's protocol
#   newstest2012 and 2013 to validate,  the same (fairseq's own script would hold out every 1,333rd
#     newstest2014 to test                training pair instead)
#   joint BPE of 40K                    40,000 merges, one dictionary (the authors': 44,512 entries)
#   12 + 12 blocks, 768, 3072, 16       muse_wmt_en_fr; --arch transformer_vaswani_wmt_en_fr_big the
#     heads, kernels 3 and 15             baseline
#   batches of 5120, every 32 an        on one GPU an update every 128 batches, which have as many
#     update                              tokens as 32 batches on each of the authors' four GPUs
#   80K updates, rate 0.0007, cosine,   one half-period of 70K after the warm-up. fairseq's cosine
#     warm-up 10K                         restarts at its end: the authors' loss rose from 3.08 to
#                                         3.15 there. Here the training ends with it
#   dropout 0.1                         and 0.1 on attention and its input, in the architecture
#   no averaging, the last checkpoint   --average 1; --average 10 for the mean of the last 10 epochs
#   beam 5, length penalty 0.8          the same
#   multi-bleu                          BLEU on tokens, compounds whole; sacrebleu beside it
#
# Paper: 43.5 BLEU, MUSE-simple 43.2.
# shellcheck source-path=SCRIPTDIR source=../official.sh
source "$(dirname "${BASH_SOURCE[0]}")/../official.sh"
# shellcheck disable=SC2034,SC2329  # official.sh uses them

corpus=wmt14_en_fr src=en tgt=fr
dictionary=(--joined-dictionary)
arch=muse_wmt_en_fr dropout=0.1
max_tokens=5120 update_freq=128 updates=80000 warmup=10000 lr=0.0007
flags=(--share-all-embeddings --clip-norm 0 --save-interval-updates 1000
    --keep-interval-updates 1)
average=1 beam=5 lenpen=0.8
paper="43.5 BLEU on tokens (MUSE-simple 43.2)"

choose_schedule() { cosine; }

main "$@"; exit
