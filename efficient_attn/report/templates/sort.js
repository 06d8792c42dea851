"use strict";
// Tables sort by a click on a heading; without this script they stay as they were written.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? cell.textContent.trim();
    if (text === "" || text === "\u2013") return null;
    return text === "inf" ? Infinity : Number.isNaN(Number(text)) ? text : Number(text);
  };
  const order = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null); // empty cells last, whichever way
    if (typeof a === "number" && typeof b === "number") return sign * (a === b ? 0 : a < b ? -1 : 1);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = [...body.rows].map((row) => [value(row, heading.cellIndex), row]);
      keyed.sort((a, b) => order(a[0], b[0], up ? 1 : -1));
      body.append(...keyed.map((pair) => pair[1]));
    });
  }
}
