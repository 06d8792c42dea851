"use strict";
// Selects from the data in the page: no network requests, and text is inserted as text nodes only.
const { answers, texts, spread } = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const [use, length, causal, machine, quality] = ["use", "length", "causal", "machine", "quality"].map(find);
const USE = 0, CAUSAL = 1, MACHINE = 2, LENGTH = 3, CONFIG = 4, QUALIFYING = 5, UNKNOWN = 6, CASES = 7;
const MS = 2, HALF_WIDTH = 3, ERROR = 6, BETWEEN = 9;

const short = (n) => (n >= 1048576 && n % 1048576 === 0 ? `${n / 1048576}M` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}K` : `${n}`);
const unique = (values) => [...new Set(values)];
const interpolated = (answer) => answer[CASES].some((entry) => texts[entry[BETWEEN]]);

// replaces the options; the current selection is preserved where it is still available
function setOptions(select, values, format) {
  const current = select.value;
  select.replaceChildren(...values.map((value) => new Option(format(value), value)));
  if (values.map(String).includes(current)) select.value = current;
}

function make(name, text, className) {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

// whether two times are not significantly different; times from different lengths were not measured together, which adds `spread`
function tied(entry, first) {
  if (entry === first || entry[HALF_WIDTH] === null || first[HALF_WIDTH] === null) return false;
  const halfWidth = Math.hypot(entry[HALF_WIDTH], first[HALF_WIDTH], entry[BETWEEN] === first[BETWEEN] ? 0 : spread);
  return Math.log(entry[MS] / first[MS]) <= halfWidth;
}

function makeRow(entry, first) {
  const [label, link, , , time, speedup, , error, memory, between] = entry;
  const row = make("tr", "", texts[between] ? "interpolated" : "measured");
  const head = make("th", "", "text");
  head.scope = "row";
  const name = make(texts[link] ? "a" : "span", texts[label]);
  if (texts[link]) name.href = texts[link];
  head.append(name);
  if (tied(entry, first)) head.append(make("small", " not significantly different from the first"));
  const timeCell = make("td", texts[time]);
  timeCell.append(make("small", texts[between] ? ` interpolated between ${texts[between]}` : " measured"));
  row.append(head, timeCell, make("td", texts[error], "text"), make("td", texts[memory]), make("td", texts[speedup]));
  return row;
}

function show() {
  let matching = answers.filter((answer) => answer[USE] === use.value);
  const formatLength = (n) => short(n) + (matching.some((answer) => answer[LENGTH] === n && !interpolated(answer)) ? "" : ", interpolated");
  for (const [select, at, format] of [[machine, MACHINE, (i) => texts[i]], [causal, CAUSAL, (yes) => (yes ? "yes" : "no")], [length, LENGTH, formatLength]]) {
    const values = unique(matching.map((answer) => answer[at])).sort((a, b) => a - b);
    setOptions(select, values, format);
    matching = matching.filter((answer) => String(answer[at]) === select.value);
  }
  const answer = matching[0];
  const bound = quality.value === "" ? Infinity : Number(quality.value);
  const fastest = answer[CASES].filter((entry) => bound === Infinity || (entry[ERROR] !== null && entry[ERROR] <= bound)).slice(0, 3);
  find("picked").replaceChildren(...fastest.map((entry) => makeRow(entry, fastest[0])));
  find("answer").hidden = fastest.length === 0;
  const estimated = interpolated(answer);
  const [count, all] = [answer[QUALIFYING][quality.selectedIndex], answer[QUALIFYING][0]];
  const summary = fastest.length ? `${count} of ${all} mechanisms timed here meet the quality bound.` : "No mechanism timed here is known to meet the quality bound.";
  const unknown = bound < Infinity && answer[UNKNOWN] ? ` The approximation error of ${answer[UNKNOWN]} is not verified at this length.` : "";
  find("summary").textContent = `${estimated ? `${short(answer[LENGTH])} was not measured here: times marked \u2248 are interpolated between measured lengths. ` : ""}${summary}${unknown}`;
  find("config").textContent = `${estimated ? "Interpolated from measurements" : "Measured"} at ${texts[answer[CONFIG]]}. A bound on the error counts errors measured in the same direction, at half this length or more; those shown were measured with one model at one length.`;
}

for (const option of [...use.options]) {
  if (!answers.some((answer) => answer[USE] === option.value)) option.remove();
}
// start at the answer with most measured mechanisms
const measured = answers.filter((answer) => !interpolated(answer));
const best = measured.reduce((a, b) => (b[QUALIFYING][0] > a[QUALIFYING][0] ? b : a));
for (const [select, at] of [[use, USE], [machine, MACHINE], [causal, CAUSAL], [length, LENGTH]]) {
  if (select !== use) select.replaceChildren(new Option("", best[at]));
  select.value = best[at];
}
find("picker").hidden = false;
for (const select of [use, length, causal, machine, quality]) select.addEventListener("change", show);
show();
