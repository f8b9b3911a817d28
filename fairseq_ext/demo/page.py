"""The page of ``fairseq-ext demo``, built with gradio: a sentence in, translations side by side.

The page loads nothing from other machines, uses the reader's own fonts, and reports nothing.
"""

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from fairseq_ext.demo.systems import Answer, heat_map
from fairseq_ext.utils.errors import DataError

TITLE = "Translations side by side"
KEYS = "Enter translates, Shift+Enter breaks the line"

Translate = Callable[[str, Sequence[str]], Sequence[Answer]]


def build(
    systems: Mapping[str, str],
    translate: Translate,
    max_words: int,
    examples: Sequence[str] = (),
) -> gr.Blocks:
    """Build the page for systems, each with a line about it.

    ``translate`` calls them, ``examples`` can be clicked.
    """
    names = list(systems)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.Markdown(f"# {TITLE}")
        sentence = gr.Textbox(
            label="Sentence",
            info=f"{KEYS}; at most {max_words:,} words",
            lines=2,
            autofocus=True,
            elem_id="sentence",
        )
        if examples:
            buttons = (f'<button type="button">{html.escape(text)}</button>' for text in examples)
            gr.HTML(f'<div id="examples">Try {" ".join(buttons)}</div>')
        with gr.Row(equal_height=True):
            choices = [(f"{name} ({about})", name) for name, about in systems.items()]
            selection = gr.CheckboxGroup(
                choices, value=names, label="Systems", scale=4, min_width=280, elem_id="systems"
            )
            button = gr.Button(
                "Translate", variant="primary", scale=1, min_width=200, elem_id="translate"
            )
        gr.HTML('<div id="status" role="status"></div>')
        message = gr.HTML(visible=False, elem_id="message")
        with gr.Row(elem_id="results"):
            columns = [_add_column(place, *system) for place, system in enumerate(systems.items())]

        def show(text: str, selected: Sequence[str]) -> list[Any]:
            return _shown(text, selected, names, translate)

        done = button.click(
            show,
            inputs=[sentence, selection],
            outputs=[message, *(part for column in columns for part in column)],
            js="(...inputs) => { window.demo.begin(); return inputs; }",
            show_progress="hidden",
            api_visibility="private",
        )
        done.then(None, js="() => window.demo.end()", api_visibility="private")
    return page


def _add_column(place: int, name: str, about: str) -> tuple[Any, Any, Any]:
    """Add a system's column, hidden until it has an answer; return column, text and picture."""
    with gr.Column(visible=False, min_width=300, elem_id=f"system-{place}") as column:
        text = gr.Textbox(label=f"{name} ({about})", lines=2, interactive=False)
        picture = gr.HTML()
    return column, text, picture


def _shown(
    text: str, names_chosen: Sequence[str], names: Sequence[str], translate: Translate
) -> list[Any]:
    """Return updates for the message, and for every system's column, text and picture."""
    try:
        if not names_chosen:
            raise DataError("Choose a system first.")
        answers = {answer.name: answer for answer in translate(text, names_chosen)}
    except DataError as error:
        hidden = [gr.update(visible=False), gr.skip(), gr.skip()]
        text = f'<strong role="alert">{html.escape(str(error))}</strong>'
        return [gr.update(value=text, visible=True), *hidden * len(names)]
    states = [gr.update(visible=False)]
    for name in names:
        if name not in answers:
            states += [gr.update(visible=False), gr.skip(), gr.skip()]
            continue
        answer, picture = answers[name], ""
        if answer.attention is not None:
            picture = _image(f"Attention of {name}", heat_map(answer.attention))
        translation = gr.update(value=answer.text, info=answer.remark)
        states += [gr.update(visible=True), translation, gr.update(value=picture)]
    return states


def _image(name: str, png: bytes) -> str:
    """Return an HTML image that contains the picture itself, so that no file is written."""
    data, name = base64.b64encode(png).decode(), html.escape(name)
    style, density = "max-width: 100%", "1.5x"  # the density of plots.save_picture
    return f'<img alt="{name}" style="{style}" srcset="data:image/png;base64,{data} {density}">'
