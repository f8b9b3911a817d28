"""Reduce language codes to the codes for which this package and Moses have rules."""

import re
from collections.abc import Collection

_LONG_CODES = (
    "am:amh ar:ara,arb as:asm az:aze,azj bn:ben bo:bod,tib ca:cat cs:ces,cze da:dan de:deu,ger "
    "dz:dzo el:ell,gre en:eng es:spa et:est,ekk fi:fin fr:fra,fre ga:gle gu:guj hi:hin hu:hun "
    "is:isl,ice it:ita ja:jpn km:khm kn:kan ko:kor lo:lao lt:lit lv:lav,lvs ml:mal mr:mar "
    "my:mya,bur nl:nld,dut no:nor,nob pa:pan pl:pol pt:por ro:ron,rum ru:rus sk:slk,slo sl:slv "
    "so:som sv:swe ta:tam tdt:tet te:tel th:tha tr:tur ur:urd yue:zhy zh:zho,chi,cmn"
)
_SHORT = {
    long: short
    for short, codes in (entry.split(":") for entry in _LONG_CODES.split())
    for long in codes.split(",")
}

_SCRIPT = re.compile(r"-([a-z]{4})\b")
_OF_REGION = {"zh-cn": "zh-hans", "zh-sg": "zh-hans"} | dict.fromkeys(
    ("zh-tw", "zh-hk", "zh-mo", "zt"),
    "zh-hant",  # zt is LibreTranslate's code
)
"""Chinese codes whose region implies the script, with the code that names the script."""


def short_code(language: str) -> str:
    """Return a language's code without script and region: ``pt`` for ``pt-BR`` and ``por_Latn``.

    If a language has several codes, such as ``de``, ``deu`` and ``ger``, return the one that Moses
    uses, or the code of two letters if Moses has none. Unknown codes stay, in small letters.
    """
    code = re.split("[-_]", language.lower(), maxsplit=1)[0]
    return _SHORT.get(code, code)


def matching_code(language: str, codes: Collection[str]) -> str | None:
    """Return the code in ``codes`` for a language that a user named: ``es`` for ``ES_mx``.

    The code may differ in capitals, and have ``-`` for ``_``. If there is no such code, it may also
    have another region, but not another script; ``zh_TW`` means ``zh-Hant``. Return None if no code
    fits, or several do.
    """
    spelled = {code: code.lower().replace("_", "-") for code in (language, *codes)}
    spelled = {code: _OF_REGION.get(spelling, spelling) for code, spelling in spelled.items()}
    matches = [code for code in codes if spelled[code] == spelled[language]]
    matches = matches or [
        code
        for code in codes
        if short_code(spelled[code]) == short_code(spelled[language])
        and len({*_SCRIPT.findall(f"{spelled[code]} {spelled[language]}")}) < 2
    ]
    return matches[0] if len(matches) == 1 else None
