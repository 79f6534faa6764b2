// @ts-check
"use strict";
/* Tools around the drawings: saving them, searching, and the keyboard. */

const FOUND = 20;

/** Shorter, without the middle: names often differ at the end. @param {string} text @param {number} most */
function clipped(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const tail = Math.floor((most - 1) / 2);
  return `${letters.slice(0, most - 1 - tail).join("")}…${letters.slice(letters.length - tail).join("")}`;
}

/** One tab stop for many buttons; arrow keys, Home and End go from one to the next. @param {HTMLElement} box @param {string} which */
function oneTabStop(box, which) {
  const all = () => /** @type {HTMLElement[]} */ ([...box.querySelectorAll(which)]);
  all().forEach((one, i) => (one.tabIndex = i ? -1 : 0));
  box.onkeydown = (event) => {
    const here = all().indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const move = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -here, End: all().length - 1 - here })[event.key];
    if (here < 0 || move === undefined) return;
    const next = all()[Math.max(0, Math.min(all().length - 1, here + move))];
    all().forEach((one) => (one.tabIndex = one === next ? 0 : -1));
    next.focus();
    event.preventDefault();
  };
}

/** Arrow keys inside the class matrix. */
function listenToClasses() {
  const box = byId("class-table");
  box.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("button");
    if (button) openCell(Number(button.dataset.a), Number(button.dataset.b)).then(() => focusCell(Number(button.dataset.a), Number(button.dataset.b)));
  });
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const move = /** @type {Record<string, number[]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] })[event.key];
    const button = /** @type {HTMLElement} */ (event.target).closest("button");
    if (!move || !button) return;
    const beside = (/** @type {number[]} */ list, /** @type {string|undefined} */ here, /** @type {number} */ by) => list[list.indexOf(Number(here)) + by];
    focusCell(beside(classesOf(run().sources), button.dataset.a, move[0]), beside(classesOf(run().targets), button.dataset.b, move[1]));
    event.preventDefault();
  });
}

/** @param {number} a @param {number} b */
function focusCell(a, b) {
  const next = byId("class-table").querySelector(`button[data-a="${a}"][data-b="${b}"]`);
  if (!next) return;
  byId("class-table").querySelectorAll("button").forEach((/** @type {HTMLElement} */ one) => (one.tabIndex = one === next ? 0 : -1));
  next.focus({ preventScroll: true });
}

/** What a search finds: classes first, then examples by number, class or text. @param {string} asked
 * @returns {{words: string, asked: any}[]} */
function search(asked) {
  const text = asked.trim().toLowerCase();
  if (!text) return [];
  const { sources } = run();
  const found = [];
  const names = (panel().pairs && panel().pairs.classes) || sources.classes || [];
  names.forEach((/** @type {string} */ name) => {
    const first = sources.places.findIndex((_, i) => classOf(sources, i) === name);
    if (first >= 0 && name.toLowerCase().includes(text)) found.push({ words: `class ${name}`, asked: { source: first, curves: name, cell: "row" } });
  });
  for (let i = 0; i < sources.places.length && found.length < FOUND; i++) {
    const kept = sources.examples ? sources.examples[i] : "";
    const words = kept && !PICTURE.test(kept) && !kept.startsWith("[") ? kept : "";
    const name = nameOf(sources, i);
    if (words.toLowerCase().includes(text) || name.toLowerCase().includes(text)) found.push({ words: words ? `${name}: ${clipped(words, 80)}` : name, asked: { source: i } });
  }
  return found.slice(0, FOUND);
}

function listenToSearch() {
  const [input, list] = [byId("search"), byId("found")];
  let place = 0;
  /** @type {{words: string, asked: any}[]} */
  let found = [];
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); };
  const take = (/** @type {number} */ i) => { if (found[i]) pick(found[i].asked).then(() => draw()); close(); };
  const show = () => {
    list.hidden = !input.value.trim();
    input.setAttribute("aria-expanded", String(!list.hidden));
    const items = found.map(({ words }, i) => {
      const item = element("li", words);
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(i === place));
      item.addEventListener("mousedown", (event) => { event.preventDefault(); take(i); });
      return item;
    });
    list.replaceChildren(...(items.length ? items : [element("li", "nothing found")]));
    list.style.left = `${input.getBoundingClientRect().left - list.offsetParent.getBoundingClientRect().left}px`;
  };
  input.addEventListener("input", () => { found = search(input.value); place = 0; show(); });
  input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") return close();
    if (event.key === "Enter") take(place);
    else if (event.key === "ArrowDown") place = Math.min(found.length - 1, place + 1);
    else if (event.key === "ArrowUp") place = Math.max(0, place - 1);
    else return;
    if (event.key !== "Enter") show();
    event.preventDefault();
  });
  input.addEventListener("blur", close);
}

/** @param {string} name @param {Blob} content */
function save(name, content) {
  const link = /** @type {HTMLAnchorElement} */ (element("a"));
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Rows as CSV. Text that a spreadsheet would run as a formula gets an apostrophe. @param {any[][]} rows */
function csvOf(rows) {
  const cell = (/** @type {any} */ value) => {
    if (value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value))) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(String(value)) && !Number.isFinite(Number(value)) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

/** @param {string} name @param {any[][]} rows */
const saveRows = (name, rows) => save(`${name}.csv`, new Blob([csvOf(rows)], { type: "text/csv" }));

/** A drawing of our own as a file of its own, with the colours of the page. @param {SVGElement} svg */
function whole(svg) {
  const copy = /** @type {SVGElement} */ (svg.cloneNode(true));
  const { ink, soft, paper } = theme();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(drawing("style", {}, `text{font:11px sans-serif;fill:${soft}}.named{fill:${ink};font-weight:600}.axis,.now{stroke:${soft};fill:none}.change{fill:#8a5300;opacity:.25}`));
  copy.prepend(drawing("rect", { width: "100%", height: "100%", fill: paper }));
  return new XMLSerializer().serializeToString(copy);
}

/** @param {string} name @param {SVGElement} svg @param {string} format */
async function saveDrawing(name, svg, format) {
  const text = whole(svg);
  if (format === "svg") return save(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
  const [, , width, height] = (svg.getAttribute("viewBox") || "0 0 300 150").split(" ").map(Number);
  const picture = new Image();
  picture.src = `data:image/svg+xml;base64,${btoa(unescape(encodeURIComponent(text)))}`;
  await picture.decode();
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas"));
  [canvas.width, canvas.height] = [3 * width, 3 * height];
  const pen = canvas.getContext("2d");
  if (pen) pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && save(`${name}.png`, blob));
}

/** A row of buttons before an element. @param {HTMLElement} before @param {Record<string, () => any>} buttons @param {string} what */
function addButtons(before, buttons, what) {
  const bar = element("div", undefined, "tools");
  for (const [name, act] of Object.entries(buttons)) {
    const button = element("button", name);
    button.setAttribute("type", "button");
    button.setAttribute("aria-label", `Save ${what} as ${name}`);
    button.addEventListener("click", act);
    bar.append(button);
  }
  before.before(bar);
}

/** The button that saves the class matrix, which stands beside its colours. @type {any} */
let toolsOfClasses = null;

/** Every drawing as PNG and SVG, every table as CSV. */
function addTools() {
  /** @type {Record<string, () => any[][]>} */
  const rows = {
    "matrix-plot": matrixRows,
    "time-plot": () => [["curve", "step", "value"], ...byId("time-plot").data.flatMap((/** @type {any} */ trace) => (trace.name ? panel().steps.map((step, k) => [trace.name, step, trace.y[k]]) : []))],
    "distance-plot": () => [["source", "target", "distance", dotsOf.title], ...dots.map(({ x, y, i, j }) => [dotsOf.sources[i], dotsOf.targets[j], x, y])],
    "map-plot": () => [["example", "class", "x", "y"], ...run().sources.places.map((place, i) => [place, classOf(run().sources, i), ...placesNow().points[i]])],
    "compare-plot": () => [["map", "row", "column", "value"], ...byId("compare-plot").data.flatMap((/** @type {any} */ { z, x, y }, /** @type {number} */ k) => z.flatMap((/** @type {any[]} */ line, /** @type {number} */ i) => line.map((value, j) => [["first", "second", "second − first"][k], y ? y[i] : i, x ? x[j] : j, value])))],
  };
  for (const [id, make] of Object.entries(rows)) {
    const image = (/** @type {string} */ format) => () => Plotly.downloadImage(byId(id), { format, filename: id, scale: format === "png" ? 2 : 1 });
    const at = byId(id).closest(".beside") || byId(id);
    addButtons(at, { PNG: image("png"), SVG: image("svg"), CSV: () => saveRows(id, make()) }, id.replace("-plot", ""));
  }
  const svgs = () => /** @type {SVGElement[]} */ ([...byId("curve").querySelectorAll("svg")]);
  const both = (/** @type {string} */ format) => () => svgs().forEach((svg, i) => saveDrawing(["locality", "loss-and-accuracy"][i], svg, format));
  addButtons(byId("curve"), { PNG: both("png"), SVG: both("svg"), CSV: () => saveRows("locality", curveRows()) }, "locality over training");
  byId("curve").append(byId("curve").previousElementSibling);
  addButtons(byId("marked-pair"), { CSV: () => saveRows("tokens", tokenRows()) }, "tokens");
  addButtons(byId("class-scale"), { CSV: () => saveRows("classes", classRows()) }, "class matrix");
  toolsOfClasses = byId("class-scale").previousElementSibling;
  byId("class-scale").append(toolsOfClasses);
  document.querySelectorAll(".scroll > table:not(.class-table)").forEach((table, i) => addButtons(/** @type {HTMLElement} */ (table.parentElement), {
    CSV: () => saveRows(`table-${i + 1}`, [...table.querySelectorAll("tr")].map((row) => [...row.querySelectorAll("th, td")].map((cell) => (cell.textContent || "").trim().replace(/\s+/g, " ")))) }, "table"));
}

function curveRows() {
  const { steps, front, pairs } = panel();
  const { state } = run();
  const { times, low, high } = front.curve || {};
  const names = Object.keys(state);
  return [["step", "times", "low", "high", "within", "between", ...names], ...steps.map((step, k) => [step, times && times[k], low && low[k], high && high[k], pairs && pairs.within[k], pairs && pairs.between[k], ...names.map((name) => state[name][k])])];
}

function classRows() {
  const { classes } = panel().pairs;
  const table = mediansOf(panel(), chosen.when) || [];
  return [["source_class", "target_class", "median"], ...table.flatMap((/** @type {any[]} */ row, /** @type {number} */ a) => row.map((value, b) => [classes[a], classes[b], value]))];
}

function matrixRows() {
  const { sources, targets } = run();
  if (!seen.stored.exact) {
    const [parts, across] = seen.stored.shape;
    return [["row_block", "column_block", "median"], ...Array.from(seen.values, (/** @type {number} */ value, k) => [Math.floor(k / across), k % across, value]).slice(0, parts * across)];
  }
  return [["source", "source_class", "target", "target_class", panel().title], ...Array.from(seen.values, (/** @type {number} */ value, k) => {
    const [i, j] = [Math.floor(k / seen.m), k % seen.m];
    return [sources.places[i], classOf(sources, i), targets.places[j], classOf(targets, j), value];
  })];
}
