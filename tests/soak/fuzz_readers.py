"""Every reader of users' texts under arbitrary input: documented errors only, in bounded memory.

``python -m tests.soak.fuzz_readers --json FILE`` gives each 100,000, in a process of its own.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from fairseq_ext.binary import scaling
from fairseq_ext.corpora import downloads, pair_texts, preparation, streams
from fairseq_ext.data_folder import manifest
from fairseq_ext.decoding import mbr
from fairseq_ext.evaluation import compare, outputs, plots, training_log
from fairseq_ext.text import byte_level, check_dictionary, check_text
from fairseq_ext.text.generated import Undoing
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import table_rows
from fairseq_ext.text.subwords import remove_bpe
from fairseq_ext.utils import json_files
from fairseq_ext.utils.errors import DataError
from tests.soak import fuzzing
from tests.soak.fuzzing import NASTY, NUMBERS, Reader, files, lines, slots, text, words

LOG = slots(
    "2026 | INFO | fairseq_cli.train | num. shared model params: # (num. trained: 1,000)",
    "… | INFO | train_inner | epoch 001:  # / # loss=#, ppl=#, num_updates=#, train_wall=#",
    "… | INFO | train | epoch # | loss # | ppl # | wpb # | num_updates # | train_wall #",
    "… | valid | epoch # | valid on 'valid' subset | loss # | bleu # | num_updates #",
    '{"epoch": #, "update": #, "loss": "#", "ppl": #, "num_updates": "#"}',
    '| {"epoch": #, "train_loss": "#", "train_wpb": "#", "train_num_updates": "#", '
    '"train_train_wall": "#"}',
    '{"epoch": #, "valid_loss": #, "valid_num_updates": #, "valid_bleu": [#]}',
)
GOOD_LOG = (
    "x | num. shared model params: 1,000 (num. trained: 1,000)\n"
    "x | train | epoch 001 | loss 8 | wpb 100 | num_updates 300 | train_wall 10\n"
    '{"epoch": 2, "train_loss": "6", "train_wpb": "50", "train_num_updates": "500", '
    '"train_train_wall": "15"}\n'
    '{"epoch": 2, "update": 1.5, "loss": "4", "num_updates": "400"}\n'
    "x | epoch 002 | valid on 'valid' subset | loss 7 | num_updates 500\n"
)
GENERATED = slots(
    *("S-#\tdas ist@@ s", "T-#\tthat <<unk>>", "H-#\t#\tthat is@@ s", "D-#\t#\tthat iss"),
    *("P-#\t# # #", "A-#\t#,# #,#", "A-#\t#-# #-1", "Translated # sentences"),
    "Translated # sentences (# tokens) in #s (# sentences/s, # tokens/s)",
)
GOOD_GENERATED = "".join(
    f"S-{i}\ta b@@ c\nT-{i}\tx y\nH-{i}\t-0.5\tx z\nD-{i}\t-0.5\tx z\nP-{i}\t-0.5 -0.5 -0.5\n"
    f"A-{i}\t0.5,0.25,0.25,0.0 0.25,0.25,0.25,0.25 0.0,0.0,0.0,1.0\n"
    for i in (1, 0)
)
ROW = slots('{"name": "a#", "encoder_parameters": #, "decoder_parameters": #, "loss": #}')
HEADING = "name encoder_parameters decoder_parameters loss train_loss\n"
GOOD_ROWS = ((1, 1, 5.0), (2, 1, 4.0), (4, 1, 3.5), (1, 2, 4.1), (1, 4, 3.6), (2, 2, 3.4))
MERGES = "#version: 0.2\nt h\nth e</w>\ni n\nin g</w>\n"
CSV = 'de,en\nja,yes\n"ein, zwei","one, ""two"""\n"a\nb","c"\n'
PAIRS = "one\teins\ntwo\tzwei\nthree\tdrei\n"
SGML = '<doc docid="1">\n<seg id="1"> Ja &amp; nein </seg>\n<url>x</url>\n<title>nicht</title>\n'
DICTIONARY = "the 10\nof 9\nand 8\n<unk> 7 #fairseq:overwrite\n"
MANIFEST = json.dumps(
    {"format": manifest.FORMAT, "version": 1, "files": {"a": {"bytes": 1, "sha256": "0" * 64}}}
)
RECORD = '{"settings": "x", "files": {"a": 1}, "report": {}, "version": "1", "total": 4}'
WORDS = ("a", "a b", "", " ", "é", "1", '"', "a@@ b", "\t", "'", "<seg id='1'>x</seg>", "#version")
PLAIN = lines(words("", (*WORDS, *NASTY)))
CELLS = lines(words("\t", WORDS))
ITEMS = words(",", ("{}", "[]", "1"))


def list_of_items(draw: Random) -> str:
    return f"[{ITEMS(draw)}]"


def read_log(folder: Path) -> None:
    with suppress(DataError):
        training_log.read_log(folder / "log")
    training_log.read_training(compare.read_text(folder / "log"))


def read_generated(folder: Path) -> None:
    compare.generation_speed(folder / "out")
    sentences = outputs.read_generated(folder / "out")
    [remove_bpe(line) for line in outputs.best_hypotheses(sentences)]
    for sentence in sentences:
        with suppress(DataError):
            plots.alignment(sentence, merge_bpe=True)


def read_samples(folder: Path) -> None:
    paths, text = (folder / "out", folder / "other"), folder / "source"
    mbr.read_candidates(paths, 2, Undoing.by_language(None), source=text, reads_source=True)


def read_table(folder: Path) -> None:
    (path,) = folder.iterdir()
    models = scaling.read_table(path)
    scaling.baseline(models)


def read_merges(folder: Path) -> None:
    step = Pipeline("de", "en", subwords="subword-nmt", files=(folder / "codes",)).encoder()
    step("the thing is 1 é")


def read_bytes(folder: Path) -> None:
    bpe = byte_level.ByteBPE.load(folder / "encoder.json", folder / "vocab.bpe")
    bpe.encode(["the é\0"])
    bpe.decode((folder / "ids").read_bytes().decode("utf-8", "replace").split())


def read_csv(folder: Path) -> None:
    list(table_rows(folder / "a.csv"))


def read_pairs(folder: Path) -> None:
    read_all_pairs(folder, folder / "a")
    read_all_pairs(folder, folder / "a", folder / "b")


def read_all_pairs(folder: Path, *paths: Path) -> None:
    """As `corpus pairs` does, in parts: of tab-separated lines, or of two aligned files."""
    text = pair_texts.Text("fuzzed", paths)
    for place, path in enumerate(paths):
        if path.suffix in pair_texts.PACKED:
            pair_texts.unpack(text, place, folder / pair_texts.unpacked_name(0, place))
    for part in pair_texts.cut_texts([text], folder, 3):
        list(pair_texts.read(text, part))


def read_raw(folder: Path) -> None:
    for form in streams.FORMS:
        list(streams.raw_pairs(folder / "a", folder / "b", form))


def read_records(folder: Path) -> None:
    record = folder / ".steps" / "a.json"
    record.parent.mkdir(exist_ok=True)
    record.write_bytes((folder / "a.json").read_bytes())
    preparation.Steps(folder).run("a", {}, [], dict)
    try:
        downloads._known(folder / "a.json")
    finally:
        downloads.Part(folder / "a")


def readers() -> list[Reader]:
    """All of them."""
    return [*_outputs(), *_tables(), *_subwords(), *_corpora(), *_data()]


def _outputs() -> Iterator[Reader]:
    """What training and generation wrote."""
    yield Reader("training logs", files(log=text(GOOD_LOG, lines(LOG))), read_log)
    generated = lines(GENERATED, 12)
    samples = text(GOOD_GENERATED, generated)
    other_hypotheses = text(GOOD_GENERATED.replace("x z", "y"), generated)
    sources = text("a bc\na bc\n", PLAIN)
    yield Reader("fairseq-generate's output", files(out=samples), read_generated)
    three = files(out=samples, other=other_hypotheses, source=sources)
    yield Reader("samples for mbr", three, read_samples)


def _subwords() -> Iterator[Reader]:
    record = files(a_json=text(RECORD, PLAIN, list_of_items))
    yield Reader("JSON", record, lambda folder: json_files.read_json(folder / "a.json"))
    yield Reader("merges of subword-nmt", files(codes=text(MERGES, CELLS)), read_merges)
    vocabulary = files(
        encoder_json=text(_encoder(), lambda draw: f"{{{ITEMS(draw)}}}"),
        vocab_bpe=text("#version: 0.2\nt h\nth e\n", lines(words(" ", WORDS))),
        ids=text(lines(words(" ", NUMBERS))),
    )
    yield Reader("byte-level vocabularies", vocabulary, read_bytes)


def _corpora() -> Iterator[Reader]:
    pairs = files(a_csv=text(CSV, lines(words(",", WORDS))))
    yield Reader("CSV pairs", pairs, read_csv)
    yield Reader("pair files", files(a=text(PAIRS, CELLS), b=text(PAIRS, CELLS)), read_pairs)
    sgml = files(a=text(SGML, CELLS), b=text(SGML, CELLS))
    yield Reader("pairs of IWSLT and WMT", sgml, read_raw)
    yield Reader("records of downloads", files(a_json=text(RECORD, list_of_items)), read_records)


def _data() -> Iterator[Reader]:
    """What goes into a data folder, and its manifest."""
    manifests = files(**{manifest.MANIFEST.replace(".", "_"): text(MANIFEST, PLAIN)})
    yield Reader("manifests of data folders", manifests, manifest.read)
    yield Reader(
        "texts for fairseq-preprocess",
        files(a=text(PAIRS, PLAIN)),
        lambda folder: check_text(folder / "a"),
    )
    yield Reader(
        "dictionaries",
        files(dict_txt=text(DICTIONARY, lines(slots("a #", "b# 1", "# #", "# 2")))),
        lambda folder: check_dictionary(folder / "dict.txt"),
    )


def _encoder() -> str:
    """A byte-level vocabulary."""
    alphabet = sorted(byte_level.pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, "th", "the", "<|endoftext|>"]
    return json.dumps({piece: id_ for id_, piece in enumerate(pieces)}, ensure_ascii=False)


def _tables() -> Iterator[Reader]:
    good = ", ".join(_row(*row) for row in GOOD_ROWS)
    grammar = lines(lambda draw: f"{ROW(draw)},", 6)
    table = text(f"[{good}]", lambda draw: f"[{grammar(draw).rstrip()[:-1]}]")
    yield Reader("scaling tables, JSON", files(t_json=table), read_table)
    for kind, mark in (("csv", ","), ("tsv", "\t")):
        heading = HEADING.replace(" ", mark)
        cells = lines(words(mark, (*NUMBERS, *WORDS), 6), head=heading)
        rows = (f"a{mark}{e}{mark}{d}{mark}{loss}{mark}\n" for e, d, loss in GOOD_ROWS)
        grammar = slots(f"a{mark}#{mark}#{mark}#{mark}#")
        table = text(heading + "".join(rows), cells, lines(grammar, head=heading))
        yield Reader(f"scaling tables, {kind.upper()}", files(**{f"t_{kind}": table}), read_table)


def _row(encoder: int, decoder: int, loss: float) -> str:
    return json.dumps(
        {"name": "a", "encoder_parameters": encoder, "decoder_parameters": decoder, "loss": loss}
    )


if __name__ == "__main__":
    fuzzing.run("fuzz_readers", __doc__, 100_000)
