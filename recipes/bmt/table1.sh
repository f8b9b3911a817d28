#!/usr/bin/env bash
# Rows of the BMT paper's Table 1 on any corpus: one float stage, and from it a branch for each row.
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# shellcheck source-path=SCRIPTDIR source=rows.sh
source "$(dirname "${BASH_SOURCE[0]}")/rows.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/bmt/table1.sh DATA_DIR SRC TGT [OPTION]... [PRESET...]

  DATA_DIR        train, valid and test, each with the endings .SRC and .TGT
  PRESET          rows: float bmt-1 … bmt-8 xnor-base bmt-s (float bmt-1 bmt-2 bmt-3 bmt-6 xnor-base)

  --stages F,W,A  updates in float, with binary weights, and with binary activations if the row
                  has any (2000,1000,1000)
  --warmup N      updates at the start of each stage in which the rate rises  (100)
  --lr X          peak learning rate of each stage                            (0.002)
  --arch A        architecture of the family of `bmt`                         (bmt_tiny)
  --bpe N         joint byte-pair merges                                      (8000)
  --subwords K    kind of subwords (--bpe sets their number): bpe,
                  sentencepiece-unigram, sentencepiece-bpe, tokenizers        (bpe)
  --max-tokens N  tokens in a batch                                           (2000)
  --tokenize      tokenize as Moses does, and detokenize before sacrebleu
  --out DIR       shared data, and a folder for each model   (runs/table1-DATA_DIR-SRC-TGT)
  --help          this text

All rows are trained for the same number of updates. Rows with other layers than BMT's (xnor-base,
bmt-s) have a float stage of their own. Two calls with the same --out may run at the same time, each
with its own presets, once the float stage is finished. If stopped, the recipe continues when run
again. SMOKE=1 needs no DATA_DIR: it runs every step at a tiny size, with the rows float, bmt-6 and
xnor-base. DRY_RUN=1 only prints the commands.
HELP
}

stages=2000,1000,1000 warmup=100 lr=0.002 arch=bmt_tiny bpe=8000 max_tokens=2000 out=""
presets=(float bmt-1 bmt-2 bmt-3 bmt-6 xnor-base)

read_options() {
    read_arguments "--stages= --warmup= --lr= --arch= --bpe= --subwords= --max-tokens= --out= \
        --tokenize WORD" "$@"
    check_vocabulary
    [[ "$stages" =~ ^[1-9][0-9]*,[1-9][0-9]*,[1-9][0-9]*$ ]] ||
        die "\`--stages\` must be three numbers of updates like 2000,1000,1000, but is \`$stages\`."
    ((${#operands[@]} <= 3)) || presets=("${operands[@]:3}")
    operands=("${operands[@]:0:3}")
    choose_folders table1
    IFS=, read -r float weights activations <<<"$stages"
}

main() {
    local preset stem
    if [[ "${SMOKE:-0}" == 1 ]]; then
        use_smoke_settings
        presets=(float bmt-6 xnor-base)
    fi
    read_options "$@"
    use_environment "${modules[@]}"
    make_smoke_text
    for preset in "${presets[@]}"; do
        case "$preset" in
        xnor-base | bmt-s) stem="stage-$preset" ;;
        *) stem=stage-float ;;
        esac
        compare "$stem" "$float" "$stages" -- --bmt-preset "${preset/#bmt-[0-9]/float}"
        compare "$preset" "$((float + weights + activations))" "$stages" --from "$stem" -- \
            --bmt-preset "$preset"
    done
    dry && exit
    python "$REPO/recipes/bmt/ablations.py" table1 --dir "$out"
}

main "$@"; exit
