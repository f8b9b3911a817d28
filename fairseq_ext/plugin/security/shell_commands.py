"""Close ways in which data could make fairseq run programs or code.

- The path of a FASTA data set becomes part of a shell command, so special characters are refused.
- The members of an archive given to ``from_pretrained`` could be unpacked anywhere, even over a
  start-up file of the user. They must stay inside the folder.
- The data configuration of a speech model can name a GitHub repository whose code ``torch.hub``
  would fetch and run. Only text is returned; for speech, the user must load that model explicitly.
"""

from __future__ import annotations

import shlex
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils.archives import write_member
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError

HUB = "fairseq.models.speech_to_text.hub_interface:S2THubInterface.get_prediction"


@around("fairseq.data.fasta_dataset:FastaDataset.__init__")
def _unquoted(original: Callable, self: Any, path: str, *rest: Any, **options: Any) -> None:
    self.threadlocal = threading.local()  # its destructor asks for it
    if shlex.quote(path) != path:
        raise DataError(
            f"the path of a FASTA data set must be of plain characters, but is {path!r}: "
            "fairseq makes it part of a shell command. Rename the folder."
        )
    original(self, path, *rest, **options)


@around("fairseq.file_utils:load_archive_file")
def _inside(original: Callable, archive_file: str) -> Any:
    before = tarfile.TarFile.extractall
    tarfile.TarFile.extractall = _extract_all  # type: ignore[method-assign, assignment]
    try:
        return original(archive_file)
    except (tarfile.TarError, ValueError) as error:
        raise CheckpointError(
            f"{archive_file} is damaged or unsafe: {error}. Do not use it."
        ) from error
    finally:
        tarfile.TarFile.extractall = before  # type: ignore[method-assign]


def _extract_all(tar: tarfile.TarFile, folder: str) -> None:
    for member in tar:
        write_member(tar, member, Path(folder))


@around(HUB)
def _text_alone(
    original: Callable,
    cls: type,
    task: Any,
    model: Any,
    generator: Any,
    sample: Any,
    tgt_lang: str | None = None,
    synthesize_speech: bool = False,
) -> Any:
    if synthesize_speech:
        raise ConfigError(
            "`synthesize_speech` must be False: the model's data configuration names a "
            "repository whose code would be fetched and run. Load that model yourself."
        )
    return original(cls, task, model, generator, sample, tgt_lang=tgt_lang)


PATCHES = (
    Patch(
        name="paths in a shell command",
        reason="the path of a FASTA data set becomes part of a shell command",
        layers=(_unquoted,),
    ),
    Patch(
        name="no program by a name from data",
        reason="an archive writes outside its folder, and a data configuration names code on "
        "GitHub to be run",
        layers=(_inside, _text_alone),
    ),
)
