"""Add synthetic pairs, with one side written by a model: back-translation and distillation.

:func:`write_side` writes the text for the model to translate, and :func:`run` adds the synthetic
pairs. The pairs are plain text, so the model may have any pipeline; the steps in the corpus's
``text.json`` turn them into tokens. Pairs are streamed, so memory does not grow with the text.
"""

import shutil
from itertools import islice
from pathlib import Path

from fairseq_ext.corpora import SPLITS, streams
from fairseq_ext.corpora.command_lines import MixOptions, MonolingualOptions
from fairseq_ext.corpora.streams import KEPT, Encode, Tally
from fairseq_ext.text import checks, pipeline
from fairseq_ext.text.cleaning import escape_controls
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import lines
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.files import writers
from fairseq_ext.utils.json_files import write_json

REPORT = "synthetic.json"


def run(options: MixOptions) -> str:
    """Write a copy of a corpus with synthetic pairs in its training text; return a summary."""
    if options.tag and options.tag.split() != [options.tag]:
        raise wrong_value("--tag", "one word, or empty", options.tag)
    if escape_controls(options.tag) != options.tag:
        raise ConfigError(f"`--tag {options.tag}` is a symbol of fairseq's; choose another word.")
    text_pipeline = pipeline_of(options.data, options.src, options.tgt)
    checks.check_parallel(options.source, options.target, empty_lines=True, max_tokens=None)
    rules = (f"length=1:{options.longest}", f"ratio={options.ratio}", "token=1000", "different")
    work = Encode(text_pipeline, rules, tag=options.tag)
    sides = (options.src, options.tgt)
    train = [files.require_file(options.data / f"train.{side}", "text file") for side in sides]
    checks.check_parallel(*train, empty_lines=True, max_tokens=None)
    names = [f"{split}.{side}" for split in SPLITS for side in sides]
    names = [name for name in names if (options.data / name).exists()]
    read = [options.source, options.target, *(options.data / name for name in names)]
    files.keep_inputs(read, [options.out / name for name in names])
    with files.staged_folder(options.out) as stage:
        with writers([stage / path.name for path in train]) as opened:
            for _ in range(options.copies):
                streams.deal(streams.line_pairs(*train), [opened])
            pairs, tally = streams.line_pairs(options.source, options.target), Tally()
            streams.deal(work.kept_pairs(pairs, options.workers, tally), [opened])
        if not (options.copies or KEPT in tally):
            raise DataError("no pair is left to train on; give `--copies`, or a higher `--ratio`.")
        for name in names[len(train) :]:
            shutil.copyfile(options.data / name, stage / name)
        text_pipeline.save(stage)
        total = sum(counts[0] for counts in tally.values())
        report = {"read": total, "fates": tally, "copies": options.copies}
        write_json(stage / REPORT, report)
    dropped = "".join(f"; {why}: {counts[0]:,}" for why, counts in tally.items() if why != KEPT)
    return f"{tally.get(KEPT, [0])[0]:,} of {total:,} synthetic pairs kept{dropped}"


def write_side(options: MonolingualOptions) -> str:
    """Write one side of a corpus, or other text, as plain text to translate; return a summary."""
    data, src, tgt, language = options.data, options.src, options.tgt, options.language
    if options.text is None and data and src and tgt and language:
        decode = pipeline_of(data, src, tgt).decoder(language)
        path = files.require_file(data / f"train.{language}", "text file")
    elif options.text is not None and not (data or src or tgt or language):
        decode, path = str, options.text
    else:
        raise ConfigError(
            "give `--data`, `--src`, `--tgt` and `--language`, or only `--text` instead of them."
        )
    files.keep_inputs([path], [options.out])
    checks.check_text(path, empty_lines=True, max_tokens=None)
    count = 0
    with files.atomic_write(options.out) as file:
        for _, line in islice(lines(path), options.skip, None):
            file.write(decode(line) + "\n")
            count += 1
        if not count:
            raise DataError(f"{path} has no line after the first {options.skip:,}; skip fewer.")
    return f"{options.out}: {count:,} lines"


def pipeline_of(folder: Path, src: str, tgt: str) -> Pipeline:
    """Load the pipeline of a corpus, for ``src`` → ``tgt``; refuse a folder without a pipeline."""
    text_pipeline = pipeline.load_towards(folder, src, tgt)
    if text_pipeline is None:
        raise DataError(
            f"{folder} has no {pipeline.FILE} for {src} and {tgt}; give a folder that "
            "`fairseq-ext corpus` or `fairseq-ext subwords` wrote."
        )
    return text_pipeline
