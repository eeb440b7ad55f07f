// The report's page: isolates schemes in all figures and tables at once, and sorts tables.
// The page can be read without it.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const element = (name, fields, ...inside) => {
    const made = Object.assign(document.createElement(name), fields);
    made.append(...inside);
    return made;
  };

  // Isolation: `pinned` are the schemes that were clicked, by index; a hovered one joins them.
  const root = document.documentElement;
  const marks = all(".scheme");
  const pinned = new Set();
  const chips = all(".legend a").map((link) => {
    const chip = element("button", { type: "button", className: link.className });
    chip.dataset.s = link.dataset.s;
    chip.append(...link.childNodes);
    link.replaceWith(chip);
    return chip;
  });
  const reset = element("button", { type: "button", className: "reset", hidden: true }, "Show all");
  const said = element("span", { className: "unseen", role: "status" });
  const legend = document.querySelector(".legend");
  const hint = element("span", { className: "hint" }, "Show alone:");
  legend.prepend(hint, reset);
  legend.append(said);

  const show = (schemes) => {
    root.classList.toggle("isolating", schemes.size > 0);
    for (const mark of marks) mark.classList.toggle("on", schemes.has(mark.dataset.s));
  };
  const settle = () => {
    show(pinned);
    for (const chip of chips) chip.setAttribute("aria-pressed", pinned.has(chip.dataset.s));
    reset.hidden = pinned.size === 0;
    hint.hidden = !reset.hidden;
    const names = chips.filter((chip) => pinned.has(chip.dataset.s)).map((c) => c.textContent.trim());
    said.textContent = names.length ? `Shown alone: ${names.join(", ")}` : "";
  };
  const toggle = (s) => {
    pinned.delete(s) || pinned.add(s);
    settle();
  };
  const clear = () => {
    pinned.clear();
    settle();
  };
  const touched = (event) => event.target.closest?.("button[data-s], .plot .scheme");

  document.addEventListener("click", (event) => {
    const mark = touched(event);
    if (mark) toggle(mark.dataset.s);
  });
  reset.addEventListener("click", clear);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") clear();
  });
  document.addEventListener("pointerover", (event) => {
    const mark = event.pointerType === "mouse" && touched(event);
    if (mark) show(new Set([...pinned, mark.dataset.s]));
  });
  document.addEventListener("pointerout", (event) => {
    if (touched(event)) show(pinned);
  });

  settle();

  // Sorting: by the number that a cell begins with, else by its text; cells without one come last.
  const number = (cell) => {
    if (cell.classList.contains("problem")) return NaN;
    const text = cell.textContent.replace(/\u2212/g, "-").replace(/(\d),(?=\d{3})/g, "$1").trim();
    const match = /^\[?\s*(<?)\s*([+-]?\d+(\.\d+)?(e[+-]?\d+)?)/i.exec(text);
    return match ? Number(match[2]) - (match[1] ? 1e-9 : 0) : NaN;
  };
  const wordy = (cell) => cell.matches("th, .words") || cell.querySelector("code");
  const sort = (body, column, sign) => {
    const cells = [...body.rows].map((row) => row.cells[column]);
    const key = cells.some(wordy) ? (cell) => cell.textContent.trim() : number;
    const keyed = cells.map((cell) => ({ row: cell.parentElement, key: key(cell) }));
    const lost = (key) => Number.isNaN(key) || key === "";
    keyed.sort((a, b) => {
      if (lost(a.key) || lost(b.key)) return lost(a.key) - lost(b.key);
      if (typeof a.key === "number") return sign * (a.key - b.key);
      return sign * a.key.localeCompare(b.key, undefined, { numeric: true });
    });
    body.append(...keyed.map((entry) => entry.row));
  };
  for (const table of all("table:not(.facts, .still)")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
    heads.forEach((head, column) => {
      const button = element("button", { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: "none" };
        const order = next[head.getAttribute("aria-sort")] ?? "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        body.append(...original); // ties keep the order of the page
        if (order === "none") return;
        head.setAttribute("aria-sort", order);
        sort(body, column, order === "ascending" ? 1 : -1);
      });
    });
  }

  // Details are folded on the screen, and open in print.
  const folds = all("details");
  for (const fold of folds) fold.open = false;
  addEventListener("beforeprint", () => folds.forEach((fold) => (fold.open = true)));
})();
