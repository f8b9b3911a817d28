"""Pairs out of gettext's catalogues, translation memories, help pages and test sets of WMT."""

import gettext
import gzip
import io
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fairseq_ext.corpora import translation_files
from fairseq_ext.corpora.markup import Rules
from fairseq_ext.corpora.readers import (
    FORMAT_NAMES,
    Reader,
    Segment,
    catalogues,
    is_language,
    two_files,
    xml_files,
)
from fairseq_ext.utils.errors import FairseqExtError
from tests.support.harness import command, leaves_no_trace

HEADER = r"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

"""
CATALOGUE = (
    HEADER
    + r"""# a comment
#: file.c:1
msgctxt "menu"
msgid "&Open \"%s\""
msgstr "„%s“ ö&ffnen"

msgid ""
"Two "
"lines\n"
msgstr "Zwei Zeilen\n"

#, fuzzy, c-format
msgid "A guess"
msgstr "Geraten"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#, fuzzy
#~ msgid "gone"
#~ msgstr "fort"
msgid "Nothing"
msgstr ""
"""
)


def pairs(segments: Iterable[Segment]) -> list[tuple[str, str]]:
    return [(segment.source, segment.target) for segment in segments]


def read(reader: Reader, *files: Path, src: str = "en", tgt: str = "de") -> list[Segment]:
    return list(reader(files, src, tgt))


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def compiled(messages: dict[str, str]) -> bytes:
    """Return a .mo file, as msgfmt lays it out."""
    keys = sorted(messages)
    texts = [key.encode() for key in keys] + [messages[key].encode() for key in keys]
    start = 28 + 16 * len(keys)
    entries, body = [], b""
    for text in texts:
        entries += [len(text), start + len(body)]
        body += text + b"\0"
    head = struct.pack("<7I", catalogues.MAGIC, 0, len(keys), 28, 28 + 8 * len(keys), 0, start)
    return head + struct.pack(f"<{len(entries)}I", *entries) + body


def test_a_catalogue_gives_messages_plurals_and_faults(tmp_path: Path) -> None:
    segments = read(catalogues.po, write(tmp_path / "de.po", CATALOGUE))
    assert pairs(segments) == [
        ('&Open "%s"', "„%s“ ö&ffnen"),
        ("Two lines\n", "Zwei Zeilen\n"),
        ("A guess", "Geraten"),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
        ("Nothing", ""),
    ]
    assert [segment.fault for segment in segments] == ["", "", "fuzzy", "", "", ""]


def test_a_catalogue_is_read_in_the_charset_of_its_header(tmp_path: Path) -> None:
    text = CATALOGUE.replace("UTF-8", "ISO-8859-1").replace("„%s“", "'%s'")
    path = write(tmp_path / "de.po", text, "iso-8859-1")
    assert read(catalogues.po, path)[0].target == "'%s' ö&ffnen"


def test_a_compiled_catalogue_is_what_python_reads(tmp_path: Path) -> None:
    header = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=n != 1;\n"
    content = compiled(
        {"": header, "menu\x04Open": "Öffnen", "%d file\0%d files": "%d Datei\0%d Dateien"}
    )
    translations = gettext.GNUTranslations(io.BytesIO(content))
    assert translations.pgettext("menu", "Open") == "Öffnen"
    path = tmp_path / "de.mo"
    path.write_bytes(content)
    expected = [("%d file", "%d Datei"), ("%d files", "%d Dateien"), ("Open", "Öffnen")]
    assert pairs(read(catalogues.mo, path)) == expected


@pytest.mark.parametrize(
    ("code", "language", "same"),
    [
        ("de", "deu", True),
        ("ger-AT", "de", True),
        ("PT_br", "pt", True),
        ("por_Latn_BR", "pt-latn", True),
        ("pt", "pt-BR", False),
        ("zh-TW", "zh-CN", False),
        ("den", "de", False),
        ("", "de", False),
    ],
)
def test_codes_stand_for_languages(code: str, language: str, same: bool) -> None:
    assert is_language(code, language) == same


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("Language: fr", "in fr, not de"),
        ("Language: den_CA", "in den_CA, not de"),
        ("Language: de_AT.UTF-8", ""),
        ("Language: de@hebrew", ""),
        ("Language: de-Latn-DE", ""),
        ("Language:", ""),
        ("Language-Team: fr", ""),
    ],
)
def test_a_catalogue_in_another_language_is_left_out(tmp_path: Path, line: str, fault: str) -> None:
    header = f"{line}\nContent-Type: text/plain; charset=UTF-8\n"
    (tmp_path / "a.mo").write_bytes(compiled({"": header, "Yes": "?"}))
    po = "".join(f'"{part}\\n"\n' for part in header.splitlines())
    write(tmp_path / "a.po", f'msgid ""\nmsgstr ""\n{po}\n#, fuzzy\nmsgid "Yes"\nmsgstr "?"\n')
    for reader, path, other in ((catalogues.mo, "a.mo", ""), (catalogues.po, "a.po", "fuzzy")):
        (segment,) = read(reader, tmp_path / path)
        assert segment.fault == (fault or other)


TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu tuid="7"><tuv xml:lang="en-US"><seg>Press <bpt i="1">&lt;b&gt;</bpt>OK<ept i="1">x</ept>.</seg>
</tuv>
<tuv xml:lang="de"><seg>Drücken Sie <bpt i="1">y</bpt>OK<ept i="1">z</ept>.</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only English</seg></tuv></tu>
</body></tmx>"""


def test_a_memory_gives_units_that_have_both_languages(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tmx", TMX)
    expected = [("Press <bpt/>OK<ept/>.", "Drücken Sie <bpt/>OK<ept/>.")]
    assert pairs(read(xml_files.tmx, path)) == expected
    path = write(tmp_path / "b.tmx", TMX.replace('"1.0"', '"1.0" encoding="utf-16"'), "utf-16")
    assert pairs(read(xml_files.tmx, path)) == expected
    (tmp_path / "c.TMX.gz").write_bytes(gzip.compress(TMX.encode()))
    ((name, path),) = translation_files.files([tmp_path / "c.TMX.gz"], None)
    assert (name, pairs(read(xml_files.tmx, path))) == ("tmx", expected)
    message = "has no pairs of en and fr; its languages are: en-US"
    with pytest.raises(FairseqExtError, match=message):
        read(xml_files.tmx, path, tgt="fr")


XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="f" source-language="en" target-language="de-DE"><body>
<trans-unit id="1"><source>Save <g id="1">it</g></source><target><g id="1">Es</g> sichern</target>
</trans-unit><trans-unit id="2"><source>New</source><target state="needs-translation">New</target>
</trans-unit></body></file></xliff>"""
XLIFF_2 = """<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en"
trgLang="de"><file id="f"><group id="g"><unit id="1"><segment><source>Save <g>it</g></source>
<target><g>Es</g> sichern</target></segment><segment><source>New</source></segment></unit></group>
</file></xliff>"""


@pytest.mark.parametrize("content", [XLIFF_1, XLIFF_2])
def test_both_versions_of_xliff(tmp_path: Path, content: str) -> None:
    first, second = read(xml_files.xliff, write(tmp_path / "a.xlf", content))
    assert first == Segment("Save <g>it</g>", "<g>Es</g> sichern", "f")
    assert second.fault == "not translated"


def test_the_language_of_a_text_in_xliff_goes_before_that_of_its_file(tmp_path: Path) -> None:
    units = [
        "<source>Yes</source><target>Oui</target>",
        '<source>No</source><target xml:lang="de-AT">Nein</target>',
        '<source xml:lang="it">Si</source><target xml:lang="de">Ja</target>',
    ]
    body = "".join(f"<trans-unit>{unit}</trans-unit>" for unit in units)
    file = f'<file source-language="en" target-language="fr">{body}</file>'
    path = write(tmp_path / "a.xlf", f"<xliff>{file}</xliff>")
    assert pairs(read(xml_files.xliff, path, tgt="fr")) == [("Yes", "Oui")]
    assert pairs(read(xml_files.xliff, path)) == [("No", "Nein")]
    assert pairs(read(xml_files.xliff, path, src="it")) == [("Si", "Ja")]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ('<x id="1" ctype="lb"/>', "a<br/>b"),
        ('<ph id="1" type="fmt" subType="xlf:lb"/>', "a<br/>b"),
        ('<ph type="lb">\\n</ph>', "a<br/>b"),
        ('<ph x="1">&lt;br/&gt;</ph>', "a<br/>b"),
        ('<ph x="1"> &lt;BR clear="all"&gt;</ph>', "a<br/>b"),
        ('<ph x="1">&lt;img/&gt;</ph>', "a<ph/>b"),
        ('<ph id="lb"/>', "a<ph/>b"),
        ('<g ctype="bold">&lt;br&gt;</g>', "a<g><br></g>b"),
    ],
)
def test_codes_for_line_breaks(code: str, text: str) -> None:
    element = ElementTree.fromstring(f"<seg>a{code}b</seg>")
    assert xml_files.marked_text(element, xml_files.CODES) == text


@pytest.mark.parametrize(
    ("around", "inner", "fault"),
    [
        ("", 'translate="no"', "not translated"),
        ('translate="no"', "", "not translated"),
        ('translate="no"', 'translate="yes"', ""),
        ('translate="yes"', "", ""),
    ],
)
def test_xliff_says_what_not_to_translate(tmp_path, around, inner, fault) -> None:
    text = "<source>Yes</source><target>Ja</target>"
    segment = f"<segment>{text}</segment>"
    for body in (
        f"<file id='f'><group {around}><trans-unit {inner}>{text}</trans-unit></group></file>",
        f"<file id='f'><group {around}><unit {inner}>{segment}</unit></group></file>",
        f"<file id='f' {around}><group><unit {inner}>{segment}</unit></group></file>",
        f"<file id='f'><unit {around}><segment {inner}>{text}</segment></unit></file>",
    ):
        path = write(tmp_path / "a.xlf", f'<xliff srcLang="en" trgLang="de">{body}</xliff>')
        assert read(xml_files.xliff, path) == [Segment("Yes", "Ja", "f", fault)]


SGM = '<{0}set srclang="any">\n<doc docid="{1}">\n<seg id="1">{2}</seg>\n</doc>\n</{0}set>\n'


def test_test_sets_of_wmt(tmp_path: Path) -> None:
    source = write(tmp_path / "n-src.en.sgm", SGM.format("src", "bbc", "Tea &amp; milk"))
    target = write(tmp_path / "n-ref.de.sgm", SGM.format("ref", "bbc", "Tee & Milch"))
    assert read(two_files.sgm, source, target) == [Segment("Tea & milk", "Tee & Milch", "bbc")]
    write(target, SGM.format("ref", "cnn", "Tee"))
    with pytest.raises(FairseqExtError, match=r"bbc, segment 1 where .* has cnn, segment 1"):
        read(two_files.sgm, source, target)
    write(target, "".join(SGM.format("ref", "bbc", text) for text in ("Tee", "Grog", "Tee")))
    further = Segment("", "", "bbc", "a further reference")
    segments = read(two_files.sgm, source, target)
    assert segments == [further, further, Segment("Tea & milk", "Tee", "bbc")]
    write(source, "<doc><seg id='1'>A</seg></doc>\n<doc><seg id='1'>B</seg></doc>\n")  # nameless
    assert pairs(read(two_files.sgm, source, source)) == [("A", "A"), ("B", "B")]
    spread = "<DOC docid='a'><seg id='1'>A</seg></DOC><DOC docid='b'><seg id='1'>B</seg>\n<seg\n"
    spread += "id='2'>\r\nC\r&lt;\n\nD\n</seg><!-- <seg id='0'>\n\n<doc docid='z'> -->"
    spread += "<seg id='9'/></DOC><DOC docid='c'><seg id='1'>E</seg></DOC>"
    write(source, spread)
    expected = [("a", "A"), ("b", "B"), ("b", "C\r<  D"), ("b", ""), ("c", "E")]
    segments = read(two_files.sgm, source, source)
    assert [(segment.document, segment.target) for segment in segments] == expected


def test_newer_test_sets_of_wmt(tmp_path: Path) -> None:
    """They have a first and a second translator, and segments numbered in each paragraph."""
    sides = "".join(
        f'<{tag}><p><seg id="1">{word} 1</seg></p><p><seg id="1">{word} 2</seg></p></{tag[:3]}>'
        for tag, word in (
            ('src lang="en"', "Line"),
            ('ref lang="de" translator="A"', "Zeile"),
            ('ref lang="de" translator="B"', "Linie"),
        )
    )
    document = write(tmp_path / "n.xml", f'<dataset><doc id="d">{sides}</doc></dataset>')
    lines = [Segment(f"Line {number}", f"Zeile {number}", "d") for number in (1, 2)]
    assert read(xml_files.wmt_xml, document) == lines


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x\n<seg id='1'>a\n<seg id='2'>b</seg>\n", "line 2: this <seg> has no </seg>"),
        ("x\n<seg id='1'>a</seg>\n<seg id='2'>b", "line 3: this <seg> has no </seg>"),
        ("<seg id='1'>" + "\n" * 100_001, "line 1: this <seg> has no </seg>"),
        ("<doc docid='a'>", "has no <seg id="),
        ("<seg id='1'>a</seg>\n<!--", "line 2: this comment has no"),
    ],
)
def test_segments_of_sgm_that_do_not_end(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path / "a.sgm", content)
    with pytest.raises(FairseqExtError, match=message):
        read(two_files.sgm, path, path)


def test_help_pages_are_joined_by_page_and_id(tmp_path: Path) -> None:
    page = '<p id="a">One <em>A</em><br></p><p id="b">Two &lt;</p><p id="c">3</p><p id="c">4</p>'
    for name, text in (("en", page), ("de", '<h1 id="a">Eins <em>A</em></h1><p id="c">3</p>')):
        (tmp_path / name / "x").mkdir(parents=True)
        write(tmp_path / name / "x" / "1.html", text)
    segments = read(two_files.help_pages, tmp_path / "en", tmp_path / "de")
    assert segments[0] == Segment("One <em>A</em><br/>", "Eins <em>A</em>", "x/1.html")
    faults = ["no paragraph with its id in the translation", "two paragraphs have its id"]
    assert [segment.fault for segment in segments[1:]] == faults


@pytest.mark.parametrize(
    ("rules", "source", "target", "result"),
    [
        ({}, "&Open", "Ö&ffnen", ("Open", "Öffnen")),
        ({}, "_Save As", "Speichern _unter", ("Save As", "Speichern unter")),
        ({}, "&Edit", "編集(&E)", ("Edit", "編集")),
        *(
            ({}, source, target, (source, target))
            for source, target in (
                ("AT&T sells", "AT&T verkauft"),
                ("The R&D team", "Die F&E-Gruppe"),
                ("file my_name here", "Datei my_name hier"),
                ("Save snake_case names", "snake_case-Namen speichern"),
                ("at https://e.org/?a=1&b=2 now", "jetzt auf https://e.org/?a=1&b=2"),
                ("?q=%s&lang=de in it", "?q=%s&lang=de darin"),
                ("?q=&lang=de in it", "?q=&lang=de darin"),
                ("at e.org/?q=a+&b=2", "auf e.org/?q=a+&b=2"),
                ("AT&T &lt; R&D", "AT&T &lt; F&E"),
                ("E_xport my_file", "E_xportieren"),
                ("1 < 2 and 3 > 2", "1 < 2 und 3 > 2"),
                ("%s of %d", "%2$d von %1$s"),
                ("100% sure", "100% sicher"),
                ("the file_name is %(my_name)s", "file_name: %(my_name)s"),
            )
        ),
        ({}, "E&xit", "B&eenden", ("Exit", "Beenden")),
        ({}, "E&XIT", "B&EENDEN", ("EXIT", "BEENDEN")),
        ({}, "F&ormat…", "F&ormat…", ("Format…", "Format…")),
        ({}, "<section>a</section><title>b</title>", "<para>A</para>B", ("a b", "A B")),
        ({}, "&About AT&T", "Ü&ber AT&T", ("About AT&T", "Über AT&T")),
        ({}, "x&lt;y: &Open", "x&lt;y: Ö&ffnen", ("x&lt;y: Open", "x&lt;y: Öffnen")),
        ({}, "a <emph>b</emph>", "<emph>B</emph> A", ("a b", "B A")),
        ({}, "a<br>b<BR/>c", "<p>A</p><p class='x'>B</p><h1>C</h1>", ("a b c", "A B C")),
        ({}, "<ul><li>a</li><li>b <i>c</i></li></ul>", "<td>A</td><td>B</td>", ("a b c", "A B")),
        ({}, "sub<b>word</b>s, <pre-x>a</pre-x>b", "<param/>a<p:x/>b", ("subwords, ab", "ab")),
        ({"markup": "keep"}, "a <b>b</b>", "<b>B</b>", ("a <b>b</b>", "<b>B</b>")),
        ({"markup": "keep"}, "a <b>b</b>", "B", "mark-up differs"),
        ({"markup": "leave-out"}, "a <b>b</b>", "<b>B</b>", "mark-up"),
        ({}, "%s of %d", "%s", "placeholders differ"),
        ({}, "{name}: {0}", "{0} {nome}", "placeholders differ"),
        ({"placeholders": "leave-out"}, "%s", "%s", "placeholders"),
        ({"mnemonics": "keep"}, "&Open", "Ö&ffnen", ("&Open", "Ö&ffnen")),
        ({"mnemonics": "leave-out"}, "&Open", "Ö&ffnen", "mnemonic"),
        ({}, "<br/>", "<br/>", "an empty side"),
    ],
)
def test_marks_have_rules(rules: dict, source: str, target: str, result: object) -> None:
    texts, reason = Rules(**rules).apply(source, target)
    if isinstance(result, str):
        assert reason == result
    else:
        assert (texts, reason) == (result, "")


def test_the_command_writes_pairs_and_a_record(tmp_path: Path) -> None:
    folder, out = tmp_path / "catalogues", tmp_path / "pairs.tsv"
    folder.mkdir()
    for name in ("a.po", "b.po"):
        write(folder / name, CATALOGUE)
    options = ("--src", "en", "--tgt", "de", "--licence", "CC0-1.0", "--domain", "manual")
    printed = command("corpus", "translations", folder, *options, "-o", out)
    assert "12 read, 4 written" in printed
    assert out.read_text(encoding="utf-8").splitlines()[0] == 'Open "%s"\t„%s“ öffnen\ta.po'
    record = json.loads((tmp_path / "pairs.tsv.json").read_text(encoding="utf-8"))
    assert (record["licence"], record["domain"]) == ("CC0-1.0", "manual")
    left_out = {"left out: fuzzy": 2, "left out: an empty side": 2, "left out: repeated": 4}
    assert record["counts"] == {"read": 12, "written": 4, **left_out}


WRONG_PLURALS = f'{HEADER}msgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\n'
GAP_IN_PLURALS = b'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\nmsgstr[2] "d"\n'
LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 20}">' for n in range(1, 9))
BOMB = f'<!DOCTYPE x [<!ENTITY a0 "haha">{LAUGHS}]><tmx><tu>&a8;</tu></tmx>'
EMPTY_XLIFF = """<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="1">
<ignorable><source> </source></ignorable></unit></file></xliff>"""
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "/etc/passwd">]><tmx><tu>&a;</tu></tmx>'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tmx", BOMB.encode(), "limit on input amplification factor"),
        ("a.tmx", OUTSIDE.encode(), "undefined entity &a;"),
        ("a.tmx", b"<tmx><tu>", "damaged or not XML"),
        ("a.tmx.gz", gzip.compress(b"<tmx><tu>", mtime=0)[:-9], "is damaged or unsafe"),
        ("a.tmx", b'<?xml version="1.0" encoding="klingon"?><tmx/>', "damaged or not XML"),
        ("a.xlf", b"\xff\xfe\x00", "damaged or not XML"),
        ("a.xlf", EMPTY_XLIFF.encode(), "a.xlf` has no segments to read; export it"),
        ("a.xlf", b'<xliff><file source-language="en"/></xliff>', "has no segments to read"),
        ("a.tmx", b"<tmx><header/><body/></tmx>", "a.tmx` has no segments to read; export it"),
        ("a.po", b'msgid "a\xff"\nmsgstr "b"\n', "cannot be read as utf-8 ('utf-8' codec"),
        ("a.po", b'"charset=klingon"\n', "read as klingon (unknown encoding"),
        ("a.po", b'"charset=undefined"\n', "cannot be read as undefined ("),
        ("a.po", b'msgid "a\nmsgstr "b"\n', "line 1: not gettext's syntax"),
        ("a.po", b'msgid "a"\n\nmsgid "b"\nmsgstr "c"\n', "line 3: a second `msgid`"),
        ("a.po", b'msgstr "b"\n', "an entry without `msgid`"),
        ("a.po", WRONG_PLURALS.encode(), "plural forms [0] have gaps, or are not as many"),
        ("a.po", GAP_IN_PLURALS, "plural forms [0, 2] have gaps, or"),
        ("a.po", WRONG_PLURALS.replace("=2;", f"={10**12};").encode(), "plural forms"),
        ("a.po", b'msgid "a"\nmsgstr "%s"\n' % (b"x" * 200_000), "line 1: 200,000 characters"),
        ("a.mo", b"no catalogue at all, but long enough", "damaged or not a .mo file"),
        ("a.mo", struct.pack("<5I", catalogues.MAGIC, 0, 9, 28, 100), "damaged or not a .mo file"),
        ("a.docx", b"", "has no file ending in .po"),
        ("a.PO", b"", "no pair is left: the files have none; check them"),
        ("a.sgm", b"", "use `--source` and `--target`"),
    ],
)  # fmt: skip
def test_bad_files_are_named_and_nothing_is_written(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    options = ("--src", "en", "--tgt", "de", "-o", tmp_path / "out.tsv")
    leaves_no_trace(tmp_path, message, "corpus", "translations", tmp_path / name, *options)


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a\n")
    longer = write(tmp_path / "b.txt", "a\nb\n")
    for options, message in (
        ([], "give FILE"),
        (["--source", path], "give FILE"),
        (["--source", path, "--target", path, "--format", "po"], "both languages in one file"),
        (["--source", path, "--target", longer], "goes on at line 2"),
    ):
        words = (*options, "--src", "en", "--tgt", "de", "-o", tmp_path / "out.tsv")
        leaves_no_trace(tmp_path, message, "corpus", "translations", *words)


def test_every_format_has_a_reader() -> None:
    assert sorted(translation_files.FORMATS) == list(FORMAT_NAMES)
