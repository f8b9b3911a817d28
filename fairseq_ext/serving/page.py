"""The two pages of a server: a form at ``/`` to translate by hand, and the interface at ``/docs``.

Nothing on them comes from another machine.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)
"""The Content-Security-Policy of both pages."""

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
textarea { box-sizing: border-box; width: 100%; min-height: 9rem; font: inherit; padding: .5rem; }
.texts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); }
label { display: block; }
select, button, input { font: inherit; padding: .3rem .6rem; margin: .2rem .4rem .2rem 0; }
pre, code { background: #f3f3f3; } pre { padding: .7rem; overflow-x: auto; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; }
#status { min-height: 1.5em; }
"""

TRANSLATE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Translate</title><style>{_STYLE}</style>
<h1>Translate</h1>
<form id="form">
<label>From <select id="source"></select></label>
<label>to <select id="target"></select></label>
<div class="texts">
<label>Text<textarea id="text" autofocus></textarea></label>
<label>Translation<textarea id="translation" readonly></textarea></label>
</div>
<label id="key" hidden>API key <input id="api_key" type="password"></label>
<button>Translate</button> <span id="status" role="status"></span>
</form>
<p><a href="docs">Interface for programs</a></p>
<script>
const field = id => document.getElementById(id);
let languages = [];
const fill = (select, items) => select.replaceChildren(
  ...items.map(([code, name]) => new Option(name, code)));
const names = code => (languages.find(item => item.code === code) || {{ name: code }}).name;
const fillTargets = () => {{
  const language = languages.find(item => item.code === field("source").value);
  fill(field("target"), language.targets.map(code => [code, names(code)]));
}};
fetch("languages").then(answer => answer.json()).then(list => {{
  languages = list;
  const sources = list.filter(item => item.targets.length);
  fill(field("source"), sources.map(item => [item.code, item.name]));
  fillTargets();
}});
field("source").addEventListener("change", fillTargets);
field("form").addEventListener("submit", async event => {{
  event.preventDefault();
  field("status").textContent = "Translating …";
  const query = {{ q: field("text").value, source: field("source").value,
    target: field("target").value, api_key: field("api_key").value }};
  try {{
    const answer = await fetch("translate", {{ method: "POST",
      headers: {{ "Content-Type": "application/json" }}, body: JSON.stringify(query) }});
    const result = await answer.json();
    if (answer.status === 401 || answer.status === 403) field("key").hidden = false;
    if (answer.ok) field("translation").value = result.translatedText;
    field("status").textContent = answer.ok ? "" : result.error;
  }} catch (error) {{
    field("status").textContent = "The server does not answer.";
  }}
}});
</script></html>
"""

_DOCS = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Interface</title><style>{style}</style>
<h1>Interface</h1>
<p>The interface of LibreTranslate, in JSON or as a form. Errors are <code>{{"error": "…"}}</code>
with a status of 4xx or 5xx. A description for programs is in
<a href="openapi.json">openapi.json</a>; a page to try is <a href="./">here</a>.</p>
<h2>POST /translate</h2>
<table><tr><th>Field</th><th></th></tr>{fields}</table>
<pre>curl -H 'Content-Type: application/json' http://127.0.0.1:5000/translate \\
  -d '{{"q": "Hola.", "source": "es", "target": "en"}}'
{{"translatedText": "Hello."}}</pre>
<h2>POST /detect</h2>
<p>The language of <code>q</code>, among those that are translated:
<code>[{{"confidence": 98.0, "language": "es"}}]</code>.</p>
<h2>GET /languages</h2>
<p>Languages, and those that each is translated to.</p>
<h2>GET /health, GET /metrics</h2>
<p>Whether requests are answered, and figures for Prometheus.</p>
</html>
"""


def interface(schema: Mapping[str, Any]) -> str:
    """The page at ``/docs``.

    Args:
        schema: JSON schema of a request to ``/translate``.
    """
    rows = (
        f"<tr><td><code>{html.escape(name)}</code></td>"
        f"<td>{html.escape(field.get('description', ''))}</td></tr>"
        for name, field in schema["properties"].items()
    )
    return _DOCS.format(style=_STYLE, fields="".join(rows))
