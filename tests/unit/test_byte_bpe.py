"""GPT-2's encoding as fairseq writes it, its dictionary; downloads and folders that are whole."""

import json
import random
import unicodedata
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from smoke import train
from wmt14_csv import dictionary_of

from fairseq_ext.text.byte_level import FILES, ByteBPE
from fairseq_ext.utils.files import staged_folder, writers
from tests.support.harness import run, write_lines
from tests.support.troubled_server import serving
from tests.unit.test_wmt14_csv import COMMAND, flat, write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("bpe"))


def odd_texts() -> list[str]:
    """Text in many scripts, contractions, digits, runs of spaces, and combining marks."""
    generator = random.Random(3)
    letters = [chr(c) for c in range(0x20, 0x3000) if unicodedata.category(chr(c))[0] in "LNPSMZ"]
    letters += list("中文字日本語😀🇩🇪") + [" "] * 500
    texts = ["".join(generator.choices(letters, k=generator.randrange(1, 60))) for _ in range(300)]
    return [*texts, "I'm  sure they'LL've 3,141 € <|endoftext|> <s> ", "a", "\u0085 "]


def test_ids_and_text_are_those_of_fairseqs_own_encoder(files: Path) -> None:
    ours = ByteBPE.load(files / FILES[0], files / FILES[1])
    theirs = get_encoder(str(files / FILES[0]), str(files / FILES[1]))
    texts = odd_texts()
    encoded = ours.encode(texts)
    assert encoded == [theirs.encode(text) for text in texts]
    for text, ids in zip(texts, encoded, strict=True):
        assert ours.decode(map(str, ids)) == flat(text)
        broken = ids[: len(ids) // 2 + 1]  # may end inside a character
        assert ours.decode(map(str, broken)) == flat(theirs.decode(broken))


def test_what_a_model_may_write_becomes_one_line(files: Path) -> None:
    bpe = ByteBPE.load(files / FILES[0], files / FILES[1])
    broken = " ".join(map(str, bpe.encode(["a\n\nb\u2028c"])[0]))
    written = f"<unk> {broken} madeupword0002 <mask> 99999"
    assert [bpe.decode(line.split()) for line in (written, "", "<unk>")] == ["a b c", "", ""]


def vocabulary(folder: Path, *options: str) -> ByteBPE:
    """An encoding as large as GPT-2's, with ``more`` entries."""
    train([write_lines(folder / "text", ["a b"])], 257, folder)
    ids = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))
    for piece in (*(f"piece{n}" for n in range(50_257 - len(ids))), *options):
        ids[piece] = len(ids)
    (folder / FILES[0]).write_text(json.dumps(ids), encoding="utf-8")
    return ByteBPE.load(folder / FILES[0], folder / FILES[1])


@pytest.mark.parametrize(
    "options", [(), ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "madeupword0000", "madeupword0001")]
)
def test_gpt2_and_bart_both_give_the_papers_dictionary(tmp_path: Path, options) -> None:
    path = write_lines(tmp_path / "dict.txt", dictionary_of(vocabulary(tmp_path, *options).ids))
    words = Dictionary.load(str(path))
    assert len(words) == 50_272
    assert words.symbols[4:6] == ["0", "1"]
    assert words.index("50256") == 50_260
    assert words.index("madeupword0002") == 50_263
    assert words.index("<mask>") == 50_264  # BART's own index
    assert len(set(words.symbols)) == 50_272


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_a_dictionary_is_filled_up_to_the_multiple(files: Path, multiple: int) -> None:
    bpe = ByteBPE.load(files / FILES[0], files / FILES[1])
    size = len(dictionary_of(bpe.ids, multiple)) + 4
    assert size % multiple == 0
    assert 0 <= size - (len(bpe.ids) + 5) < 2 * multiple


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (FILES[0], "{", r"line 1: not JSON"),
        (FILES[0], '{"a": "b"}', "must map pieces to ids"),
        (FILES[0], '{"a": 1, "b": 1}', "one id to two pieces"),
        (FILES[0], '{"a": 1}', "must have all 256 bytes as pieces, but lacks 255"),
        (FILES[1], "#version: 0.2\na b c\n", r"line 2: `a b c` is not two pieces"),
        (FILES[1], "#version: 0.2\n\nq zz\n", r"line 3: the piece `zz` is not in"),
    ],
)
def test_files_that_are_no_encoding_are_refused(tmp_path, files, name, text, message) -> None:
    for file in FILES:
        (tmp_path / file).write_text((files / file).read_text("utf-8"), encoding="utf-8")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        ByteBPE.load(tmp_path / FILES[0], tmp_path / FILES[1])
    assert str(tmp_path / name) in str(caught.value)


def test_training_again_gives_the_same_files(tmp_path: Path, files: Path) -> None:
    assert train([files / "text"], 400, tmp_path / "again") == 400
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (files / name).read_bytes()


def test_the_command_downloads(tmp_path: Path, files: Path) -> None:
    words = (*COMMAND, "--data", files, "--out", tmp_path / "out")
    with serving() as server:
        server.files.update({name: (files / name).read_bytes() for name in FILES})
        run(*words, "--url", server.address, "--download", tmp_path / "gpt2")
    for folder in ("gpt2", "out/bpe"):
        for name in FILES:
            assert (tmp_path / folder / name).read_bytes() == (files / name).read_bytes()


def write_both(left: Path, right: Path, fail: bool) -> None:
    with (
        staged_folder(left) as first,
        staged_folder(right) as second,
        writers([first / "x", second / "y"]) as files,
    ):
        files[0].write("text")
        if fail:
            raise ValueError("stop")


def test_folders_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    left, right = tmp_path / "a" / "one", tmp_path / "two"
    right.mkdir()
    with pytest.raises(ValueError, match="stop"):
        write_both(left, right, fail=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["two"]
    write_both(left, right, fail=False)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "one", "x", "two", "y"]
