"use strict";
// Data are scripts next to the page, as browsers allow no other requests from local files. The content security policy
// allows this script by its digest, and only what it loads. Texts from data are inserted as text nodes only.
const find = (id) => document.getElementById(id);
const requested = new Map();

function load(address) {
  if (!requested.has(address)) {
    requested.set(address, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = address;
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => {
        requested.delete(address);
        reject(new Error(`${address} cannot be loaded`));
      });
      document.head.append(script);
    }));
  }
  return requested.get(address);
}

function make(name, text, className) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  if (className) element.className = className;
  return element;
}

// the cell of a mechanism: its name, and its options in small letters
function makeName(name, options, link, note) {
  const head = make("th", "", "text");
  head.scope = "row";
  const shown = make(link ? "a" : "span", name);
  if (link) shown.href = link;
  head.append(shown);
  for (const text of [options, note]) if (text) head.append(make("small", text));
  return head;
}

// a cell with a label for narrow screens
function makeCell(label, text, note) {
  const cell = make("td", text);
  cell.dataset.label = label;
  if (note) cell.append(make("small", note));
  return cell;
}

const readState = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const writeState = (state) => history.replaceState(null, "", `#${new URLSearchParams(state)}`);
const short = (n) => (n >= 1048576 && n % 1048576 === 0 ? `${n / 1048576}M` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}K` : `${n}`);
