# shellcheck shell=bash disable=SC2034  # the scripts that source this use them
# The architectures at matched size, for compare_all.sh, all_systems.sh and tatoeba.sh: architecture
# and flags by name. With a joint vocabulary of 4,000 pieces each has some 1.85 million parameters.

tiny="--share-all-embeddings --encoder-layers 4 --decoder-layers 4 \
--encoder-embed-dim 128 --decoder-embed-dim 128 \
--encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
--encoder-attention-heads 4 --decoder-attention-heads 4"

# fairseq's convolutions, with the kernels of their paper; they are in the plugin's tables because
# the MUSE paper compares with them.
convolutions="lightconv ${tiny//-ffn-embed-dim 256/-ffn-embed-dim FFN} \
--encoder-kernel-size-list 3,7,15,31 --decoder-kernel-size-list 3,7,15,31"

deep="transformer $tiny --encoder-layers 12 --decoder-layers 1 --encoder-ffn-embed-dim 96"

declare -A matched=(
    [transformer]="transformer $tiny"
    [transformer-12-1]="$deep"
    [transformer-12-1-prenorm]="$deep --encoder-normalize-before --decoder-normalize-before"
    [lightconv]="${convolutions//FFN/320} --encoder-conv-type lightweight \
--decoder-conv-type lightweight"
    [dynamicconv]="${convolutions//FFN/288} --encoder-conv-type dynamic --decoder-conv-type dynamic"
    [gru]="gru_attention --share-all-embeddings --encoder-embed-dim 128 --decoder-embed-dim 128 \
--encoder-hidden-size 216 --decoder-hidden-size 216"
    [lstm]="lstm --share-all-embeddings --encoder-bidirectional --encoder-embed-dim 128 \
--decoder-embed-dim 128 --decoder-out-embed-dim 128 --encoder-hidden-size 200 \
--decoder-hidden-size 200"
    [linformer]="linformer_tiny --share-all-embeddings"
    [muse]="muse_tiny --share-all-embeddings --encoder-ffn-embed-dim 160 --decoder-ffn-embed-dim 160"
    [muse-simple]="muse_tiny --share-all-embeddings --muse-kernels none"
    [bmt]="bmt_tiny $tiny --attention-dropout 0 --activation-dropout 0" # as in the other systems
    [binary]="binary_transformer_tiny $tiny --binary-weights qkv,out,ffn"
    [ternary]="binary_transformer_tiny $tiny --binary-weights ternary"
)
