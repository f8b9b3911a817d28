#!/usr/bin/env bash
# The ablations of the BMT paper's section 5 on any corpus: the scaling factor s (Figure 5a), and the
# norm and shortcut around the attention's output projection (Figure 5b).
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# shellcheck source-path=SCRIPTDIR source=rows.sh
source "$(dirname "${BASH_SOURCE[0]}")/rows.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/bmt/ablations.sh DATA_DIR SRC TGT [OPTION]...

  DATA_DIR        train, valid and test, each with the endings .SRC and .TGT

  --only FIGURE   figure to make: scale (5a) or output (5b)                 (both)
  --scales LIST   values of s        (1,2,4,8,16,32,64,128,256,512,1024,2048,4096)
  --outputs LIST  variants of the output projection  (plain,scale,layer,shortcut)
  --output-scale S  s of the variant `scale`                                  (64)
  --stages F,W,A  updates in float, with binary weights, and with binary activations
                  (2000,1000,1000); 5b has F updates in float, then W with binary weights
                  and activations
  --warmup N      updates at the start of each stage in which the rate rises  (100)
  --lr X          peak learning rate of each stage                            (0.002)
  --arch A        architecture of the family of `bmt`                         (bmt_tiny)
  --bpe N         joint byte-pair merges                                      (8000)
  --subwords K    kind of subwords (--bpe sets their number): bpe,
                  sentencepiece-unigram, sentencepiece-bpe, tokenizers        (bpe)
  --max-tokens N  tokens in a batch                                           (2000)
  --tokenize      tokenize as Moses does, and detokenize before sacrebleu
  --out DIR       shared data, and a folder for each model
                                              (runs/ablations-DATA_DIR-SRC-TGT)
  --help          this text

5a binarizes only the feed-forward network and divides its products by s; all values of s share one
float stage, which does not use s. 5b binarizes only the output projection; its variants are
separate models from the first update. Each figure also has a float model with as many updates. Two
calls with the same --out may run at the same time, each with its own --only. If stopped, the recipe
continues when run again. SMOKE=1 needs no DATA_DIR: it runs every step at a tiny size. DRY_RUN=1
only prints the commands.
HELP
}

only="" scales=1,2,4,8,16,32,64,128,256,512,1024,2048,4096 outputs=plain,scale,layer,shortcut
output_scale=64 stages=2000,1000,1000 warmup=100 lr=0.002 arch=bmt_tiny bpe=8000 max_tokens=2000
out=""

read_options() {
    read_arguments "--only= --scales= --outputs= --output-scale= --stages= --warmup= --lr= --arch= \
        --bpe= --subwords= --max-tokens= --out= --tokenize WORD" "$@"
    check_options
    choose_folders ablations
}

check_options() {
    local variant number='[1-9][0-9]*'
    check_vocabulary
    [[ "$only" =~ ^(|scale|output)$ ]] ||
        die "\`--only\` must be scale or output, but is \`$only\`."
    [[ "$stages" =~ ^$number,$number,$number$ ]] ||
        die "\`--stages\` must be three numbers of updates like 2000,1000,1000, but is \`$stages\`."
    [[ "$scales" =~ ^$number(,$number)+$ ]] ||
        die "\`--scales\` must be whole numbers like 1,8,64, but is \`$scales\`."
    positive --output-scale
    for variant in ${outputs//,/ }; do
        [[ "$variant" =~ ^(plain|scale|layer|shortcut)$ ]] ||
            die "\`--outputs\` must be of plain,scale,layer,shortcut, but names \`$variant\`."
    done
    IFS=, read -r float weights activations <<<"$stages"
}

sweep_scales() {
    local scale total=$((float + weights + activations))
    compare scale-float "$total" "$stages" -- --bmt-preset float
    compare stage-scale "$float" "$stages" -- --bmt-preset bmt-s
    for scale in ${scales//,/ }; do
        compare "scale-$scale" "$total" "$stages" --from stage-scale -- \
            --bmt-preset bmt-s --bmt-scale "$scale"
    done
}

vary_outputs() {
    local variant total=$((float + weights)) lengths="$float,0,$weights"
    compare output-float "$total" "$lengths" -- --bmt-preset float
    for variant in ${outputs//,/ }; do
        compare "output-$variant" "$total" "$lengths" -- --bmt-preset float \
            --binary-weights out --binary-activations out --bmt-attention-output "$variant" \
            --bmt-scale "$output_scale"
    done
}

# report FIGURE: writes the table and the picture.
report() { run python "$REPO/recipes/bmt/ablations.py" "$1" --dir "$out"; }

main() {
    if [[ "${SMOKE:-0}" == 1 ]]; then
        use_smoke_settings
        scales=1,64 outputs=plain,shortcut
    fi
    read_options "$@"
    use_environment "${modules[@]}"
    make_smoke_text
    if [[ "$only" != output ]]; then
        sweep_scales
        report scale
    fi
    if [[ "$only" != scale ]]; then
        vary_outputs
        report output
    fi
    dry || printf '\nEverything is in %s: scale.* and output.*, and the models\n' "$out"
}

main "$@"; exit
