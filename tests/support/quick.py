"""List the files of `bash tests/run.sh --quick`: tests of every room, in less than a minute.

pytest imports no other files. In each file, tests marked `system` or `long` are left out.
`test_house.py` demands that the files use every room (top folder or module) of the package.
"""

from pathlib import Path

FILES = (
    "tests/unit/test_house.py",
    # text, corpora and data folders
    "tests/unit/test_pipeline.py",
    "tests/unit/test_corpus_list.py",
    # architectures: layers against the papers' equations, and one line of each in the laws
    *sorted(str(path) for path in Path("tests/models").glob("test_*_layers.py")),
    "tests/models/test_laws.py",
    # checkpoints, the engine, training and the plugin
    "tests/unit/test_first_sentence.py",
    "tests/unit/test_checkpoint_layout.py",
    "tests/unit/test_dictionaries.py",
    "tests/unit/test_shortlist.py",
    "tests/models/test_hub.py",
    "tests/unit/test_engine_products.py",
    "tests/unit/test_products.py",
    "tests/unit/test_data_folder.py",
    # translating and scoring
    "tests/unit/test_length_penalty.py",
    "tests/unit/test_mbr.py",
    "tests/unit/test_serving.py",
    "tests/unit/test_evaluation.py",
    # commands and recipes
    "tests/commands/test_cli.py",
    "tests/commands/test_doctor.py",
    "tests/recipes/test_launch.py",
)
SLOW_FIXTURES = {"copy_data", "quiet_page", "server", "trained"}
"""Fixtures that start processes, most of them to train a model."""
SLOW_TESTS = {
    "test_overfits_one_batch",
    "test_the_names_of_runs_cover_nothing",
    "test_curves_are_drawn",
    "test_alignment_is_drawn_with_every_letter",
    "test_a_letter_that_the_font_lacks_is_drawn_by_one_that_has_it",
    "test_sentencepiece_keeps_what_cleaning_keeps",
    "test_scores_stay_bounded_at_32768_tokens",
}
"""A quarter of the time of all quick tests: trainings, pictures, subwords, and a long sentence."""
LEFT_OUT = """\
--quick leaves out: fairseq's commands and ours as processes (tests/commands), trainings, recipes,
variants of architectures, pictures, learning subwords with SentencePiece, a sentence of 32,768
tokens, the bundle, the demo with its page, fuzzing, kills and full disks.
Before you open a pull request: bash tests/run.sh, or .ci/run with the checks of style."""


def files() -> list[str]:
    """Return the files that exist; `test_house.py` reports missing ones."""
    return [name for name in FILES if Path(name).is_file()]


if __name__ == "__main__":
    print("\n".join(files()))
