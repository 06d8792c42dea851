"use strict";
// Picks from what the page holds: nothing is asked of anybody else, and all text is set as text.
const { cells, texts, hours } = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const [use, length, causal, machine, quality] = ["use", "length", "causal", "machine", "quality"].map(find);
const USE = 0, CAUSAL = 1, MACHINE = 2, LENGTH = 3, PLACE = 4, KEPT = 5, UNKNOWN = 6, CASES = 7;
const MS = 2, APART = 3, ERROR = 6, BETWEEN = 9;

const short = (n) => (n >= 1048576 && n % 1048576 === 0 ? `${n / 1048576}M` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}K` : `${n}`);
const unique = (values) => [...new Set(values)];
const interpolated = (cell) => cell[CASES].some((found) => texts[found[BETWEEN]]);

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

// whether two times cannot be told apart; what is known from unlike lengths was not timed in the same hour
function tied(found, first) {
  if (found === first || found[APART] === null || first[APART] === null) return false;
  const apart = Math.hypot(found[APART], first[APART], found[BETWEEN] === first[BETWEEN] ? 0 : hours);
  return Math.log(found[MS] / first[MS]) <= apart;
}

function line(found, first) {
  const [label, link, , , time, speedup, , loss, memory, between] = found;
  const row = make("tr", "", texts[between] ? "interpolated" : "measured");
  const head = make("th", "", "text");
  head.scope = "row";
  const name = make(texts[link] ? "a" : "span", texts[label]);
  if (texts[link]) name.href = texts[link];
  head.append(name);
  if (tied(found, first)) head.append(make("small", " cannot be told from the first"));
  const how = make("td", texts[time]);
  how.append(make("small", texts[between] ? ` interpolated between ${texts[between]}` : " measured"));
  row.append(head, how, make("td", texts[loss], "text"), make("td", texts[memory]), make("td", texts[speedup]));
  return row;
}

function show() {
  let left = cells.filter((cell) => cell[USE] === use.value);
  const tell = (n) => short(n) + (left.some((cell) => cell[LENGTH] === n && !interpolated(cell)) ? "" : ", interpolated");
  for (const [select, at, say] of [[machine, MACHINE, (i) => texts[i]], [causal, CAUSAL, (yes) => (yes ? "yes" : "no")], [length, LENGTH, tell]]) {
    const values = unique(left.map((cell) => cell[at])).sort((a, b) => a - b);
    offer(select, values, say);
    left = left.filter((cell) => String(cell[at]) === select.value);
  }
  const cell = left[0];
  const bound = quality.value === "" ? Infinity : Number(quality.value);
  const kept = cell[CASES].filter((found) => bound === Infinity || (found[ERROR] !== null && found[ERROR] <= bound)).slice(0, 3);
  find("picked").replaceChildren(...kept.map((found) => line(found, kept[0])));
  find("answer").hidden = kept.length === 0;
  const guessed = interpolated(cell);
  const [count, all] = [cell[KEPT][quality.selectedIndex], cell[KEPT][0]];
  const asked = kept.length ? `${count} of ${all} mechanisms that were timed here keep it.` : "None that was timed here is known to keep it.";
  const open = bound < Infinity && cell[UNKNOWN] ? ` Of ${cell[UNKNOWN]} the loss was not measured.` : "";
  find("asked").textContent = `${guessed ? `Nobody measured ${short(cell[LENGTH])} here: times marked \u2248 are interpolated between measured lengths. ` : ""}${asked}${open}`;
  find("where").textContent = `${guessed ? "Interpolated from what was measured" : "Measured"} at ${texts[cell[PLACE]]}. Losses were measured where they say, not at this length.`;
}

for (const option of [...use.options]) {
  if (!cells.some((cell) => cell[USE] === option.value)) option.remove();
}
// begins where most is measured
const measured = cells.filter((cell) => !interpolated(cell));
const best = measured.reduce((a, b) => (b[KEPT][0] > a[KEPT][0] ? b : a));
for (const [select, at] of [[use, USE], [machine, MACHINE], [causal, CAUSAL], [length, LENGTH]]) {
  if (select !== use) select.replaceChildren(new Option("", best[at]));
  select.value = best[at];
}
find("picker").hidden = false;
for (const select of [use, length, causal, machine, quality]) select.addEventListener("change", show);
show();
