"""A request for translations: its fields, their checks, and their description.

The server imports this module in a thread once it is running, because importing pydantic takes as
long as importing the web server.
"""

from typing import Any

from pydantic import BaseModel, Field, ValidationError

from fairseq_ext.serving.requests import FORMATS, TEXT, Refusal
from fairseq_ext.utils.errors import printable


class Query(BaseModel):
    """The fields of a request for translations, with the names that LibreTranslate gives them."""

    q: str | list[str] = Field(
        description="a text or a list of texts; each line is translated alone, and usually each "
        "sentence of a line"
    )
    source: str = Field(min_length=1, description="language code, or `auto`")
    target: str = Field(min_length=1, description="language code")
    format: str = Field(TEXT, description="`text` or `html`")
    alternatives: int = Field(0, ge=0, le=1000, description="number of further translations")
    api_key: str = Field("", description="key, if the server requires one")

    @property
    def texts(self) -> list[str]:
        """The texts as a list, even if there is only one."""
        return [self.q] if isinstance(self.q, str) else self.q


def parse_query(fields: dict[str, Any]) -> Query:
    """Make a query of a request's fields; refuse missing and wrong fields (status 400)."""
    # LibreTranslate's clients send null or an empty text for fields that the server is to choose.
    fields = {
        name: value
        for name, value in fields.items()
        if value is not None and (value != "" or name == "q")
    }
    for name in ("q", "source", "target"):
        if name not in fields:
            raise Refusal(400, f"Invalid request: missing {name} parameter")
    try:
        query = Query.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = printable(str(first["loc"][0]))
        raise Refusal(400, f"Invalid request: `{name}`: {first['msg']}") from None
    if query.format not in FORMATS:
        raise Refusal(400, f"`format` must be {' or '.join(f'`{name}`' for name in FORMATS)}.")
    try:
        "".join([*query.texts, query.source, query.target]).encode()
    except UnicodeEncodeError:  # from a form in an odd encoding
        raise Refusal(400, "The request has half of a surrogate pair in a text.") from None
    return query
