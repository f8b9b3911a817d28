// html[data-demo] is "busy" while a sentence is being translated. It is "stale" once the sentence
// or the choice of systems has changed since the results on the page were made.
// Enter translates and Shift+Enter breaks the line. A click on an example enters and translates it,
// as a reader would.
const root = document.documentElement;
const find = selector => document.querySelector(selector);
const field = find("#sentence textarea");
const boxes = [...document.querySelectorAll("#systems input")];
const columns = [...document.querySelectorAll("#results > div")];
const asked = () => JSON.stringify([field.value, boxes.map(box => box.checked)]);
const texts = {
  busy: "Translating …",
  stale: "The results below are of another sentence or choice: press Enter to translate.",
};
let shown = null;

const say = state => {
  root.dataset.demo = state;
  find("#status").textContent = texts[state] || "";
};
const compare = () => {
  if (root.dataset.demo === "busy") return;
  if (shown === null) find("#message").hidden = true; // it is of another sentence or choice
  else say(asked() === shown ? "" : "stale");
};
const picture = (png, name) => {
  const image = new Image();
  image.alt = name;
  image.srcset = `data:image/png;base64,${png} 1.5x`; // the density of plots.save_picture
  return image;
};
const show = (answers, message) => {
  find("#message").textContent = message;
  find("#message").hidden = !message;
  columns.forEach((column, place) => {
    const answer = answers[place];
    column.hidden = !answer;
    if (!answer) return;
    column.querySelector("textarea").value = answer.text;
    column.querySelector("small").textContent = answer.remark;
    column.querySelector(".picture").replaceChildren(
      ...(answer.picture ? [picture(answer.picture, `Attention of ${boxes[place].value}`)] : []));
  });
  if (CSS.supports("field-sizing", "content")) return;
  for (const text of document.querySelectorAll("#results textarea")) {
    text.style.height = ""; // now that all columns have their widths
    text.style.height = `${text.scrollHeight + 2}px`; // with its borders
  }
};
const fail = message => {
  shown = null; // no results are on the page
  show([], message);
};
const translate = async () => {
  if (root.dataset.demo === "busy") return;
  shown = asked();
  say("busy");
  const systems = boxes.filter(box => box.checked).map(box => box.value);
  try {
    const answer = await fetch("translate", { method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ sentence: field.value, systems }) });
    const isJSON = (answer.headers.get("Content-Type") || "").startsWith("application/json");
    const content = isJSON ? await answer.json() : { error: await answer.text() };
    if (answer.ok) show(content, "");
    else fail(content.error);
  } catch (error) {
    fail("The server does not answer.");
  }
  say("");
  if (shown !== null) compare();
};

find("#translate").addEventListener("click", translate);
field.addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  translate();
});
for (const part of [field, find("#systems")]) part.addEventListener("input", compare);
find("#examples").addEventListener("click", event => {
  const example = event.target.closest("button");
  if (!example) return;
  field.value = example.textContent;
  field.focus();
  translate();
});
