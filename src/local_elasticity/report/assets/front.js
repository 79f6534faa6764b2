// @ts-check
"use strict";
/* The first screen: the list of runs, the class-by-class matrix, the named pairs, locality over training. It needs no library. */

/** Pairs that are shown behind a cell: so many of the largest, of the typical and of the smallest. */
const BEHIND = 4;
const SHORT_NAME = 4;
/** Characters that fit into a cell of the table. */
const CELL_WIDTH = 5;
/** Characters of a class above a column of the table, and beside a row. */
const NAME = 15;
const ROW_NAME = 12;
const ROW_NAME_ON_PHONES = 7;

/** What a hand does on this screen. */
const touched = () => (matchMedia("(pointer: coarse)").matches ? "Tap" : "Click");

/** @param {string} name @param {Record<string, any>} values @param {string} [words] @returns {SVGElement} */
function drawing(name, values, words) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(values)) made.setAttribute(key, String(value));
  if (words !== undefined) made.textContent = words;
  return made;
}

/** The medians of all class pairs at a time, [a, b], as far as the page keeps them. @param {Panel} one @param {number} when */
function mediansOf(one, when) {
  const { pairs } = one;
  if (!pairs) return null;
  return pairs.median ? pairs.median[when] : null;
}

/** Each column in units of its own median over the other sources, or less it where there are signs.
 * @param {(number|null)[][]} table @param {boolean} ratio */
function perTarget(table, ratio) {
  const middles = table[0].map((_, b) => medianOf(table.map((row, a) => (a === b && table.length > 2 ? null : row[b]))));
  return table.map((row) => row.map((value, b) => {
    const middle = middles[b];
    if (value === null || middle === null) return null;
    return ratio ? (middle > 0 ? value / middle : null) : value - middle;
  }));
}

/** @param {(number|null)[]} list @returns {number|null} */
function medianOf(list) {
  const known = /** @type {number[]} */ (list.filter((v) => v !== null && Number.isFinite(v))).sort((a, b) => a - b);
  if (!known.length) return null;
  return (known[(known.length - 1) >> 1] + known[known.length >> 1]) / 2;
}

/** A scale around 1, or around 0, for numbers that are relative to a target's usual one.
 * @param {number[]} values @param {boolean} ratio @returns {Scale} */
function relativeScale(values, ratio) {
  const sizes = values.filter((v) => Number.isFinite(v) && (!ratio || v > 0)).map((v) => (ratio ? Math.abs(Math.log10(v)) : Math.abs(v)));
  const top = upperOf(sizes);
  const beyond = sizes.length ? sizes.filter((v) => v > top).length / sizes.length : 0;
  return ratio ? { log: true, anchor: true, low: 10 ** -top, high: 10 ** top, beyond } : { log: false, anchor: true, low: -top, high: top, beyond };
}

/** Decades below the largest that a scale of both signs shows. */
const DECADES = 4;

/** A scale for medians, which are smaller than single pairs: linear, or logarithmic on both sides of 0 where most are far
 * smaller than the largest. @param {number[]} values @param {Scale} scale @returns {Scale} */
function ofMedians(values, scale) {
  const sizes = values.map(Math.abs);
  if (scale.log) {
    const above = sizes.filter((v) => v > 0);
    return { ...scale, low: Math.min(0.5, ...above), high: Math.max(1, ...above), beyond: 0 };
  }
  const top = Math.max(...sizes, 0) || 1;
  const made = { log: false, low: scale.low < 0 ? -top : 0, high: top, beyond: 0 };
  return made.low < 0 && Number(medianOf(sizes)) < top / 100 ? { ...made, both: top / 10 ** DECADES } : made;
}

/** `signs`: numbers that round to 0 show their sign. @typedef {{power: number, places: number, signs?: boolean}} Unit */

/** What a cell says. @param {number|null} value @param {Unit} unit */
function cellWords(value, { power, places, signs }) {
  if (value === null) return "–";
  if (panel().kind === "ratio" && chosen.per === "source") {
    const percent = 100 * value;
    return percent < 1 ? percent.toPrecision(1) : String(Math.round(percent));
  }
  const text = (value / 10 ** power).toFixed(places);
  return Number(text) === 0 ? (signs && value ? (value > 0 ? "+" : "−") : "0") : withMinus(text.length > CELL_WIDTH ? Number(text).toExponential(0).replace("+", "") : text);
}

/** The power of ten that all cells are in units of, 0 where they need none, and how many digits follow the point.
 * @param {number[]} values @returns {Unit} */
function unitOf(values) {
  const top = Math.max(...values.map((value) => Math.abs(value)), 0);
  const power = panel().kind === "ratio" || top === 0 || (top >= 0.1 && top < 1000) ? 0 : Math.floor(Math.log10(top));
  const largest = top / 10 ** power;
  return { power, places: largest < 1 ? 2 : largest < 10 ? 1 : 0 };
}

/** A share in percent, as sentences write it. @param {number} value */
function percentOf(value) {
  const percent = 100 * value;
  return `${percent >= 10 ? Math.round(percent).toLocaleString("en") : digits(Number(percent.toPrecision(2)))} %`;
}

/** How sentences write a number: ratios in percent of how far the source itself moves. @param {number|null} value @param {Panel} [one] */
const amount = (value, one = panel()) => (one.kind === "ratio" && value !== null && value >= 0 ? percentOf(value) : digits(value));

/** How many times as far, with its interval, as sentences write it. @param {number} value @param {number|null} low @param {number|null} high */
function timesWords(value, low, high) {
  const few = (/** @type {number} */ v) => (v < 0.95 ? v.toFixed(2) : v < 9.5 ? v.toFixed(1) : Math.round(v).toLocaleString("en"));
  if (low === null || high === null) return `${few(value)}×`;
  const short = [value, low, high].map(few);
  const narrow = high < 9.5 && (new Set(short).size < 3 || short.slice(1).includes("1.0"));
  const [middle, from, to] = narrow ? [value, low, high].map((v) => v.toFixed(2)) : short;
  return `${middle}× (${from}–${to}×)`;
}

/** The headline at the chosen step, where that is not the last: what is known of it without a test. */
function headlineNow() {
  const { front, pairs, steps, title, kind } = panel();
  const at = `At training step ${steps[chosen.when]}`;
  const { curve } = front;
  if (curve) {
    const value = curve.times[chosen.when];
    return value === null ? `${at}, classes cannot be compared.`
      : `${at}, a step on one example moves other examples of its class ${timesWords(value, curve.low[chosen.when], curve.high[chosen.when])} as far as examples of other classes.`;
  }
  if (!pairs) return "";
  const what = kind === "loss" ? "the change of the loss" : title;
  return `${at}, the median of ${what} is ${amount(pairs.within[chosen.when])} within a class and ${amount(pairs.between[chosen.when])} between classes.`;
}

/** The headline follows the slider, and the evidence says that it is of the last step. @param {HTMLElement} box */
function tellStep(box) {
  const { steps } = panel();
  const [headline, last] = [/** @type {HTMLElement} */ (box.querySelector(".headline")), /** @type {HTMLElement} */ (box.querySelector(".of-last"))];
  if (headline.dataset.last === undefined) headline.dataset.last = headline.textContent || "";
  const now = chosen.when < steps.length - 1 ? headlineNow() : "";
  headline.textContent = now || headline.dataset.last;
  last.textContent = now ? `At the last step, ${steps[steps.length - 1]}: ` : "";
}

/** Whether the chosen step is the last one, which verdicts and frames are of. */
const atLast = () => chosen.when === Math.max(0, panel().steps.length - 1);

/** The measure that a list of runs shows of one: the chosen one where it has it. @param {Run} one */
function listedPanel(one) {
  return one === run() ? panel() : one.panels.find(({ measure }) => measure === panel().measure) || one.panels[firstMeasure(one)];
}

/** Several runs: how many there are, their headline numbers, and a button to choose each. */
function drawRuns() {
  const box = byId("runs");
  box.hidden = data.runs.length < 2;
  if (box.hidden) return;
  const shown = data.runs.map(listedPanel);
  const several = new Set(shown.map(({ title }) => title)).size > 1;
  const known = shown.flatMap(({ front }) => (front.brief.times || []).filter((/** @type {number|null} */ v) => v !== null && v > 0));
  const ends = [Math.min(1, ...known), Math.max(1, ...known)];
  const others = known.length && shown.some(({ front }) => !front.brief.times) ? "; no dot: another scale" : "";
  const what = known.length ? `how many times as far a step moves its own class as others (bar: 95 % interval; line: 1×${others})` : "their main numbers with 95 % intervals";
  const list = element("ul", undefined, "runs");
  list.append(...data.runs.map((one, i) => {
    const { front: { brief }, title, steps } = shown[i];
    const button = element("button");
    button.setAttribute("aria-pressed", String(i === chosen.run));
    const name = element("span", one.name);
    name.append(element("small", `${several ? ` ${title}` : ""}${steps.length > 1 ? ` at step ${steps[steps.length - 1]}` : ""}`));
    button.append(name, intervalOf(brief.times, ends), element("span", brief.words || "–"));
    button.addEventListener("click", () => { choose({ run: i, measure: one.panels.indexOf(shown[i]) }); draw(); });
    const item = element("li");
    item.append(button);
    return item;
  }));
  const head = element("p");
  head.append(element("b", `${data.runs.length} runs`), element("span", `: ${what}`, "detail"), ". Choose one:");
  box.replaceChildren(head, list);
}

/** A dot with its interval on a logarithmic axis that all runs share; the line is at 1. @param {number[]|null} times @param {number[]} ends */
function intervalOf(times, ends) {
  const svg = drawing("svg", { viewBox: "0 0 160 14", class: "interval", "aria-hidden": "true" });
  const [low, high] = ends.map(Math.log);
  const px = (/** @type {number} */ v) => 6 + (148 * (Math.log(v) - low)) / (high - low || 1);
  svg.append(drawing("path", { class: "axis", d: `M${px(1)} 0V14` }));
  if (!times || times[0] === null) return svg;
  if (times[1] !== null && times[2] !== null) svg.append(drawing("path", { d: `M${px(times[1])} 7H${px(times[2])}`, stroke: colourOf(0), "stroke-width": 3 }));
  svg.append(drawing("circle", { cx: px(times[0]), cy: 7, r: 3.5, fill: colourOf(0) }));
  return svg;
}

function drawFront() {
  document.querySelectorAll(".front").forEach((one) => {
    const { run: r, measure } = /** @type {HTMLElement} */ (one).dataset;
    /** @type {HTMLElement} */ (one).hidden = Number(r) !== chosen.run || Number(measure) !== chosen.measure;
    if (!(/** @type {HTMLElement} */ (one).hidden)) tellStep(/** @type {HTMLElement} */ (one));
  });
  drawClasses();
  drawRuns();
  drawNamed();
  drawInfluences();
  drawCurve();
}

function drawClasses() {
  const { pairs, kind, scale, steps, title, measure, front } = panel();
  const medians = mediansOf(panel(), chosen.when);
  const [box, caption, legend] = [byId("class-table"), byId("classes-title"), byId("class-scale")];
  byId("classes").hidden = !pairs || pairs.classes.length < 2;
  if (byId("classes").hidden) return;
  const when = steps.length > 1 ? ` at step ${steps[chosen.when]}` : "";
  if (!medians) {
    caption.textContent = `${pairs.classes.length} classes are too many for a table of numbers; the matrix below shows all examples.`;
    box.replaceChildren();
    legend.replaceChildren(...(toolsOfClasses ? [toolsOfClasses] : []));
    byId("frame-words").textContent = "";
    return;
  }
  const what = kind === "ratio" ? `in percent of how far the source itself moves${title === `√${measure}` ? ` (√${measure})` : ""}` : kind === "loss" ? "median change of their loss" : `median of ${title}`;
  const relative = chosen.per === "target";
  const axes = kind === "ratio" || kind === "loss" ? "Rows: the class a step is taken on. Columns: the class whose predictions move" : "Rows: the class of the source. Columns: the class of the target";
  const table = relative ? perTarget(medians, kind === "ratio") : medians;
  const unit = unitOf(table.flat().filter((/** @type {number|null} */ v) => v !== null));
  const every = (/** @type {any} */ lists) => /** @type {number[]} */ (lists.flat(2).filter((/** @type {number|null} */ v) => v !== null));
  const colours = relative ? relativeScale(every(table), kind === "ratio") : ofMedians(every(pairs.median), scale);
  unit.signs = Boolean(colours.both);
  const units = unit.power ? `, in units of ${digits(10 ** unit.power).replace("1 × ", "")}` : "";
  const near = unit.signs ? "; + and − are closer to 0" : "";
  caption.textContent = `${axes}${when}, ${relative ? "relative to the usual source of that column" : what}${units}${near}.`;
  const { framed, legend: frames, larger } = front.named;
  const frame = !framed.length ? "" : atLast() ? ` ${frames}${larger && ` ${larger}`}` : ` Frames are of the last step, ${steps[steps.length - 1]}.`;
  byId("frame-words").textContent = unbroken(`${touched()} a cell for its pairs.${frame}`);
  box.replaceChildren(classTable(table, colours, unit));
  legend.replaceChildren(...legendOf(colours), ...(toolsOfClasses ? [toolsOfClasses] : []));
}

/** The classes that a side has, by their places in the panel's. @param {Side} side */
function classesOf(side) {
  const there = new Set(side.places.map((_, i) => classOf(side, i)));
  return panel().pairs.classes.map((/** @type {string} */ name, /** @type {number} */ a) => (there.has(name) ? a : -1)).filter((/** @type {number} */ a) => a >= 0);
}

/** @param {(number|null)[][]} table @param {Scale} colours @param {Unit} unit */
function classTable(table, colours, unit) {
  const { classes } = panel().pairs;
  const [rows, columns] = [classesOf(run().sources), classesOf(run().targets)];
  const [from, to] = [classOf(run().sources, chosen.source), classOf(run().targets, chosen.target)];
  const picked = chosen.cell === "open" || chosen.cell === "pair";
  const framed = new Set(atLast() ? panel().front.named.framed.map(String) : []);
  const made = element("table", undefined, `class-table${columns.length > 12 ? " many" : ""}`);
  made.classList.toggle("long", table.flat().some((value) => cellWords(value, unit).length >= CELL_WIDTH));
  const turned = columns.some((/** @type {number} */ b) => classes[b].length > SHORT_NAME);
  const head = element("tr");
  head.append(element("th", panel().kind === "ratio" || panel().kind === "loss" ? "↓ step on" : "↓ source", "corner"));
  for (const name of columns.map((/** @type {number} */ b) => classes[b])) {
    const cell = element("th", undefined, `column${turned ? " turned" : ""}`);
    cell.append(element("span", clipped(name, NAME)));
    cell.title = name;
    cell.setAttribute("scope", "col");
    head.append(cell);
  }
  made.append(head);
  for (const a of rows) {
    const line = element("tr");
    const name = element("th", clipped(classes[a], matchMedia("(max-width: 44rem)").matches ? ROW_NAME_ON_PHONES : ROW_NAME), "row");
    name.title = classes[a];
    name.classList.toggle("chosen", chosen.cell === "row" && classes[a] === from);
    name.setAttribute("scope", "row");
    line.append(name);
    for (const b of columns) {
      const value = table[a][b];
      const button = element("button", cellWords(value, unit));
      const colour = shade(colours, value);
      const here = picked && classes[a] === from && classes[b] === to;
      Object.assign(button.style, { background: colour, color: inkOn(colour) });
      button.style.setProperty("--frame", inkOn(colour));
      button.style.setProperty("--halo", inkOn(inkOn(colour)));
      Object.assign(button.dataset, { a: String(a), b: String(b) });
      button.classList.toggle("clear", framed.has(`${a},${b}`));
      button.setAttribute("aria-pressed", String(here));
      const said = suggestedWords(a, b, framed);
      button.setAttribute("aria-label", `step on ${classes[a]}, moves ${classes[b]}: ${cellWords(value, unit)}${said && `; ${said}`}`);
      if (said) button.title = `${classes[a]} → ${classes[b]}: ${amount(mediansOf(panel(), chosen.when)?.[a][b] ?? null)}, ${said}`;
      button.tabIndex = -1;
      const cell = element("td");
      cell.append(button);
      line.append(cell);
    }
    made.append(line);
  }
  const stop = /** @type {HTMLElement|null} */ (made.querySelector("button[aria-pressed=true]") || made.querySelector("button"));
  if (stop) stop.tabIndex = 0;
  return made;
}

/** Why a cell has a frame or not: what its row and column suggest. @param {number} a @param {number} b @param {Set<string>} framed */
function suggestedWords(a, b, framed) {
  const { expected } = panel().front.named;
  const usual = atLast() && expected ? expected[a][b] : null;
  return usual === null ? "" : `its row and column suggest ${amount(usual)}${framed.has(`${a},${b}`) ? "" : ", not clearly different"}`;
}

/** A strip of colours with its ends, and how much lies beyond. @param {Scale} scale */
function legendOf(scale) {
  const { percent } = scale;
  const strip = /** @type {HTMLCanvasElement} */ (element("canvas"));
  [strip.width, strip.height] = [120, 1];
  const pen = strip.getContext("2d");
  const [low, high] = endsOf(scale);
  for (let x = 0; pen && x < 120; x++) {
    const at = low + ((high - low) * x) / 119;
    pen.fillStyle = shade(scale, scale.log ? 10 ** at : scale.both ? Math.sign(at) * scale.both * 10 ** Math.abs(at) : at);
    pen.fillRect(x, 0, 1, 1);
  }
  const anchored = scale.log && scale.high > 1.001 && scale.low < 1;
  if (pen && anchored) {
    pen.fillStyle = "#000";
    pen.fillRect(Math.round((119 * (0 - low)) / (high - low)), 0, 1, 1);
  }
  const words = (/** @type {number} */ value) => (percent ? `${digits(Number((100 * value).toPrecision(2)))} %` : digits(value));
  const ends = scale.beyond ? ["≤ ", "≥ "] : ["", ""];
  const notes = `${anchored ? `line: ${percent ? "100 %, as far as itself" : "1, as usual"}; ` : ""}${scale.both ? "colours are logarithmic; " : ""}grey: no resolved pair`;
  return [element("span", ends[0] + words(scale.low)), strip, element("span", ends[1] + words(scale.high)), element("span", notes)];
}

/** The pair of two classes that is nearest to their median. @param {Float32Array} values @param {number} a @param {number} b */
function typicalPair(values, a, b) {
  const found = pairsBetween(values, a, b);
  return found.length ? found[found.length >> 1] : null;
}

/** All known pairs of two classes, the largest first; an example with itself left out.
 * @param {Float32Array} values @param {number} a place in the panel's classes @param {number} b */
function pairsBetween(values, a, b) {
  const { sources, targets, square } = run();
  const { classes } = panel().pairs;
  const width = targets.places.length;
  /** @type {{source: number, target: number, value: number}[]} */
  const found = [];
  sources.places.forEach((_, source) => {
    if (classOf(sources, source) !== classes[a]) return;
    for (let target = 0; target < width; target++) {
      const value = values[source * width + target];
      if (classOf(targets, target) === classes[b] && Number.isFinite(value) && !(square && source === target)) found.push({ source, target, value });
    }
  });
  return found.sort((p, q) => q.value - p.value);
}

/** The same without line breaks beside arrows and signs. @param {string} text */
const unbroken = (text) => text.replace(/ ([→↔<≤=×]) /g, "\u00a0$1\u00a0").replace(/ %/g, "\u00a0%");

/** The pairs that the first screen names, of classes or of examples. */
function drawNamed() {
  const { named } = panel().front;
  const box = byId("named");
  box.hidden = !named.title && !named.words;
  if (box.hidden) return;
  const list = element("div", undefined, "named-list");
  list.append(...named.pairs.map(namedPair));
  const framed = named.framed.length && atLast() ? ", framed in the matrix" : "";
  box.replaceChildren(element("p", named.title + framed, "named-title"), list, ...(named.words ? [element("p", unbroken(named.words), "evidence")] : []));
}

/** The value of a pair of classes over training, and what its row and column suggest (dashed), both with their first and
 * last numbers; the dot is the chosen step. @param {{cell: (number|null)[], suggested: (number|null)[]}} one */
function sparkline({ cell, suggested }) {
  const { steps } = panel();
  const { x } = timesOf(steps);
  const [left, right, top, bottom, last] = [30, 112, 17, 47, x.length - 1];
  const lines = [{ name: "measured", values: cell, colour: colourOf(0), dash: "none" }, { name: "suggested", values: suggested, colour: colourOf(2), dash: "3 2" }]
    .map((line) => ({ ...line, known: line.values.map((value, k) => ({ k, value: Number(value) })).filter(({ k, value }) => line.values[k] !== null && Number.isFinite(value)) }));
  const all = lines.flatMap(({ known }) => known.map(({ value }) => value));
  const ends = [Math.min(0, ...all), Math.max(0, ...all)];
  const px = (/** @type {number} */ k) => left + ((right - left) * (x[k] - x[0])) / (x[last] - x[0] || 1);
  const py = (/** @type {number} */ value) => bottom - ((bottom - top) * (value - ends[0])) / (ends[1] - ends[0] || 1);
  const told = lines.filter(({ known }) => known.length).map(({ name, known }) => `${name} ${amount(known[0].value)} at step ${steps[known[0].k]}, ${amount(known[known.length - 1].value)} at step ${steps[known[known.length - 1].k]}`);
  const svg = drawing("svg", { viewBox: "0 0 150 60", class: "sparkline", role: "img", "aria-label": told.join("; ") });
  svg.append(drawing("path", { class: "axis", d: `M${left} ${py(0)}H${right}` }));
  for (const { known, colour, dash } of lines)
    if (known.length) svg.append(drawing("path", { d: `M${known.map(({ k, value }) => `${px(k)} ${py(value)}`).join("L")}`, fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash }));
  for (const end of [0, 1]) {
    const here = lines.filter(({ known }) => known.length).map(({ known }) => known[end ? known.length - 1 : 0].value);
    const moves = movesApart(here.map((value) => ({ left: 0, right: 9, top: py(value) - 5, bottom: py(value) + 5 })), 0);
    here.forEach((value, i) => svg.append(drawing("text", { x: end ? right + 4 : left - 3, y: py(value) + 3.5 + moves[i], "text-anchor": end ? "start" : "end", class: i ? "" : "named" }, amount(value))));
  }
  svg.append(drawing("text", { x: 2, y: 9, class: "named" }, "— measured"), drawing("text", { x: 148, y: 9, "text-anchor": "end" }, "╌ suggested"));
  const now = lines[0].known.find(({ k }) => k === chosen.when);
  if (now) svg.append(drawing("circle", { cx: px(now.k), cy: py(now.value), r: 3, fill: colourOf(0) }));
  svg.append(drawing("text", { x: left, y: 58, "text-anchor": "middle" }, String(steps[0])), drawing("text", { x: right, y: 58, "text-anchor": "middle" }, `step ${steps[steps.length - 1]}`));
  return svg;
}

/** A card: the two examples, or the typical pair of two classes. @param {any} one */
function namedPair(one) {
  const button = element("button", undefined, one.source === undefined ? "pair-card" : "pair-card tall");
  const thumbs = element("div", undefined, "thumbs");
  const words = element("div");
  words.append(element("b", unbroken(one.head)), ` ${unbroken(one.words)}`, ...[one.more, one.since].filter(Boolean).map((said) => element("small", unbroken(said))));
  button.append(thumbs, words, ...(one.cell ? [sparkline(one)] : []));
  const { sources, targets } = run();
  const picture = (/** @type {number} */ source, /** @type {number} */ target) => {
    if (sources.examples && targets.examples) thumbs.replaceChildren(exampleOf(sources, source), element("span", "→"), exampleOf(targets, target));
  };
  if (one.source !== undefined) {
    picture(one.source, one.target);
    button.addEventListener("click", () => pick({ source: one.source, target: one.target }).then(() => { chosen.view = "matrix"; look(); }));
  } else {
    button.addEventListener("click", () => openCell(one.from, one.to));
    numbers(panel().matrices[panel().matrices.length - 1].block).then((values) => {
      const pair = typicalPair(values, one.from, one.to);
      if (pair) picture(pair.source, pair.target);
    });
  }
  return button;
}

/** Choose a cell of the class matrix everywhere, by its typical pair. @param {number} a @param {number} b */
async function openCell(a, b) {
  const values = await numbers(panel().matrices[exactPlace()].block);
  const pair = typicalPair(values, a, b);
  if (!pair) return;
  choose({ source: pair.source, target: pair.target, cell: "open" });
  await afterChoice();
  bringIntoView(byId("behind"));
}

/** Scroll as little as needed to see a box, or its beginning where it is taller than the screen. @param {HTMLElement} box */
function bringIntoView(box) {
  const { top, bottom, height } = box.getBoundingClientRect();
  if (box.hidden || (top >= 0 && bottom <= innerHeight)) return;
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  box.scrollIntoView({ block: height > 0.6 * innerHeight ? "start" : "nearest", behavior });
}

/** The pairs behind the chosen cell. */
async function showBehind() {
  const box = byId("behind");
  const { pairs } = panel();
  const [from, to] = [classOf(run().sources, chosen.source), classOf(run().targets, chosen.target)];
  box.hidden = chosen.cell !== "open" || !pairs || from === null || to === null;
  if (box.hidden) return;
  const place = exactPlace();
  const [a, b] = [pairs.classes.indexOf(from), pairs.classes.indexOf(to)];
  const found = pairsBetween(await numbers(panel().matrices[place].block), a, b);
  const when = panel().steps.length > 1 ? ` at step ${panel().steps[place]}` : "";
  const middle = found.length >> 1;
  const parts = found.length <= 3 * BEHIND ? [["all", found]]
    : [["largest", found.slice(0, BEHIND)], ["typical", found.slice(middle - (BEHIND >> 1), middle + (BEHIND >> 1))], ["smallest", found.slice(-BEHIND)]];
  const median = medianOf(found.map((p) => p.value));
  const much = panel().kind === "ratio" ? "how far the target moves, in percent of how far the source itself does" : panel().title;
  const head = element("h3", `${from} → ${to}: ${found.length.toLocaleString("en")} ${found.length === 1 ? "pair" : "pairs"} of examples${when}, median ${median === null ? "–" : amount(median)} (${much})`);
  const close = element("button", "Close");
  close.addEventListener("click", () => {
    choose({ cell: "" });
    remember();
    drawFront();
    box.hidden = true;
    focusCell(a, b);
    bringIntoView(byId("classes"));
  });
  box.replaceChildren(head, close, ...parts.flatMap(([name, list]) => {
    const listed = element("ul", undefined, "behind");
    listed.append(.../** @type {any[]} */ (list).map(behindPair));
    return [element("h4", /** @type {string} */ (name)), listed];
  }));
  oneTabStop(box, ".behind button");
}

/** @param {{source: number, target: number, value: number}} pair */
function behindPair({ source, target, value }) {
  const { sources, targets } = run();
  const button = element("button");
  const two = element("div", undefined, "two");
  two.append(exampleOf(sources, source), exampleOf(targets, target));
  button.append(two, element("div", `${nameOf(sources, source)} → ${nameOf(targets, target)}: ${amount(value)}`));
  button.addEventListener("click", () => pick({ source, target }));
  const item = element("li");
  item.append(button);
  return item;
}

/** Helpers and harmers that the first screen shows of a target. */
const ENDS = 3;

/** The sources whose steps lower and raise the loss of the chosen target most: of all sources at the last step, of those
 * on the page at others. @returns {Promise<{side: Side, helps: {i: number, value: number}[], harms: {i: number, value: number}[]}>} */
async function influences() {
  const { listed, matrices } = panel();
  const place = exactPlace();
  if (listed && place === matrices.length - 1) {
    const list = (/** @type {[number, number][][]} */ all) => all[chosen.target].map(([i, value]) => ({ i, value }));
    return { side: listed.sources, helps: list(listed.helps), harms: list(listed.harms) };
  }
  const { sources, targets, square } = run();
  const found = rankedSources(await numbers(matrices[place].block), targets.places.length, chosen.target, square).map(({ target, value }) => ({ i: target, value }));
  return { side: sources, helps: found.filter(({ value }) => value < 0).reverse().slice(0, TOP), harms: found.filter(({ value }) => value > 0).slice(0, TOP) };
}

/** A source of a list: chosen where it is on the page. @param {Side} side @param {{i: number, value: number}} one */
function influenceItem(side, { i, value }) {
  const at = run().sources.places.indexOf(side.places[i]);
  const item = element("li");
  const button = element(at >= 0 ? "button" : "div", undefined, "influence");
  button.append(exampleOf(side, i), element("div", signed(Number(value.toPrecision(2)))), element("div", nameOf(side, i)));
  if (at >= 0) button.addEventListener("click", () => pick({ source: at }));
  item.append(button);
  return item;
}

/** @param {Side} side @param {{i: number, value: number}[]} list @param {string} title */
function influenceList(side, list, title) {
  const listed = element("ul", undefined, "examples");
  listed.append(...list.map((one) => influenceItem(side, one)));
  return [element("h4", list.length ? title : `${title}: none`), listed];
}

/** Who helps and who harms the chosen target, where the measure is a change of the loss. */
async function drawInfluences() {
  const box = byId("influences");
  box.hidden = panel().kind !== "loss";
  if (box.hidden) return;
  const { side, helps, harms } = await influences();
  const { targets } = run();
  const head = element("p", `The target ${nameOf(targets, chosen.target)}: which steps change its loss most`, "named-title");
  const several = targets.places.length > 1 ? "Choose another target in the matrix below. " : "";
  const whole = side === run().sources ? "" : "These are the strongest of all sources, also of those that the page does not show.";
  const ends = [["helps: the loss falls", helps], ["harms: the loss rises", harms]].map(([title, list]) => {
    const part = element("div");
    part.append(...influenceList(side, /** @type {any[]} */ (list).slice(0, ENDS), String(title)));
    return part;
  });
  const two = element("div", undefined, "two");
  two.append(...ends);
  box.replaceChildren(head, two, element("p", several + whole, "evidence"));
  oneTabStop(box, ".examples button");
}

/** A small plot over training: lines with bands, the change, the chosen step.
 * @param {{name: string, colour: string, values: (number|null)[], low?: (number|null)[], high?: (number|null)[], right?: boolean, dash?: string}[]} lines
 * @param {number[]|null} change @param {string} words what a screen reader says @param {number} width */
function smallPlot(lines, change, words, width) {
  const { steps } = panel();
  const [height, left, right, top, bottom] = [128, 30, lines.some((line) => line.right) ? 38 : 16, 16, 30];
  const { x: places, ticks } = timesOf(steps);
  const [first, last] = [places[0], places[places.length - 1]];
  const px = (/** @type {number} */ at) => left + ((width - left - right) * (at - first)) / (last - first || 1);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, class: "small-plot", role: "img", "aria-label": words });
  if (change) {
    const [a, b] = change.map((step) => px(placeOfStep(steps, step)));
    svg.append(drawing("rect", { class: "change", x: a, y: top, width: Math.max(2, b - a), height: height - top - bottom }));
  }
  svg.append(drawing("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  for (const { at, text } of thatFit(ticks, first, last)) {
    const anchor = at === last && lines.some((line) => line.right) ? "end" : "middle";  // beside the right axis's own words
    svg.append(drawing("text", { x: px(at), y: height - bottom + 13, "text-anchor": anchor }, text));
  }
  svg.append(drawing("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "training step"));
  const numbersOf = (/** @type {any} */ line) => /** @type {number[]} */ ([...line.values, ...(line.low || []), ...(line.high || [])].filter((v) => v !== null && Number.isFinite(v)));
  const together = lines.filter((line) => !line.right).flatMap(numbersOf);
  const ends = [Math.min(lines[0].low ? 1 : 0, ...together), Math.max(...together)];
  lines.forEach((line, i) => {
    if (!numbersOf(line).length) return;
    const bound = line.right ? [0, 1] : ends;
    const py = (/** @type {number} */ v) => height - bottom - ((height - top - bottom) * (v - bound[0])) / (bound[1] - bound[0] || 1);
    const known = line.values.map((v, k) => /** @type {[number, number|null]} */ ([k, v])).filter(([, v]) => v !== null);
    if (line.low && line.high) {
      const edge = known.filter(([k]) => line.low && line.low[k] !== null && line.high && line.high[k] !== null);
      const there = edge.map(([k]) => `${px(places[k])} ${py(Number(/** @type {any} */ (line.high)[k]))}`);
      const back = edge.map(([k]) => `${px(places[k])} ${py(Number(/** @type {any} */ (line.low)[k]))}`).reverse();
      svg.append(drawing("path", { d: `M${[...there, ...back].join("L")}Z`, fill: line.colour, opacity: 0.2 }));
    }
    svg.append(drawing("path", { d: `M${known.map(([k, v]) => `${px(places[k])} ${py(Number(v))}`).join("L")}`, fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-dasharray": line.dash || "none" }));
    for (const value of i === 0 || line.right ? bound : [])
      svg.append(drawing("text", { x: line.right ? width - right + 3 : left - 3, y: py(value) + 4, "text-anchor": line.right ? "start" : "end" }, line.right ? `${Math.round(100 * value)} %` : digits(Number(value.toPrecision(2)))));
    svg.append(drawing("text", { class: "named", x: line.right ? width - right : left + 2 + 100 * i, y: 10, "text-anchor": line.right ? "end" : "start" }, `${line.dash ? "╌" : "—"} ${line.name}`));
  });
  if (lines[0].low && ends[0] < 1.25 && ends[1] > 1.25) {
    const at = height - bottom - ((height - top - bottom) * (1.25 - ends[0])) / (ends[1] - ends[0]);
    svg.append(drawing("path", { class: "bound", d: `M${left} ${at}H${width - right}` }));
  }
  const now = px(places[chosen.when]);
  svg.append(drawing("path", { class: "now", d: `M${now} ${top}V${height - bottom}` }));
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    const nearest = places.map((place, k) => [Math.abs(px(place) - at), k]).sort((p, q) => p[0] - q[0])[0][1];
    choose({ when: nearest });
    draw();
  });
  return svg;
}

/** Width between the axes of the narrowest small plot. */
const NARROWEST = 180;

/** The ticks whose texts do not touch in the narrowest small plot, so that plots beside each other have the same.
 * @param {{at: number, text: string}[]} ticks @param {number} first @param {number} last */
function thatFit(ticks, first, last) {
  let before = -99;
  return ticks.filter(({ at, text }) => {
    const here = (NARROWEST * (at - first)) / (last - first || 1);
    if (here - before < 9 + 7 * text.length) return false;
    before = here;
    return true;
  });
}

/** Where a step lies between the probes. @param {number[]} steps @param {number} step */
function placeOfStep(steps, step) {
  const { x } = timesOf(steps);
  const k = steps.findIndex((one) => one >= step);
  return x[k < 0 ? steps.length - 1 : k];
}

function drawCurve() {
  const { steps, front, pairs } = panel();
  const { state } = run();
  const curve = front.curve;
  const figure = byId("curve");
  const first = curve ? [{ name: "times as far", colour: colourOf(0), values: curve.times, low: curve.low, high: curve.high }]
    : pairs ? [{ name: "same class", colour: colourOf(0), values: pairs.within }, { name: "other classes", colour: colourOf(2), values: pairs.between, dash: "5 3" }] : [];
  figure.hidden = steps.length < 2 || !first.length;
  if (figure.hidden) return;
  const mark = curve && (curve.change || curve.steepest);
  const kind = curve && curve.change ? "change point" : "steepest rise";
  byId("curve-title").textContent = curve
    ? `Times as far as other classes a step moves its own class (dotted: 1.25×; band: 95 % interval)${mark ? `; shaded: ${kind}, steps ${mark[0]} to ${mark[1]}` : ""}.`
    : `Medians of ${panel().title} over training.`;
  byId("curve-plot").replaceChildren(smallPlot(first, mark || null, byId("curve-title").textContent, 330));
  const lines = [];
  if (state.loss) lines.push({ name: "loss", colour: colourOf(2), values: state.loss });
  if (state.accuracy) lines.push({ name: "accuracy", colour: colourOf(3), values: state.accuracy, right: true, dash: "5 3" });
  byId("state-plot").replaceChildren(...(lines.length ? [smallPlot(lines, mark || null, "Loss and accuracy of the sources over training", 250)] : []));
}
