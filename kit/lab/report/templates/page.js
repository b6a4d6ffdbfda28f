"use strict";
// Theme: the reader's choice when there is one, else the system's.
const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
const remembered = () => { try { return localStorage.getItem("kit-theme"); } catch { return null; } };
const applyTheme = () => { root.dataset.theme = remembered() ?? (system.matches ? "dark" : "light"); };
applyTheme();
system.addEventListener("change", applyTheme);

// A cell's value for sorting: its number in base units when it starts with one, else its text.
const UNITS = {
  ns: 1e-9, us: 1e-6, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600,
  B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, k: 1e3, M: 1e6, G: 1e9, T: 1e12, KB: 1e3, MB: 1e6, GB: 1e9,
};
const NUMBER = /^([-+−]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(\S*)/i;
const valueOf = (cell) => {
  const text = (cell?.dataset.value ?? cell?.textContent ?? "").trim(), match = text.match(NUMBER);
  return match ? Number(match[1].replaceAll(",", "").replace("−", "-")) * (UNITS[match[2]] ?? 1) : text.toLowerCase();
};
const compare = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b);
};

function sortBy(table, header, column) {
  const down = header.getAttribute("aria-sort") === "ascending", body = table.tBodies[0];
  for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
  rows.sort((a, b) => compare(a[0], b[0]) * (down ? -1 : 1));
  body.append(...rows.map((pair) => pair[1]));
}

function makeSortable(table) {
  const head = table.tHead?.rows;
  if (table.classList.contains("plain")) return;
  const spans = (cell) => cell.rowSpan > 1 || cell.colSpan > 1;
  if (!head || head.length !== 1 || [...table.querySelectorAll("th, td")].some(spans) || table.tBodies[0]?.rows.length < 2) return;
  [...head[0].cells].forEach((header, column) => {
    if (!header.textContent.trim()) return;
    const button = document.createElement("button");
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, header, column));
    header.append(button);
  });
}

// A column of numbers is one whose cells all start with one and hold little else; long texts get room.
function alignColumns(table) {
  const rows = [...table.querySelectorAll("tr")];
  for (let column = 0; column < Math.max(...rows.map((row) => row.cells.length)); column++) {
    const cells = rows.map((row) => row.cells[column]).filter(Boolean);
    const texts = cells.filter((cell) => cell.tagName === "TD").map((cell) => cell.textContent.trim());
    for (const cell of cells) cell.classList.toggle("long", (cell.innerText ?? "").length > 40);
    const numeric = texts.filter((text) => /^[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?(\s±\s[\d.,]+)?\s?\S{0,7}$/i.test(text));
    if (numeric.length && texts.every((text) => numeric.includes(text) || /^([–-]|nan|none|)$/i.test(text))) {
      for (const cell of cells) cell.classList.add("number");
    }
  }
}

// pandas writes the name of the index in a second row of headings: one row says the same, as "rows \ columns".
function joinHeadings(table) {
  const [first, second] = table.tHead?.rows ?? [];
  if (!second || table.tHead.rows.length !== 2 || first.cells.length !== second.cells.length) return;
  const names = [...first.cells].map((cell, column) => [second.cells[column], cell].map((one) => one.textContent.trim()).filter(Boolean));
  if (names.filter((pair) => pair.length > 1).length > 1) return;
  names.forEach((pair, column) => { first.cells[column].textContent = pair.join(" \\ "); });
  second.remove();
}

// A page that is a file has no clipboard in some browsers: then the text is selected and copied as by hand.
async function copy(text, button) {
  try { await navigator.clipboard.writeText(text.textContent); } catch {
    getSelection().selectAllChildren(text);
    if (!document.execCommand("copy")) return;
  }
  button.textContent = "Copied";
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector("[data-do=theme]")?.addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("kit-theme", theme); } catch { /* a private window: for this page only */ }
    root.dataset.theme = theme;
  });
  document.querySelector("[data-do=code]")?.addEventListener("click", () => {
    const open = root.toggleAttribute("data-code");
    for (const details of document.querySelectorAll("details.code:not(.mechanism)")) details.open = open;
  });
  for (const table of document.querySelectorAll("table")) {
    if (!table.parentElement.classList.contains("scroll")) {
      const box = document.createElement("div");
      box.className = "scroll";
      table.replaceWith(box);
      box.append(table);
    }
    joinHeadings(table);
    alignColumns(table);
    makeSortable(table);
  }
  for (const text of document.querySelectorAll("pre.paste")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", () => copy(text, button));
    text.before(button);
  }
  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let fold = target && target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();
  const dialog = document.querySelector("dialog");
  dialog?.addEventListener("click", () => dialog.close());
  for (const button of document.querySelectorAll("figure button")) {
    button.addEventListener("click", () => {
      dialog.replaceChildren(button.querySelector("img").cloneNode());
      dialog.showModal();
    });
  }
  const links = new Map([...document.querySelectorAll(".toc a")].map((link) => [link.hash.slice(1), link]));
  const contents = document.querySelector(".toc details");
  if (contents && matchMedia("(min-width: 1100px)").matches) contents.open = true;
  const seen = new IntersectionObserver((entries) => {
    const entry = entries.find((one) => one.isIntersecting);
    if (!entry) return;
    for (const link of links.values()) link.classList.toggle("here", link === links.get(entry.target.id));
  }, { rootMargin: "0px 0px -70% 0px" });
  for (const id of links.keys()) seen.observe(document.getElementById(id));
});
