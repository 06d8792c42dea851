"use strict";
// Sort tables by a click on a heading, filter rows, and download the visible rows as CSV.
// Without this script, the page shows all rows in their original order.
const MOST = 100; // rows of a long table that are laid out, so that clicks stay fast
const letters = new Intl.Collator("en", { numeric: true });
const make = (name, properties, ...inside) => {
  const found = Object.assign(document.createElement(name), properties);
  found.append(...inside);
  return found;
};
const cellText = (cell) => (cell.querySelector("small, .phone") ? cell.firstChild.textContent : cell.textContent).trim();
const cellValue = (cell) => {
  const text = cell.dataset.sort ?? cellText(cell);
  if (text === "" || text === "\u2013") return null;
  return text === "inf" ? Infinity : Number.isNaN(Number(text)) ? text : Number(text);
};
const compare = (a, b, sign) => {
  if (a === null || b === null) return (a === null) - (b === null); // empty cells last in both directions
  if (typeof a === "number" && typeof b === "number") return sign * (a === b ? 0 : a < b ? -1 : 1);
  return sign * letters.compare(a, b);
};
// cells that a spreadsheet would evaluate as formulas are prefixed with a quote
const quote = (text) => {
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

const allRows = []; // [row, its table]
const painters = []; // functions that lay out the rows of long tables
for (const table of document.querySelectorAll("table.sortable")) {
  const [body, headings, name] = [table.tBodies[0], table.tHead.rows[0], table.caption.textContent];
  let rows = [...body.rows];
  let most = rows.length > 2 * MOST ? MOST : Infinity;
  const more = make("button", { type: "button", className: "csv" });
  const paint = () => {
    const shown = rows.filter((row) => !row.hidden);
    const laid = most < Infinity ? shown.slice(0, most) : rows;
    if (laid.length !== body.rows.length || laid.some((row, i) => row !== body.rows[i])) body.replaceChildren(...laid);
    more.hidden = shown.length <= most;
    more.textContent = `Show all ${shown.length} rows`;
  };
  more.addEventListener("click", () => {
    most = Infinity;
    paint();
  });
  for (const heading of headings.cells) {
    const button = make("button", { type: "button" }, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings.cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = rows.map((row) => [cellValue(row.cells[heading.cellIndex]), row]);
      rows = keyed.sort((a, b) => compare(a[0], b[0], up ? 1 : -1)).map((pair) => pair[1]);
      paint();
    });
  }
  const button = make("button", { type: "button", className: "csv" }, "CSV of what is shown");
  button.setAttribute("aria-label", `CSV of what is shown: ${name}`);
  button.addEventListener("click", () => {
    const lines = [headings, ...rows.filter((row) => !row.hidden)].map((row) => [...row.cells].map((cell) => quote(cellText(cell))).join(","));
    const link = make("a", { href: URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" })) });
    link.download = `${name.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-").slice(0, 80)}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  table.parentNode.after(button);
  allRows.push(...rows.map((row) => [row, table]));
  if (most < Infinity) {
    button.after(more);
    painters.push(() => {
      if (most < Infinity && !table.closest("details:not([open])")) paint();
    });
    paint();
  }
}
// after filtering, lay out open tables; the others once they are opened
const paintSome = () => painters.forEach((paint) => paint());
document.addEventListener("toggle", paintSome, true);

// -- filters: hide rows, tables, plots and chapters that have another value than the selected one; elements without a
// value stay. Blocks and sections without visible content are hidden too.
const filterNames = ["family", "mechanism", "device", "mode", "task", "status"];
const filtered = []; // [element, its value of each filter]
const raw = document.querySelector("table.raw");
const rawRows = allRows.filter((pair) => pair[1] === raw).map((pair) => pair[0]);
if (raw) {
  const at = Object.fromEntries([...raw.tHead.rows[0].cells].map((cell, i) => [cell.textContent, i]));
  for (const row of rawRows) {
    const known = Object.fromEntries(filterNames.filter((name) => name in at).map((name) => [name, row.cells[at[name]].textContent]));
    if ("variant" in at) known.mechanism = row.cells[at.variant].textContent.split(":")[0];
    filtered.push([row, known]);
  }
}
for (const row of new Set([...allRows.map((pair) => pair[0]), ...document.querySelectorAll("tr[data-family]")])) {
  if (row.dataset.family) filtered.push([row, { family: row.dataset.family, mechanism: row.cells[0].textContent.split(/[:|( ]/)[0] }]);
}
for (const part of document.querySelectorAll("[data-task], [data-mode], [data-device]")) filtered.push([part, { ...part.dataset }]);
const containers = [...document.querySelectorAll(".block"), ...document.querySelectorAll("section")];
const chosen = {};
const rowCount = make("output", {});
const apply = () => {
  for (const one of containers) one.hidden = false;
  for (const [element, known] of filtered) {
    const hide = filterNames.some((name) => chosen[name] && known[name] !== undefined && known[name] !== chosen[name]);
    if (element.hidden !== hide) element.hidden = hide;
  }
  for (const one of containers) {
    const own = [...one.querySelectorAll("table, figure")];
    if (own.length && own.every((it) => it.closest("[hidden]"))) one.hidden = true;
  }
  for (const link of document.querySelectorAll("nav a")) link.hidden = Boolean(document.getElementById(link.hash.slice(1))?.hidden);
  paintSome();
  rowCount.textContent = `${rawRows.filter((row) => !row.hidden).length} of ${rawRows.length} rows are chosen.`;
};
const choices = filterNames.flatMap((name) => {
  const values = new Set(filtered.map((pair) => pair[1][name]).filter((value) => value));
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
