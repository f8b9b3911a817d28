() => {
  // html[data-demo] is "busy" while a sentence is being translated. It is "stale" once the sentence
  // or the choice of systems has changed since the results on the page were made.
  // Enter translates and Shift+Enter breaks the line; in gradio's fields of several lines it is the
  // other way round. A click on an example enters and translates it, as a reader would.
  const root = document.documentElement;
  const field = () => document.querySelector("#sentence textarea");
  const chosen = () => [...document.querySelectorAll("#systems input")].map(box => box.checked);
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
    if (event.shiftKey) document.execCommand("insertText", false, "\n"); // can be undone
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
