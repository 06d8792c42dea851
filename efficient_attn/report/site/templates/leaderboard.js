// -- the leaderboard: lines come in blocks of one machine and task, which are loaded once they are needed
const PAGE = 100;
const { fields, filters, blocks, defaults } = JSON.parse(find("data").textContent);
const at = Object.fromEntries(fields.map((name, index) => [name, index]));
const loaded = [];
const controls = Object.fromEntries([...Object.keys(filters), "search"].map((id) => [id, find(id)]));
const buttons = document.querySelectorAll("thead button");
const own = readState();
const state = { sort: "speedup", order: "descending", page: "1", ...(Object.keys(own).length ? own : defaults) };
const letters = new Intl.Collator("en", { numeric: true });

function addBlock(number, texts, lines) {
  const decode = (value, index) => (Array.isArray(value) ? [value[0], texts[value[1]], texts[value[2]]] : index === at.length ? value : texts[value]);
  loaded[number] = lines.map((line) => line.map(decode));
}

const isChosen = (name, value) => !controls[name].value || controls[name].value === String(value);

function matches(line, words) {
  const text = ["name", "options", "family", "shape", "run"].map((name) => line[at[name]]).join(" ").toLowerCase();
  return Object.keys(filters).every((name) => isChosen(name, line[at[name]])) && words.every((word) => text.includes(word));
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
  const numbers = ["time", "speedup", "perplexity", "error", "memory"].map((name) => makeCell(find(`head-${name}`).textContent, get(name)[1], get(name)[2]));
  const machine = makeCell("Machine", get("machine"), [get("dtype"), get("shape")].join(", "));
  const cells = [makeCell("Task", get("task"), get("direction")), makeCell("Length", short(get("length"))), machine, ...numbers];
  return make("tr", {}, makeName(get("name"), get("options"), get("link")), ...cells, makeCell("Run", makeLink(get("run"), get("run_link"))));
}

let latest = 0;
async function show() {
  const turn = ++latest;
  const wanted = blocks.map((block, number) => [number, ...block]).filter(([, , machine, task]) => isChosen("machine", machine) && isChosen("task", task));
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
  for (const button of buttons) {
    if (button.dataset.sort === state.sort) button.parentNode.setAttribute("aria-sort", state.order);
    else button.parentNode.removeAttribute("aria-sort");
  }
  const all = blocks.reduce((sum, block) => sum + block[3], 0);
  find("status").textContent = `${lines.length.toLocaleString("en")} of ${all.toLocaleString("en")} results${pages > 1 ? `, page ${page} of ${pages}` : ""}.`;
  find("pages").hidden = pages < 2;
  find("previous").disabled = page < 2;
  find("next").disabled = page >= pages;
  state.page = String(page);
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
for (const button of buttons) {
  button.addEventListener("click", () => {
    const sort = button.dataset.sort; // the first click on speedups sorts them in descending order
    const descending = state.sort === sort ? state.order !== "descending" : sort === "speedup";
    change({ sort, order: descending ? "descending" : "ascending", page: "1" });
  });
}
find("previous").addEventListener("click", () => change({ page: String(Number(state.page) - 1) }));
find("next").addEventListener("click", () => change({ page: String(Number(state.page) + 1) }));
find("reset").addEventListener("click", () => {
  for (const control of Object.values(controls)) control.value = "";
  change({ page: "1" });
});
show();
