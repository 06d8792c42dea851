"use strict";
// Sort tables by a click on a heading, filter rows, and download the visible rows as CSV.
// Without this script, the page shows all rows in their original order.
const make = (name, properties, ...inside) => {
  const found = Object.assign(document.createElement(name), properties);
  found.append(...inside);
  return found;
};
const cellText = (cell) => (cell.querySelector("small, .phone") ? cell.firstChild.textContent : cell.textContent).trim();

// -- lay out only the first rows of long tables, so that clicks stay fast
const MOST = 100;
const painters = []; // per table: its rows in order, and the function that lays them out
for (const table of document.querySelectorAll("table.sortable")) {
  const found = { table, rows: [...table.tBodies[0].rows], most: Infinity };
  const more = make("button", { type: "button", className: "csv" });
  more.addEventListener("click", () => {
    found.most = Infinity;
    found.paint();
  });
  found.paint = () => {
    const shown = found.rows.filter((row) => !row.hidden);
    const laid = found.most < Infinity ? shown.slice(0, found.most) : found.rows;
    if (laid.length !== table.tBodies[0].rows.length || laid.some((row, i) => row !== table.tBodies[0].rows[i])) {
      table.tBodies[0].replaceChildren(...laid);
    }
    more.hidden = shown.length <= found.most;
    more.textContent = `Show all ${shown.length} rows`;
  };
  painters.push(found);
  if (found.rows.length > 2 * MOST) {
    found.most = MOST;
    table.parentNode.after(more);
    found.paint();
  }
}

// after filtering, lay out open tables; the others once they are opened
const paintSome = () => {
  for (const found of painters) {
    if (found.most < Infinity && !found.table.closest("details:not([open])")) found.paint();
  }
};
document.addEventListener("toggle", paintSome, true);

// -- sorting
for (const found of painters) {
  const { table } = found;
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? cellText(cell);
    if (text === "" || text === "\u2013") return null;
    return text === "inf" ? Infinity : Number.isNaN(Number(text)) ? text : Number(text);
  };
  const letters = new Intl.Collator("en", { numeric: true });
  const order = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null); // empty cells last in both directions
    if (typeof a === "number" && typeof b === "number") return sign * (a === b ? 0 : a < b ? -1 : 1);
    return sign * letters.compare(a, b);
  };
  for (const heading of table.tHead.rows[0].cells) {
    const button = make("button", { type: "button" }, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = found.rows.map((row) => [value(row, heading.cellIndex), row]);
      keyed.sort((a, b) => order(a[0], b[0], up ? 1 : -1));
      found.rows = keyed.map((pair) => pair[1]);
      found.paint();
    });
  }
}

// -- filters: hide rows, tables, plots and chapters that have another value than the selected one; elements without a
// value stay. Blocks and sections without visible content are hidden too.
const filterNames = ["family", "mechanism", "device", "mode", "task", "status"];
const rows = []; // [element, its value of each filter]
const raw = document.querySelector("table.raw");
const allRows = painters.flatMap((found) => found.rows.map((row) => [row, found.table]));
if (raw) {
  const at = Object.fromEntries([...raw.tHead.rows[0].cells].map((cell, i) => [cell.textContent, i]));
  for (const [row] of allRows.filter((pair) => pair[1] === raw)) {
    const known = {};
    for (const name of filterNames) if (name in at) known[name] = row.cells[at[name]].textContent;
    if ("variant" in at) known.mechanism = row.cells[at.variant].textContent.split(":")[0];
    rows.push([row, known]);
  }
}
for (const row of new Set([...allRows.map((pair) => pair[0]), ...document.querySelectorAll("tr[data-family]")])) {
  if (row.dataset.family) rows.push([row, { family: row.dataset.family, mechanism: row.cells[0].textContent.split(/[:|( ]/)[0] }]);
}
for (const part of document.querySelectorAll("[data-task], [data-mode], [data-device]")) {
  const { task, mode, device } = part.dataset;
  rows.push([part, { task, mode, device }]);
}
const containers = [...document.querySelectorAll(".block"), ...document.querySelectorAll("section")];
const emptied = new Set();
const hideEmpty = () => {
  for (const one of containers) {
    const own = [...one.querySelectorAll("table, figure")];
    if (!one.hidden && own.length && own.every((it) => it.closest("[hidden]"))) {
      one.hidden = true;
      emptied.add(one);
    }
  }
  for (const link of document.querySelectorAll("nav a")) link.hidden = Boolean(document.getElementById(link.hash.slice(1))?.hidden);
};
const chosen = {};
const rowCount = make("output", {});
const apply = () => {
  for (const one of emptied) one.hidden = false;
  emptied.clear();
  for (const [row, known] of rows) {
    const hide = filterNames.some((name) => chosen[name] && known[name] !== undefined && known[name] !== chosen[name]);
    if (row.hidden !== hide) row.hidden = hide;
  }
  hideEmpty();
  paintSome();
  const own = allRows.filter((pair) => pair[1] === raw);
  rowCount.textContent = `${own.filter((pair) => !pair[0].hidden).length} of ${own.length} rows are chosen.`;
};
const choices = filterNames.flatMap((name) => {
  const values = new Set(rows.map((pair) => pair[1][name]).filter((value) => value));
  if (values.size < 2) return [];
  const list = make("select", {}, make("option", { value: "" }, "all"));
  list.append(...[...values].sort().map((value) => make("option", { value }, value)));
  list.addEventListener("change", () => {
    chosen[name] = list.value;
    apply();
  });
  return [make("label", {}, `${name} `, list)];
});
if (raw && choices.length) {
  const bar = make("div", { className: "filters" }, ...choices, rowCount);
  document.querySelector("main").prepend(make("details", {}, make("summary", {}, "Filter tables and plots"), bar));
}

// -- CSV of the visible rows; cells that a spreadsheet would evaluate as formulas are prefixed with a quote
const quote = (text) => {
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
for (const found of painters) {
  const { table } = found;
  const button = make("button", { type: "button", className: "csv" }, "CSV of what is shown");
  button.setAttribute("aria-label", `CSV of what is shown: ${table.caption.textContent}`);
  button.addEventListener("click", () => {
    const lines = [table.tHead.rows[0], ...found.rows.filter((row) => !row.hidden)].map((row) => [...row.cells].map((cell) => quote(cellText(cell))).join(","));
    const link = make("a", { href: URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" })) });
    link.download = `${table.caption.textContent.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-").slice(0, 80)}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  table.parentNode.after(button);
}
