// -- the picker
const controls = Object.fromEntries(["use", "length", "machine", "quality"].map((id) => [id, find(id)]));
const answers = {};

function addAnswers(machine, texts, rows, uses) {
  answers[machine] = { texts, rows, uses };
}

// replaces the options of a list, and selects the given value or the nearest number
function setOptions(select, values, titles, wanted) {
  const nearest = values.reduce((a, b) => (Math.abs(Math.log(b / wanted)) < Math.abs(Math.log(a / wanted)) ? b : a));
  select.replaceChildren(...values.map((value) => new Option(titles(value), value)));
  select.value = values.map(String).includes(String(wanted)) ? wanted : nearest;
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
  const lengths = uses[use.value];
  setOptions(length, lengths.map((entry) => entry[0]), short, Number(length.value));
  const [, config, byBound] = lengths.find((entry) => entry[0] === Number(length.value));
  const [sentence, chosen, leftOut] = byBound[quality.value];
  find("sentence").textContent = texts[sentence];
  find("config").textContent = texts[config];
  find("left-out").textContent = texts[leftOut];
  find("answer").hidden = chosen.length === 0;
  find("rows").replaceChildren(...chosen.map((index) => {
    const [name, options, link, speedup, value, conditions, memory, note] = rows[index].map((at) => texts[at]);
    const row = make("tr");
    row.append(makeName(name, options, link, note), makeCell("Speedup", speedup), makeCell("Quality", value, conditions), makeCell("Memory", memory));
    return row;
  }));
}

function change() {
  show().then(() => writeState(Object.fromEntries(Object.entries(controls).map(([name, select]) => [name, select.value]))));
}

if (controls.use) {
  const state = readState();
  for (const [name, select] of Object.entries(controls)) {
    select.disabled = false;
    select.addEventListener("change", change);
    const values = [...select.options].map((option) => option.value);
    if (name === "length" && Number(state.length) > 0 && !values.includes(state.length)) select.add(new Option("", state.length));
    if (name in state && (name === "length" ? Number(state.length) > 0 : values.includes(state[name]))) select.value = state[name];
  }
  if (Object.keys(state).length) show();
}
