"""The behaviour of the demo's page in the browser and its looks, beside what gradio gives.

``html[data-demo]`` says what the results are: ``busy`` while a sentence is being translated, and
``stale`` once the sentence or the choice of systems is another than that which they belong to.
"""

from __future__ import annotations

# Enter translates and Shift+Enter breaks the line: in a field of several lines gradio has it the
# other way round. An example is typed and translated as a reader would do it.
SCRIPT = """
() => {
  const root = document.documentElement;
  const field = () => document.querySelector("#sentence textarea");
  const chosen = () => [...document.querySelectorAll("#systems input")].map(one => one.checked);
  const asked = () => JSON.stringify([field().value, chosen()]);
  const texts = {
    busy: "Translating …",
    stale: "The results below are of another sentence or choice: press Enter to translate.",
  };
  let shown = null;
  const say = state => {
    root.dataset.demo = state;
    document.querySelector("#status").textContent = texts[state] || "";
  };
  const compare = () => {
    if (shown !== null && root.dataset.demo !== "busy") say(asked() === shown ? "" : "stale");
  };
  const translate = () => document.querySelector("#translate").click();

  window.demo = {
    begin: () => { shown = asked(); say("busy"); },
    end: () => { root.dataset.demo = ""; compare(); },
  };
  document.addEventListener("keydown", event => {
    if (event.key !== "Enter" || !event.target.closest("#sentence")) return;
    event.stopPropagation();
    if (event.isComposing) return;
    event.preventDefault();
    if (event.shiftKey) document.execCommand("insertText", false, "\\n"); // can be undone
    else translate();
  }, true);
  for (const kind of ["input", "change"]) {
    document.addEventListener(kind, event => {
      if (event.target.closest("#sentence, #systems")) compare();
    });
  }
  document.addEventListener("click", event => {
    const example = event.target.closest("#examples button");
    if (!example) return;
    field().value = example.textContent;
    field().dispatchEvent(new Event("input", { bubbles: true }));
    field().focus();
    setTimeout(translate);
  });
}
"""

STYLE = """
#status { min-height: 1.5em; }
#examples { display: flex; flex-wrap: wrap; gap: .4em .6em; align-items: baseline; }
#examples button {
  padding: .2em .7em !important; border: 1px solid var(--border-color-primary) !important;
  border-radius: 1em !important; background: none !important; color: var(--body-text-color);
  font-weight: normal !important; text-align: left; cursor: pointer;
}
#examples button:hover { border-color: var(--color-accent) !important; }
:focus-visible { outline: 2px solid var(--color-accent); outline-offset: 1px; }
html[data-demo=busy] #translate { opacity: .55; cursor: progress; }
html[data-demo=busy] #status::before {
  content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .5em;
  border: 2px solid var(--color-accent); border-top-color: transparent; border-radius: 50%;
  animation: demo-turn 1s linear infinite;
}
@keyframes demo-turn { to { transform: rotate(360deg); } }
html[data-demo=stale] #results { opacity: .4; }
html:is([data-demo=stale], [data-demo=busy]) #message { display: none; }
@media (max-width: 500px) { .gradio-container { padding: .5em !important; } }
"""
