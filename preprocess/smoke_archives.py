#!/usr/bin/env python
"""Make small stand-ins for a corpus's official archives, with the same names, members and formats.

    python preprocess/smoke_archives.py --corpus iwslt14_de_en --pairs pairs --out mirror

The folder ``pairs`` has the sentences, such as ``train.de`` and ``train.en``.
"""

import argparse
import gzip
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.corpora.catalogue import CORPORA

TALK = 20  # sentences in a talk
ABOUT = (
    "<url>http://127.0.0.1/{0}</url>\n<keywords>talks, {0}</keywords>\n<talkid>{0}</talkid>\n"
    "<title>{1}</title>\n"
)


def tagged(lines: Sequence[str]) -> str:
    """Return sentences in the format of IWSLT's training file, with tags about each talk."""
    text = []
    for number in range(0, len(lines), TALK):
        title, *rest = lines[number : number + TALK]
        text += [ABOUT.format(number, title), *(f" {line}\n" for line in rest)]
    return "".join(text)


def segments(lines: Sequence[str]) -> str:
    """Return sentences in the format of IWSLT's and WMT's development and test sets."""
    inner = "".join(f'<seg id="{i}"> {line} </seg>\n' for i, line in enumerate(lines, 1))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<doc docid="1">\n{inner}</doc>\n'


def plain(lines: Sequence[str]) -> str:
    """Return sentences as plain text, one per line."""
    return "".join(f"{line}\n" for line in lines)


FORMS = {"tagged": tagged, "segments": segments, "lines": plain}


def write_archives(name: str, pairs: Path, out: Path) -> None:
    """Write the archives of corpus ``name`` to ``out``, with sentences of the folder ``pairs``."""
    corpus = CORPORA[name]
    members: dict[str | None, dict[str, bytes]] = {}
    sets = [("train", corpus.train), ("test", corpus.test)]
    if not isinstance(corpus.valid, int):
        sets.insert(1, ("valid", corpus.valid))
    sets += [("test", (source,)) for source in corpus.more_tests]
    for split, sources in sets:
        for place, language in enumerate((corpus.src, corpus.tgt)):
            lines = (pairs / f"{split}.{language}").read_text(encoding="utf-8").split("\n")[:-1]
            for number, source in enumerate(sources):
                file = source.files(corpus.src, corpus.tgt)[place]
                data = FORMS[source.form](lines[number :: len(sources)]).encode()
                data = gzip.compress(data, mtime=0) if file.endswith(".gz") else data
                members.setdefault(source.archive, {})[file] = data
    out.mkdir(parents=True, exist_ok=True)
    for archive, files in members.items():
        if archive is None:
            for address, data in files.items():
                (out / address.rpartition("/")[2]).write_bytes(data)
        else:
            pack(out / archive.rpartition("/")[2], files)


def pack(path: Path, files: dict[str, bytes]) -> None:
    """Write a tar file with these files, compressed if ``path`` ends in ``.tgz`` or ``.gz``."""
    with tarfile.open(path, "w:gz" if path.suffix in (".tgz", ".gz") else "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--corpus", choices=sorted(CORPORA), required=True, help="name of the corpus"
    )
    parser.add_argument("--pairs", type=Path, required=True, help="folder with the text")
    parser.add_argument("--out", type=Path, required=True, help="folder for the archives")
    args = parser.parse_args()
    write_archives(args.corpus, args.pairs, args.out)


if __name__ == "__main__":
    main()
