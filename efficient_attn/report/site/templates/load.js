"use strict";
// Data are scripts next to the page, as browsers allow no other requests from local files. The content security policy
// allows this script by its digest, and only what it loads. Texts from data are inserted as text nodes only.
const find = (id) => document.getElementById(id);
const requested = new Map();

function make(name, properties, ...inside) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
}

function load(address) {
  if (!requested.has(address)) {
    requested.set(address, new Promise((resolve, reject) => {
      const script = make("script", { src: address });
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

const makeLink = (text, href) => (href ? make("a", { href }, text) : make("span", {}, text));
const makeNotes = (...texts) => texts.filter(Boolean).map((text) => make("small", {}, text));
// the cell of a mechanism: its name, and its options in small letters
const makeName = (name, options, link, note) => make("th", { className: "text", scope: "row" }, makeLink(name, link), ...makeNotes(options, note));

// a cell with a label for narrow screens
function makeCell(label, content, ...notes) {
  const cell = make("td", {}, content, ...makeNotes(...notes));
  cell.dataset.label = label;
  return cell;
}

const readState = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const writeState = (state) => history.replaceState(null, "", `#${new URLSearchParams(state)}`);
const short = (n) => (n >= 1048576 && n % 1048576 === 0 ? `${n / 1048576}M` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}K` : `${n}`);
