"""Fuzz every reader of users' texts, which may raise documented errors only, in bounded memory."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_ext.binary import scaling_law
from fairseq_ext.corpora import downloads, official, pair_texts, streams
from fairseq_ext.data_folder import indexed
from fairseq_ext.decoding import mbr
from fairseq_ext.evaluation import compare, outputs, plots, training_log
from fairseq_ext.text import byte_level, reading
from fairseq_ext.text.checks import check_dictionary, check_text
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import remove_bpe
from fairseq_ext.utils import json_files
from fairseq_ext.utils.errors import DataError
from tests.support.fuzzing import Reader, damaged, files, text

LOG = (
    "x | num. shared model params: 1,000 (num. trained: 1,000)\n"
    "x | train_inner | epoch 001:  1 / 3 loss=9, ppl=512, num_updates=100, train_wall=4\n"
    "x | train | epoch 001 | loss 8 | ppl 256 | wpb 100 | num_updates 300 | train_wall 10\n"
    '{"epoch": 2, "update": 1.5, "loss": "4", "ppl": 16, "num_updates": "400"}\n'
    '| {"epoch": 2, "train_loss": "6", "train_wpb": "50", "train_num_updates": "500", '
    '"train_train_wall": "15"}\n'
    "x | epoch 002 | valid on 'valid' subset | loss 7 | bleu 20 | num_updates 500\n"
    '{"epoch": 2, "valid_loss": 7, "valid_num_updates": 500, "valid_bleu": [1]}\n'
)
GENERATED = "".join(
    f"S-{i}\ta b@@ c\nT-{i}\tx <<unk>>\nH-{i}\t-0.5\tx z\nD-{i}\t-0.5\tx z\n"
    f"P-{i}\t-0.5 -0.5 -0.5\n"
    f"A-{i}\t0.5,0.25,0.25,0.0 0.25,0.25,0.25,0.25 0.0,0.0,0.0,1.0\n"
    for i in (1, 0)
)
GENERATED += "Translated 2 sentences (6 tokens) in 0.1s (20.00 sentences/s, 60.00 tokens/s)\n"
HARD = re.sub(r"(A-\d\t).*", r"\g<1>0-0 1-1", GENERATED)
HEADING = "name encoder_parameters decoder_parameters loss train_loss\n"
MODELS = ((1, 1, 5.0), (2, 1, 4.0), (4, 1, 3.5), (1, 2, 4.1), (1, 4, 3.6), (2, 2, 3.4))
MERGES = "#version: 0.2\nt h\nth e</w>\ni n\nin g</w>\n"
CSV = 'de,en\nja,yes\n"ein, zwei","one, ""two"""\n"a\nb","c"\n'
PAIRS = "one\teins\ntwo\tzwei\nthree\tdrei\n"
SGML = '<doc docid="1">\n<seg id="1"> Ja &amp; nein </seg>\n<url>x</url>\n<title>nicht</title>\n'
DICTIONARY = "the 10\nof 9\nand 8\n<unk> 7 #fairseq:overwrite\n"
MANIFEST = json.dumps(
    {"format": indexed.FORMAT, "version": 1, "files": {"a": {"bytes": 1, "sha256": "0" * 64}}}
)
RECORD = '{"settings": "x", "files": {"a": 1}, "report": {}, "version": "1", "total": 4}'


def read_log(folder: Path) -> None:
    with suppress(DataError):
        training_log.read_log(folder / "log")
    training_log.read_training(folder / "log")


def read_generated(folder: Path) -> None:
    compare.generation_speed(folder / "out")
    sentences = outputs.read_generated(folder / "out")
    [remove_bpe(line) for line in outputs.best_hypotheses(sentences)]
    for sentence in sentences:
        with suppress(DataError):
            plots.alignment(sentence, merge_bpe=True)


def read_samples(folder: Path) -> None:
    paths, text = (folder / "out", folder / "other"), folder / "source"
    mbr.read_candidates(paths, 2, Postprocessor.by_language(None), source=text, reads_source=True)


def read_table(folder: Path) -> None:
    (path,) = folder.iterdir()
    scaling_law.baseline(scaling_law.read_table(path))


def read_merges(folder: Path) -> None:
    step = Pipeline("de", "en", subwords="subword-nmt", files=(folder / "codes",)).encoder()
    step("the thing is 1 é")


def read_bytes(folder: Path) -> None:
    bpe = byte_level.ByteBPE(folder / "encoder.json", folder / "vocab.bpe")
    bpe.encode(["the é\0"])
    bpe.decode((folder / "ids").read_bytes().decode("utf-8", "replace").split())


def read_pairs(folder: Path) -> None:
    pairs_of(folder, folder / "a")
    pairs_of(folder, folder / "a", folder / "b")


def pairs_of(folder: Path, *files: Path, **how: Any) -> list[tuple[str, str]]:
    """Read the sentence pairs of a file, or of two aligned files, in parts of two lines."""
    text = pair_texts.Text("pairs", files, **how)
    for place, path in enumerate(files):
        if pair_texts.is_packed(text, path):
            pair_texts.unpack(text, place, folder / pair_texts.unpacked_name(0, place))
    parts = pair_texts.cut_texts([text], folder, 2)
    return [pair for part in parts for pair in pair_texts.read(text, part)]


def read_raw(folder: Path) -> None:
    for form in streams.FORMS:
        list(streams.raw_pairs(folder / "a", folder / "b", form))


def read_records(folder: Path) -> None:
    record = folder / ".steps" / "a.json"
    record.parent.mkdir(exist_ok=True)
    record.write_bytes((folder / "a.json").read_bytes())
    official.do_once(folder, "a", {}, [], dict)
    try:
        downloads._known(folder / "a.json")
    finally:
        downloads.Part(folder / "a")


def table(mark: str) -> str:
    """A table of models as text, with ``mark`` between cells."""
    rows = (f"a{mark}{e}{mark}{d}{mark}{loss}{mark}\n" for e, d, loss in MODELS)
    return HEADING.replace(" ", mark) + "".join(rows)


def readers() -> list[Reader]:
    names = HEADING.split()
    objects = json.dumps([dict(zip(names, ("a", *row), strict=False)) for row in MODELS])
    alphabet = sorted(byte_level.pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, "th", "the", "<|endoftext|>"]
    encoder = json.dumps({piece: id_ for id_, piece in enumerate(pieces)}, ensure_ascii=False)
    generated, pairs, sgml = text(GENERATED, HARD), text(PAIRS), text(SGML)
    other, merges = text(GENERATED.replace("x z", "y")), text("#version: 0.2\nt h\nth e\n")
    samples = files(out=generated, other=other, source=text("a bc\na bc\n"))
    vocabulary = files(encoder_json=text(encoder), vocab_bpe=merges, ids=text("1 2 3\n4\n"))
    manifests = files(**{indexed.MANIFEST.replace(".", "_"): text(MANIFEST)})
    record = files(a_json=text(RECORD, "[{}, [], 1]"))
    return [
        Reader("training logs", files(log=text(LOG)), read_log),
        Reader("fairseq-generate's output", files(out=generated), read_generated),
        Reader("samples for mbr", samples, read_samples),
        Reader("scaling tables, JSON", files(t_json=text(objects)), read_table),
        Reader("scaling tables, CSV", files(t_csv=text(table(","))), read_table),
        Reader("scaling tables, TSV", files(t_tsv=text(table("\t"))), read_table),
        Reader("JSON", record, lambda folder: json_files.read_json(folder / "a.json")),
        Reader("merges of subword-nmt", files(codes=text(MERGES)), read_merges),
        Reader("byte-level vocabularies", vocabulary, read_bytes),
        Reader(
            *("CSV pairs", files(a_csv=text(CSV))),
            lambda folder: list(reading.table_rows(folder / "a.csv")),
        ),
        Reader("pair files", files(a=pairs, b=pairs), read_pairs),
        Reader("pairs of IWSLT and WMT", files(a=sgml, b=sgml), read_raw),
        Reader("records of downloads", record, read_records),
        Reader("manifests of data folders", manifests, indexed.read_manifest),
        Reader(
            *("texts for fairseq-preprocess", files(a=damaged(pairs))),
            lambda folder: check_text(folder / "a"),
        ),
        Reader(
            *("dictionaries", files(dict_txt=text(DICTIONARY))),
            lambda folder: check_dictionary(folder / "dict.txt"),
        ),
    ]
