"""Binarize training pairs in shards: folders with a common dictionary, read one in each epoch.

fairseq-train takes folders separated by colons, ``bin/000:bin/001:…``. It opens the next shard in
each epoch, so that an epoch of even the largest corpus begins at once. Pairs are dealt out to the
shards in turn, so each shard has pairs of every text. Validation and test sets are in the first
shard, where fairseq looks for them.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.base.wings import USER_DIR
from fairseq_ext.corpora import streams
from fairseq_ext.text import pipeline
from fairseq_ext.text.checks import check_parallel
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.files import require_file, sha256, writers
from fairseq_ext.utils.json_files import write_json
from fairseq_ext.utils.shared_folder import SharedFolder

HEAD = {"format": "fairseq-ext shards", "version": 1}
MOST = 400  # largest number of shards, because the files of all shards are open at once
OURS = (
    *("--user-dir", "--source-lang", "-s", "--target-lang", "-t", "--trainpref", "--validpref"),
    *("--testpref", "--destdir", "--srcdict", "--tgtdict", "--dict-only", "--only-source"),
)


@dataclass(frozen=True)
class Shards:
    """A text to binarize in ``count`` shards.

    The methods ``dictionary``, ``deal`` and ``shard`` are the stages of this work. Each ends by
    writing the file ``name`` into ``out``, which tells other workers that the stage is done.
    """

    text: Path  # folder with the tokens of `train`, and perhaps `valid` and `test`
    out: Path  # folder to write
    src: str
    tgt: str
    count: int
    flags: tuple[str, ...] = ()  # options of fairseq-preprocess, such as `--joined-dictionary`

    def _files(self, split: str) -> list[Path]:
        return [self.text / f"{split}.{side}" for side in (self.src, self.tgt)]

    def folders(self) -> list[Path]:
        """Return the folders of the shards, in order."""
        return [self.out / f"{number:03d}" for number in range(self.count)]

    def job(self) -> dict[str, object]:
        """Check the inputs and settings; return a record of them for the manifest of the folder.

        The record has ``inputs`` (names and checksums of the files), ``shards`` and ``flags``.
        """
        if not 1 <= self.count <= MOST:
            raise wrong_value("--shards", f"from 1 to {MOST}", self.count)
        for flag in self.flags:
            if flag.partition("=")[0] in OURS:
                raise ConfigError(f"`{flag}` is set by this command; leave it out.")
        inputs = [require_file(path, "training text") for path in self._files("train")]
        if check_parallel(*inputs, empty_lines=True, max_tokens=None, controls=False) < self.count:
            raise DataError(
                f"`{self.text}` has fewer training pairs than {self.count} shards; give a smaller "
                "`--shards`."
            )
        if (self.text / pipeline.FILE).is_file():
            inputs.append(self.text / pipeline.FILE)
        inputs += [path for split in ("valid", "test") for path in self._files(split)]
        records = [{"name": path.name, "sha256": sha256(path)} for path in inputs if path.is_file()]
        return {"inputs": records, "shards": self.count, "flags": list(self.flags)}

    # ---- stages ----------------------------------------------------------------------------------

    def _dealt(self, number: int) -> Path:
        return self.out / f".text-{number:03d}"

    def deal(self, name: str) -> None:
        """Write each shard's training pairs as text, dealt out to the shards in turn."""
        paths = []
        for number in range(self.count):
            folder = self._dealt(number)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            pipeline.copy(self.text, folder)
            paths += [folder / f"train.{side}" for side in (self.src, self.tgt)]
        with writers(paths) as files:
            pairs = streams.line_pairs(*self._files("train"))
            streams.deal(pairs, [*zip(files[::2], files[1::2], strict=True)])
        write_json(self.out / name, {})

    def dictionary(self, name: str) -> None:
        """Make the common dictionary of all shards from the tokens of all training pairs."""
        self._binarize(self.out / ".dictionary", "--trainpref", self.text / "train", "--dict-only")
        write_json(self.out / name, {})

    def shard(self, name: str) -> None:
        """Binarize the shard with the number in ``name``, such as ``shard-002.json``.

        The first shard also gets the validation and test sets.
        """
        number = int(Path(name).stem.rpartition("-")[2])
        sides = [("--srcdict", self.src), ("--tgtdict", self.tgt)]
        if "--joined-dictionary" in self.flags:
            sides = sides[:1]
        words: list[object] = []
        for option, side in sides:
            words += [option, self.out / ".dictionary" / f"dict.{side}.txt"]
        words += ["--trainpref", self._dealt(number) / "train"]
        for split in ("valid", "test") if number == 0 else ():
            if all(path.is_file() for path in self._files(split)):
                words += [f"--{split}pref", self.text / split]
        self._binarize(self.folders()[number], *words)
        write_json(self.out / name, {})
        shutil.rmtree(self._dealt(number), ignore_errors=True)

    def _binarize(self, folder: Path, *words: object) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "fairseq_cli.preprocess", "--user-dir", USER_DIR]
        command += ["--source-lang", self.src, "--target-lang", self.tgt, "--destdir", folder]
        done = subprocess.run(
            [str(word) for word in (*command, *words, *self.flags)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            message = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
            raise DataError(f"fairseq-preprocess: {message.partition('error: ')[2] or message}")


def write(shards: Shards) -> None:
    """Write all shards; processes that write to the same folder share the work."""
    folder = SharedFolder(shards.out, HEAD)
    names = [f"shard-{number:03d}.json" for number in range(shards.count)]
    folder.begin(shards.job())
    if folder.missing(names):
        folder.work(["dictionary.json"], shards.dictionary)
        folder.work(["deal.json"], shards.deal)
    folder.work(names, shards.shard)
    for left in (shards.out / ".dictionary", *shards.out.glob(".text-*")):
        shutil.rmtree(left, ignore_errors=True)
