"""The page of ``fairseq-ext demo``, built with gradio: a sentence in, translations side by side.

Nothing on it comes from outside: the fonts are the reader's own, and nothing is reported.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from fairseq_ext.demo.answers import Answer, heat_map
from fairseq_ext.errors import DataError

if TYPE_CHECKING:
    from gradio.themes import Base

TITLE = "Translations side by side"
FONTS = ("ui-sans-serif", "system-ui", "sans-serif")
SHOWN = 2  # systems chosen at first

Translate = Callable[[str, Sequence[str]], Sequence[Answer]]


def theme() -> Base:
    """Colours of the pictures, and no fonts to fetch."""
    return gr.themes.Default(primary_hue="blue", font=FONTS, font_mono=("ui-monospace",))


def build(names: Sequence[str], translate: Translate, max_words: int) -> gr.Blocks:
    """The page.

    Args:
        names: of the systems.
        translate: the answers of the systems named to a sentence; a
            :class:`~fairseq_ext.errors.DataError` is shown on the page.
        max_words: for the hint below the field.
    """
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.Markdown(f"# {TITLE}")
        sentence = gr.Textbox(
            label="Sentence",
            info=f"at most {max_words:,} words",
            lines=2,
            autofocus=True,
            elem_id="sentence",
        )
        with gr.Row(equal_height=True):
            chosen = gr.CheckboxGroup(
                list(names), value=list(names[:SHOWN]), label="Systems", scale=4, elem_id="systems"
            )
            button = gr.Button("Translate", variant="primary", scale=1, elem_id="translate")
        message = gr.HTML(visible=False, elem_id="message")
        with gr.Row():
            columns = [_add_column(place, name) for place, name in enumerate(names)]

        def show(text: str, wanted: Sequence[str]) -> list[Any]:
            return _shown(text, wanted, names, translate)

        gr.on(
            [button.click, sentence.submit],
            show,
            inputs=[sentence, chosen],
            outputs=[message, *(part for column in columns for part in column)],
            api_visibility="private",
        )
    return page


def _add_column(place: int, name: str) -> tuple[Any, Any, Any]:
    """One system's column, hidden until there is an answer: column, text, picture."""
    with gr.Column(visible=False, min_width=360, elem_id=f"system-{place}") as column:
        text = gr.Textbox(label=name, lines=2, interactive=False)
        picture = gr.HTML()
    return column, text, picture


def _shown(
    text: str, wanted: Sequence[str], names: Sequence[str], translate: Translate
) -> list[Any]:
    """New states of the message, and of column, text and picture of every system."""
    try:
        if not wanted:
            raise DataError("Choose a system first.")
        answers = {one.name: one for one in translate(text, wanted)}
    except DataError as error:
        hidden = [gr.update(visible=False), gr.skip(), gr.skip()]
        text = f"<strong>{html.escape(str(error))}</strong>"
        return [gr.update(value=text, visible=True), *hidden * len(names)]
    states = [gr.update(visible=False)]
    for name in names:
        states += _states(answers.get(name))
    return states


def _states(answer: Answer | None) -> list[Any]:
    if answer is None:
        return [gr.update(visible=False), gr.skip(), gr.skip()]
    return [
        gr.update(visible=True),
        gr.update(value=answer.text, info=answer.remark),
        gr.update(value=_picture(answer)),
    ]


def _picture(answer: Answer) -> str:
    """The heat map within the page, so that no file of it is left anywhere."""
    if answer.attention is None:
        return ""
    data = base64.b64encode(heat_map(answer.attention)).decode()
    name = html.escape(f"Attention of {answer.name}")
    return f'<img alt="{name}" style="max-width: 100%" src="data:image/png;base64,{data}">'
