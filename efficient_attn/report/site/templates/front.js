// -- the picker
const controls = Object.fromEntries(["use", "shape", "length", "machine", "quality"].map((id) => [id, find(id)]));
const answers = {};
let wanted; // the length that was chosen last, which not every shape has

function addAnswers(machine, texts, rows, uses, runPages) {
  answers[machine] = { texts, rows, uses, runPages };
}

async function show() {
  const { use, shape, length, machine, quality } = controls;
  try {
    await load(`answers-${machine.value}.js`);
  } catch (error) {
    find("sentence").textContent = `${error.message}.`;
    return;
  }
  const { texts, rows, uses, runPages } = answers[machine.value];
  for (const option of use.options) option.disabled = !(option.value in uses);
  if (!(use.value in uses)) use.value = Object.keys(uses)[0];
  const shapes = uses[use.value];
  const [, entries] = shapes.find(([title]) => texts[title] === shape.value) ?? shapes[0];
  const range = (all) => `${short(all[0][0])}${all.length > 1 ? `\u2013${short(all.at(-1)[0])}` : ""}`;
  shape.replaceChildren(...shapes.map(([title, all]) => new Option(`${texts[title]} (${range(all)})`, texts[title], false, all === entries)));
  const distance = (entry) => Math.abs(Math.log(entry[0] / wanted));
  const nearest = entries.reduce((a, b) => (distance(b) < distance(a) ? b : a));
  length.replaceChildren(...entries.map(([value]) => new Option(short(value), value, false, value === nearest[0])));
  const [sentence, chosen, leftOut] = nearest[2][quality.value];
  find("sentence").textContent = texts[sentence];
  find("config").textContent = texts[nearest[1]];
  find("left-out").textContent = texts[leftOut];
  find("answer").hidden = chosen.length === 0;
  find("rows").replaceChildren(...chosen.map((index) => {
    const [name, options, link, speedup, value, conditions, memory, note] = rows[index].map((at) => texts[at]);
    const runs = rows[index].at(-1).map((run) => makeLink(texts[run], runPages[texts[run]]));
    return make("tr", {}, makeName(name, options, link, note), makeCell("Speedup", speedup, ...runs), makeCell("Quality", value, conditions), makeCell("Memory", memory));
  }));
}

function change(event) {
  if (event.target === controls.length) wanted = Number(controls.length.value);
  show().then(() => writeState(Object.fromEntries(Object.entries(controls).map(([name, select]) => [name, select.value]))));
}

if (controls.use) {
  const state = readState();
  if (Number(state.length) > 0) controls.length.add(new Option("", state.length));
  if (state.shape) controls.shape.add(new Option("", state.shape));
  for (const [name, select] of Object.entries(controls)) {
    select.disabled = false;
    select.addEventListener("change", change);
    if (name in state && [...select.options].some((option) => option.value === state[name])) select.value = state[name];
  }
  wanted = Number(controls.length.value);
  show();
}
