"use strict";
// Picks from what the page holds: nothing is asked of anybody else, and all text is set as text.
const { cells, texts } = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const [use, length, causal, machine, quality] = ["use", "length", "causal", "machine", "quality"].map(find);
const USE = 0, CAUSAL = 1, MACHINE = 2, LENGTH = 3, PLACE = 4, CASES = 5;

const short = (n) => (n >= 1048576 && n % 1048576 === 0 ? `${n / 1048576}M` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}K` : `${n}`);
const unique = (values) => [...new Set(values)];

// the choices that are left; what was chosen stays chosen where it can
function offer(select, values, tell) {
  const held = select.value;
  select.replaceChildren(...values.map((value) => new Option(tell(value), value)));
  if (values.map(String).includes(held)) select.value = held;
}

function make(name, text, className) {
  const found = document.createElement(name);
  found.textContent = text;
  if (className) found.className = className;
  return found;
}

function line(found, first) {
  const [label, link, , low, , time, speedup, , loss, memory] = found;
  const row = document.createElement("tr");
  const head = make("th", "", "text");
  head.scope = "row";
  const name = make(texts[link] ? "a" : "span", texts[label]);
  if (texts[link]) name.href = texts[link];
  head.append(name);
  const tied = found !== first && low !== null && first[4] !== null && low <= first[4];
  if (tied) head.append(make("small", " cannot be told from the first"));
  row.append(head, make("td", texts[time]), make("td", texts[loss], "text"), make("td", texts[memory]), make("td", texts[speedup]));
  return row;
}

function show() {
  let left = cells.filter((cell) => cell[USE] === use.value);
  const steps = [[machine, MACHINE, (at) => texts[at]], [causal, CAUSAL, (yes) => (yes ? "yes" : "no")], [length, LENGTH, short]];
  for (const [select, at, tell] of steps) {
    const values = unique(left.map((cell) => cell[at])).sort((a, b) => a - b);
    offer(select, values, tell);
    left = left.filter((cell) => String(cell[at]) === select.value);
  }
  const cell = left[0];
  const bound = quality.value === "" ? Infinity : Number(quality.value);
  const cases = cell ? cell[CASES] : [];
  const kept = cases.filter((found) => bound === Infinity || (found[7] !== null && found[7] <= bound));
  find("picked").replaceChildren(...kept.slice(0, 3).map((found) => line(found, kept[0])));
  find("answer").hidden = kept.length === 0;
  const unknown = cases.filter((found) => found[7] === null).length;
  const asked = kept.length ? `${kept.length} of ${cases.length} mechanisms that were measured here keep it.` : "None that was measured here is known to keep it.";
  find("asked").textContent = asked + (bound < Infinity && unknown ? ` Of ${unknown} the loss was not measured.` : "");
  find("where").textContent = cell ? `Measured at ${texts[cell[PLACE]]}. Losses were measured where they say, not at this length.` : "";
}

for (const option of [...use.options]) {
  if (!cells.some((cell) => cell[USE] === option.value)) option.remove();
}
// begins where most is known
const best = cells.reduce((a, b) => (b[CASES].length > a[CASES].length ? b : a));
for (const [select, at] of [[use, USE], [machine, MACHINE], [causal, CAUSAL], [length, LENGTH]]) {
  if (select !== use) select.replaceChildren(new Option("", best[at]));
  select.value = best[at];
}
find("picker").hidden = false;
for (const select of [use, length, causal, machine, quality]) select.addEventListener("change", show);
show();
