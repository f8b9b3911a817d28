"""A line of ``fairseq-ext doctor``: what was checked, what was found, and the cure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "ERROR"


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        status: ``ok``; ``note``, worth knowing; ``warning``, something is missing or slow; or
            ``ERROR``, training or translating cannot work.
        topic: what was checked.
        finding: what was found.
        cure: the command or step that repairs it.
    """

    status: str
    topic: str
    finding: str
    cure: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the fields for JSON."""
        return asdict(self)
