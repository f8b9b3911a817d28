# shellcheck shell=bash
# Check a user's own text, before a recipe installs, trains or moves anything, and list the outputs
# of several seeds. Source this after lib.sh.

# own_text OPTION FOLDER SRC TGT: prints the folder's path from the root; dies unless it holds train,
# valid and test text in both languages. A dry run prints the path of a folder that need not exist.
own_text() {
    local folder split side others=""
    [[ "$1" != --* ]] || others="; \`--src\` and \`--tgt\` name others"
    [[ "$3" != "$4" ]] || die "source and target language are both \`$3\`; choose two."
    if dry; then
        absolute "$2"
        return
    fi
    folder="$(cd "$2" 2>/dev/null && pwd)" ||
        die "\`$1\` must be a folder with train, valid and test text, but \`$2\` cannot be entered."
    for split in train valid test; do
        for side in "$3" "$4"; do
            [[ -f "$folder/$split.$side" ]] || die "\`$folder\` has no file \`$split.$side\`; it must" \
                "hold train, valid and test, each with the endings .$3 and .$4 of the two" \
                "languages$others."
        done
    done
    printf '%s\n' "$folder"
}

# outputs FOLDER: prints the paths of a model's translations, also of the seeds in FOLDER@2 …
outputs() {
    local seed list="$1/generated.txt"
    for ((seed = 2; seed <= seeds; seed++)); do
        { ! dry && [[ ! -e "$1@$seed/.stages/evaluate" ]]; } || list+=",$1@$seed/generated.txt"
    done
    printf '%s\n' "$list"
}
