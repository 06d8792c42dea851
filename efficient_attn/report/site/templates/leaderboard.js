// -- the leaderboard: lines come in blocks of one machine and task, which are loaded once they are needed
const PAGE = 100;
const { fields, filters, blocks, defaults } = JSON.parse(find("data").textContent);
const at = Object.fromEntries(fields.map((name, index) => [name, index]));
const numbers = ["time", "speedup", "perplexity", "error", "memory"];
const loaded = [];
const descending = new Set(["speedup"]); // of the first click

function addBlock(number, texts, lines) {
  const decode = (value, index) => (Array.isArray(value) ? [value[0], texts[value[1]], texts[value[2]]] : index === at.length ? value : texts[value]);
  loaded[number] = lines.map((line) => line.map(decode));
}

const controls = Object.fromEntries([...Object.keys(filters), "search"].map((id) => [id, find(id)]));
const own = readState();
const state = { sort: "speedup", order: "descending", page: "1", ...(Object.keys(own).length ? own : defaults) };
const letters = new Intl.Collator("en", { numeric: true });

function matches(line, words) {
  if (!Object.keys(filters).every((name) => !controls[name].value || String(line[at[name]]) === controls[name].value)) return false;
  const text = [line[at.name], line[at.options], line[at.family], line[at.shape], line[at.run]].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

// unknown values come last in both orders
function compare(a, b) {
  const column = at[state.sort] ?? at.speedup, sign = state.order === "descending" ? -1 : 1;
  const [x, y] = [a[column], b[column]].map((value) => (Array.isArray(value) ? value[0] : value));
  if (x === null || y === null) return (x === null) - (y === null);
  return sign * (typeof x === "number" ? x - y : letters.compare(x, y));
}

function makeRow(line) {
  const get = (name) => line[at[name]];
  const row = make("tr");
  row.append(makeName(get("name"), get("options"), get("link")));
  row.append(makeCell("Task", get("task"), get("direction")), makeCell("Length", short(get("length"))));
  row.append(makeCell("Machine", get("machine"), [get("dtype"), get("shape")].join(", ")));
  for (const name of numbers) row.append(makeCell(find(`head-${name}`).textContent, get(name)[1], get(name)[2]));
  const run = makeCell("Run", get("run_link") ? "" : get("run"));
  if (get("run_link")) {
    const link = make("a", get("run"));
    link.href = get("run_link");
    run.prepend(link);
  }
  row.append(run);
  return row;
}

let latest = 0;
async function show() {
  const turn = ++latest;
  const wanted = blocks.map((block, number) => [number, ...block]).filter(([, , machine, task]) =>
    [[controls.machine, machine], [controls.task, task]].every(([select, value]) => !select.value || select.value === value));
  const missing = wanted.filter(([number]) => !loaded[number]);
  if (missing.length) find("status").textContent = "Loading.";
  try {
    await Promise.all(missing.map(([, address]) => load(address)));
  } catch (error) {
    find("status").textContent = `${error.message}.`;
    return;
  }
  if (turn !== latest) return; // another choice was made meanwhile
  const words = controls.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const lines = wanted.flatMap(([number]) => loaded[number]).filter((line) => matches(line, words)).sort(compare);
  const pages = Math.max(1, Math.ceil(lines.length / PAGE));
  const page = Math.min(Math.max(1, Number(state.page) || 1), pages);
  find("rows").replaceChildren(...lines.slice((page - 1) * PAGE, page * PAGE).map(makeRow));
  for (const button of document.querySelectorAll("thead button")) {
    const sorted = button.dataset.sort === state.sort;
    if (sorted) button.parentNode.setAttribute("aria-sort", state.order);
    else button.parentNode.removeAttribute("aria-sort");
  }
  const all = blocks.reduce((sum, block) => sum + block[3], 0);
  find("status").textContent = `${lines.length.toLocaleString("en")} of ${all.toLocaleString("en")} results${pages > 1 ? `, page ${page} of ${pages}` : ""}.`;
  find("pages").hidden = pages < 2;
  find("previous").disabled = page < 2;
  find("next").disabled = page >= pages;
  Object.assign(state, { page: String(page) });
  document.documentElement.dataset.shown = "yes";
}

function change(values) {
  Object.assign(state, values);
  const chosen = Object.entries(controls).map(([name, control]) => [name, control.value]);
  const kept = [...chosen, ["sort", state.sort], ["order", state.order], ["page", state.page]].filter(([, value]) => value);
  writeState(Object.fromEntries(kept));
  show();
}

for (const [name, control] of Object.entries(controls)) {
  const values = [...(control.options ?? [])].map((option) => option.value);
  const value = String(state[name] ?? "");
  if (name === "search" || values.includes(value)) control.value = value;
  control.disabled = false;
  control.addEventListener("input", () => change({ page: "1" }));
}
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const again = state.sort === button.dataset.sort;
    const first = descending.has(button.dataset.sort) ? "descending" : "ascending";
    const order = again ? (state.order === "descending" ? "ascending" : "descending") : first;
    change({ sort: button.dataset.sort, order, page: "1" });
  });
}
find("previous").addEventListener("click", () => change({ page: String(Number(state.page) - 1) }));
find("next").addEventListener("click", () => change({ page: String(Number(state.page) + 1) }));
find("reset").addEventListener("click", () => {
  for (const control of Object.values(controls)) control.value = "";
  change({ page: "1" });
});
show();
