// -- the picker
const controls = Object.fromEntries(["use", "length", "machine", "quality"].map((id) => [id, find(id)]));
const answers = {};

function addAnswers(machine, texts, rows, uses) {
  answers[machine] = { texts, rows, uses };
}

async function show() {
  const { use, length, machine, quality } = controls;
  try {
    await load(`answers-${machine.value}.js`);
  } catch (error) {
    find("sentence").textContent = `${error.message}.`;
    return;
  }
  const { texts, rows, uses } = answers[machine.value];
  for (const option of use.options) option.disabled = !(option.value in uses);
  if (!(use.value in uses)) use.value = Object.keys(uses)[0];
  const wanted = Number(length.value);
  const distance = (entry) => Math.abs(Math.log(entry[0] / wanted));
  const nearest = uses[use.value].reduce((a, b) => (distance(b) < distance(a) ? b : a));
  length.replaceChildren(...uses[use.value].map(([value]) => new Option(short(value), value, false, value === nearest[0])));
  const [sentence, chosen, leftOut] = nearest[2][quality.value];
  find("sentence").textContent = texts[sentence];
  find("config").textContent = texts[nearest[1]];
  find("left-out").textContent = texts[leftOut];
  find("answer").hidden = chosen.length === 0;
  find("rows").replaceChildren(...chosen.map((index) => {
    const [name, options, link, speedup, value, conditions, memory, note] = rows[index].map((at) => texts[at]);
    return make("tr", {}, makeName(name, options, link, note), makeCell("Speedup", speedup), makeCell("Quality", value, conditions), makeCell("Memory", memory));
  }));
}

function change() {
  show().then(() => writeState(Object.fromEntries(Object.entries(controls).map(([name, select]) => [name, select.value]))));
}

if (controls.use) {
  const state = readState();
  if (Number(state.length) > 0) controls.length.add(new Option("", state.length));
  for (const [name, select] of Object.entries(controls)) {
    select.disabled = false;
    select.addEventListener("change", change);
    if (name in state && [...select.options].some((option) => option.value === state[name])) select.value = state[name];
  }
  if (Object.keys(state).length) show();
}
