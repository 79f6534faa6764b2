// @ts-check
"use strict";
/* The page at work: what is chosen, what follows from it. */

/** @type {{runs: Run[]}} */
let data;
/** @type {Chosen} */
const chosen = { view: "short", run: 0, measure: 0, when: 0, order: "class", source: 0, target: 0, curves: "", colours: "class" };
/** The part of the matrix in view: [r0, r1, c0, c1]. @type {number[]|null} */
let part = null;
/** What the matrix shows now. @type {any} */
let seen = null;
const TOP = 10;

const run = () => data.runs[chosen.run];
const panel = () => run().panels[chosen.measure];

/** The nearest exact matrix at or after the chosen time. */
function exactPlace() {
  const { matrices } = panel();
  let place = chosen.when;
  while (!matrices[place].exact) place++;
  return place;
}

/** @param {any} asked */
function choose(asked) {
  const r = within(asked.run, data.runs.length, chosen.run);
  const changed = r !== chosen.run;
  chosen.run = r;
  const measure = within(asked.measure, run().panels.length, changed ? 0 : chosen.measure);
  const last = run().panels[measure].matrices.length - 1;
  const again = changed || measure !== chosen.measure;
  chosen.measure = measure;
  chosen.when = within(asked.when, last + 1, again ? last : Math.min(chosen.when, last));
  const orders = ordersOf(run());
  chosen.order = orders.includes(asked.order) ? asked.order : changed || !orders.includes(chosen.order) ? orders[0] : chosen.order;
  chosen.source = within(asked.source, run().sources.places.length, changed ? 0 : chosen.source);
  chosen.target = within(asked.target, run().targets.places.length, changed ? 0 : chosen.target);
  if (asked.curves !== undefined) chosen.curves = String(asked.curves);
  chosen.colours = ["class", "cluster"].includes(asked.colours) ? asked.colours : chosen.colours;
  if (asked.view && byId(asked.view)) chosen.view = asked.view;
  if (changed) part = null;
}

/** @param {Run} one */
function ordersOf(one) {
  const orders = [];
  if (one.sources.clusters) orders.push("cluster");
  if (one.sources.classes) orders.push("class");
  return [...orders.reverse(), "as it was"];
}

function remember() {
  try {
    history.replaceState(null, "", toHash(chosen));
  } catch (_) {
    /* some viewers forbid it; the page works without */
  }
}

/** Fill a select. @param {string} id @param {[string, string][]} options value and words @param {string} value */
function fill(id, options, value) {
  const select = byId(id);
  select.replaceChildren(...options.map(([key, words]) => {
    const option = /** @type {HTMLOptionElement} */ (element("option", words));
    option.value = key;
    return option;
  }));
  select.value = value;
}

/** @param {string[]} list @returns {[string, string][]} */
const counted = (list) => list.map((words, i) => [String(i), words]);

function controls() {
  fill("run", counted(data.runs.map((one) => one.name)), String(chosen.run));
  fill("measure", counted(run().panels.map((one) => one.measure)), String(chosen.measure));
  fill("order", ordersOf(run()).map((order) => [order, order]), chosen.order);
  const steps = panel().steps;
  const several = steps.length > 1;
  const needs = { time: several, distance: Boolean(run().scatter), map: Boolean(panel().places), compare: comparable().length > 1 };
  for (const [name, there] of Object.entries(needs))
    document.querySelectorAll(`[data-needs="${name}"]`).forEach((one) => (/** @type {HTMLElement} */ (one).hidden = !there));
  byId("time").hidden = !several || !panel().pairs;
  byId("when").max = String(Math.max(0, steps.length - 1));
  byId("when").value = String(chosen.when);
  byId("when").setAttribute("aria-valuetext", several ? `step ${steps[chosen.when]}` : "");
  byId("step").textContent = several ? String(steps[chosen.when]) : "";
  const classes = panel().pairs && panel().pairs.median ? panel().pairs.classes : [];
  fill("curves", [["", "within and between classes"], ...classes.map((/** @type {string} */ name) => [name, `a step on class ${name}`])],
    classes.includes(chosen.curves) ? chosen.curves : "");
  const side = run().sources;
  const colours = /** @type {[string, string][]} */ ([["class", "class"], ["cluster", "cluster"]].filter(([key]) => (key === "class" ? side.classes : side.clusters)));
  fill("colours", colours, chosen.colours);
  document.querySelectorAll("#short .card").forEach((one) => one.classList.toggle("current", Number(/** @type {HTMLElement} */ (one).dataset.run) === chosen.run));
}

async function drawMatrix() {
  const { sources, targets } = run();
  const stored = panel().matrices[chosen.when];
  const values = await numbers(stored.block);
  const [n, m] = [sources.places.length, targets.places.length];
  const order = stored.exact ? chosen.order : sources.classes ? "class" : "as it was";
  const [rows, columns] = [orderOf(sources, order), orderOf(targets, order)];
  const view = part || [0, n, 0, m];
  seen = { values, stored, rows, columns, n, m, order };
  let trace;
  if (stored.exact) {
    const { z, dy, dx } = windowOf(values, m, rows, columns, view, CELLS);
    trace = { z, y0: view[0] + (dy - 1) / 2, dy, x0: view[2] + (dx - 1) / 2, dx };
  } else {
    const [parts, across] = /** @type {[number, number]} */ (stored.shape);
    const z = Array.from({ length: parts }, (_, i) => Array.from(values.slice(i * across, (i + 1) * across), (v) => (Number.isFinite(v) ? v : null)));
    trace = { z, y0: n / parts / 2 - 0.5, dy: n / parts, x0: m / across / 2 - 0.5, dx: m / across };
  }
  noteMatrix(stored, trace);
  const [low, high] = panel().range;
  const [ty, tx] = [ticksOf(groupsOf(sources, order, rows)), ticksOf(groupsOf(targets, order, columns))];
  const line = (/** @type {any} */ place) => ({ type: "line", line: { color: "#ffffff", width: 1 }, ...place });
  const shapes = [...ty.edges.map((y) => line({ y0: y, y1: y, x0: -0.5, x1: m - 0.5 })), ...tx.edges.map((x) => line({ x0: x, x1: x, y0: -0.5, y1: n - 0.5 }))];
  const axis = (/** @type {any} */ ticks, /** @type {string} */ title, /** @type {number[]} */ range) => ({ title: { text: title }, range, showgrid: false, zeroline: false,
    ...(ticks.tickvals.length ? { tickmode: "array", tickvals: ticks.tickvals, ticktext: ticks.ticktext } : {}) });
  const layout = layoutOf({ shapes, margin: { l: 55, r: 5, t: 25, b: 45 }, hovermode: false,
    yaxis: axis(ty, "source (stepped on)", [view[1] - 0.5, view[0] - 0.5]), xaxis: axis(tx, "target (prediction read)", [view[2] - 0.5, view[3] - 0.5]) });
  layout.plot_bgcolor = "#9a9a9a";
  const heat = { type: "heatmap", ...trace, zmin: low, zmax: high, colorscale: low < 0 ? DIVERGING : "Viridis", hoverinfo: "skip",
    colorbar: { thickness: 12, len: 0.9, title: { text: plain(panel().measure), side: "right" } } };
  await Plotly.react("matrix-plot", [heat], layout, CONFIG);
  mark();
}

/** @param {Stored} stored @param {any} trace */
function noteMatrix(stored, trace) {
  const note = byId("matrix-note");
  const block = `${Math.ceil(trace.dy)} × ${Math.ceil(trace.dx)}`;
  note.hidden = stored.exact && trace.dy === 1 && trace.dx === 1;
  note.textContent = stored.exact
    ? `Each dot is the mean of ${block} pairs; zoom in to see single ones. What you point at is exact.`
    : `At this step the page keeps means of about ${block} pairs in the order of classes; single pairs are kept at step ${panel().steps[exactPlace()]} and after.`;
}

/** What lies under the pointer: places in the order. @param {MouseEvent} event */
function under(event) {
  const plot = byId("matrix-plot");
  const area = plot.querySelector(".nsewdrag");
  if (!area || !seen) return null;
  const box = area.getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout;
  const row = Math.round(yaxis.p2d(event.clientY - box.top));
  const column = Math.round(xaxis.p2d(event.clientX - box.left));
  const inside = event.clientX >= box.left && event.clientX < box.right && event.clientY >= box.top && event.clientY < box.bottom;
  return inside && row >= 0 && column >= 0 && row < seen.n && column < seen.m ? { row, column } : null;
}

/** A frame around the chosen cell. */
function mark() {
  const plot = byId("matrix-plot");
  let frame = plot.querySelector(".mark");
  if (!frame) plot.append((frame = element("div", undefined, "mark")));
  const { xaxis, yaxis } = plot._fullLayout;
  const [row, column] = [seen.rows.indexOf(chosen.source), seen.columns.indexOf(chosen.target)];
  const [left, right, top, bottom] = [xaxis.d2p(column - 0.5), xaxis.d2p(column + 0.5), yaxis.d2p(row - 0.5), yaxis.d2p(row + 0.5)];
  const [width, height] = [Math.max(right - left, 7), Math.max(bottom - top, 7)];
  const [x, y] = [(left + right - width) / 2, (top + bottom - height) / 2];
  frame.hidden = x < -width || y < -height || x > xaxis._length || y > yaxis._length;
  Object.assign(frame.style, { left: `${xaxis._offset + x}px`, top: `${yaxis._offset + y}px`, width: `${width}px`, height: `${height}px` });
}

/** @param {Side} side @param {number} i @param {string} title */
function shownExample(side, i, title) {
  const box = element("div");
  box.append(element("b", title), exampleOf(side, i), element("div", nameOf(side, i)));
  const cluster = clusterOf(side, i);
  if (cluster !== null) box.append(element("div", `cluster ${cluster}`));
  return box;
}

/** The two examples and their numbers. @param {number} source @param {number} target */
function showPair(source, target) {
  const { sources, targets, square } = run();
  const two = element("div", undefined, "two");
  two.append(shownExample(sources, source, "source"), shownExample(targets, target, "target"));
  const words = element("div");
  if (seen.stored.exact) {
    const value = seen.values[source * seen.m + target];
    words.append(element("div", Number.isFinite(value) ? digits(value) : "unresolved", "big"));
    words.append(element("div", `${panel().measure}, source to target`));
    if (square) words.append(element("div", `the other way round ${digits(seen.values[target * seen.m + source])}`));
    const own = panel().own;
    if (own) words.append(element("div", `the source itself moved ${digits(own[source])}`));
  } else {
    const [parts, across] = seen.stored.shape;
    const value = seen.values[blockOf(seen.rows.indexOf(source), seen.n, parts) * across + blockOf(seen.columns.indexOf(target), seen.m, across)];
    words.append(element("div", digits(value), "big"), element("div", "mean over the block of pairs around this one"));
  }
  byId("pair").replaceChildren(two, words);
}

/** @param {{target: number, value: number}[]} list @param {string} title */
function gallery(list, title) {
  const { targets, square } = run();
  const items = list.map(({ target, value }) => {
    const item = element("li");
    const button = element("button");
    button.append(exampleOf(targets, target), element("div", digits(value)), element("div", nameOf(targets, target)));
    button.addEventListener("click", () => (square ? pick({ source: target }) : pick({ target })));
    item.append(button);
    return item;
  });
  const listed = element("ul", undefined, "examples");
  listed.append(...items);
  return [element("h4", title), listed];
}

async function showMoved() {
  const place = exactPlace();
  const values = await numbers(panel().matrices[place].block);
  const { sources, targets, square } = run();
  const order = ranked(values, targets.places.length, chosen.source, square);
  const head = element("h3", `A step on ${nameOf(sources, chosen.source)}`);
  const when = panel().steps.length > 1 ? ` at step ${panel().steps[place]}` : "";
  const box = byId("moved");
  if (!order.length) {
    box.replaceChildren(head, element("p", "moves nothing that could be resolved."));
    return;
  }
  const itself = element("div", undefined, "itself");
  itself.append(exampleOf(sources, chosen.source));
  const top = Math.min(TOP, order.length);
  box.replaceChildren(head, itself, ...gallery(order.slice(0, top), `moves these most${when}`),
    ...gallery(order.slice(-top).reverse(), `and these least`));
}

async function drawRest() {
  const tasks = [showMoved()];
  if (!byId("time").hidden) tasks.push(drawTime(panel(), byId("curves").value, chosen.when));
  if (run().scatter) tasks.push(distance());
  if (panel().places) tasks.push(map());
  await Promise.all(tasks);
}

async function distance() {
  const place = exactPlace();
  const rho = run().scatter.correlations[chosen.measure];
  const when = panel().steps.length > 1 ? ` The plot is at step ${panel().steps[place]}, the correlation at the last.` : "";
  const strength = rho === null ? "" : Math.abs(rho) < 0.2 ? "hardly related" : Math.abs(rho) < 0.5 ? "somewhat related" : "clearly related";
  byId("distance-words").textContent = (rho === null ? "Distance and similarity cannot be correlated here."
    : `Rank correlation of distance and ${panel().measure} over all pairs: ${digits(rho)}, ${strength}. At equal distance, the gap between the two groups is what the network has learned beyond distance. A few extreme pairs lie above the plot; zoom out to see them.`) + when;
  await drawDistance(run(), panel(), await numbers(panel().matrices[place].block));
}

async function map() {
  const { match } = run();
  const share = Math.round(100 * panel().places.share);
  byId("map-words").textContent = `Examples that a step moves alike lie close together. These are the two main directions of the ${panel().measure} matrix; they hold ${share} % of it.`
    + (match ? ` Clusters agree with the classes for ${(100 * match.accuracy).toFixed(1)} % of the examples; circles mark the others.` : "");
  await drawMap(run(), panel(), byId("colours").value, chosen.source);
}

/** All panels whose class pairs are kept. */
function comparable() {
  return data.runs.flatMap((one) => one.panels.filter((p) => p.pairs && p.pairs.median).map((p) => ({ name: `${one.name}, ${p.measure}`, panel: p })));
}

async function compare() {
  const all = comparable();
  if (all.length < 2) return;
  const [a, b] = [all[Number(byId("first").value)], all[Number(byId("second").value)]];
  const last = (/** @type {any[]} */ list) => list[list.length - 1];
  const tell = (/** @type {any} */ one) => `${one.name}: same class ${digits(last(one.panel.pairs.within))}, other classes ${digits(last(one.panel.pairs.between))}, ratio ${digits(last(one.panel.pairs.ratio))}. `;
  const same = String(a.panel.pairs.classes) === String(b.panel.pairs.classes);
  byId("compare-words").textContent = tell(a) + tell(b) + (same ? "" : "Their classes differ, so their pairs cannot be laid side by side.");
  byId("compare-plot").hidden = !same;
  if (same) await drawCompare(a.panel, b.panel);
}

async function draw() {
  controls();
  remember();
  await drawMatrix();
  showPair(chosen.source, chosen.target);
  await drawRest();
}

/** @param {any} asked */
async function pick(asked) {
  choose(asked);
  remember();
  showPair(chosen.source, chosen.target);
  mark();
  await showMoved();
  if (panel().places) await map();
}

/** @param {number} factor */
async function zoom(factor) {
  const { n, m } = seen;
  const view = part || [0, n, 0, m];
  const around = (/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ centre, /** @type {number} */ size) => {
    const span = Math.max(2, Math.min(size, Math.round((high - low) * factor)));
    const start = Math.max(0, Math.min(size - span, Math.round(centre - span / 2)));
    return [start, Math.min(size, start + span)];
  };
  part = [...around(view[0], view[1], seen.rows.indexOf(chosen.source), n), ...around(view[2], view[3], seen.columns.indexOf(chosen.target), m)];
  await drawMatrix();
}

/** @param {KeyboardEvent} event */
function byKey(event) {
  const moves = /** @type {Record<string, number[]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });
  const move = moves[event.key];
  if (move) {
    const row = Math.max(0, Math.min(seen.n - 1, seen.rows.indexOf(chosen.source) + move[0]));
    const column = Math.max(0, Math.min(seen.m - 1, seen.columns.indexOf(chosen.target) + move[1]));
    [chosen.source, chosen.target] = [seen.rows[row], seen.columns[column]];
    remember();
    showPair(chosen.source, chosen.target);
    mark();
  } else if (event.key === "Enter") pick({});
  else if (event.key === "+" || event.key === "=") zoom(0.5);
  else if (event.key === "-") zoom(2);
  else if (event.key === "0" || event.key === "Escape") {
    part = null;
    drawMatrix();
  } else return;
  event.preventDefault();
}

function listenToMatrix() {
  const plot = byId("matrix-plot");
  let pressed = { x: 0, y: 0 };
  plot.addEventListener("mousemove", (/** @type {MouseEvent} */ event) => {
    const place = under(event);
    if (place) showPair(seen.rows[place.row], seen.columns[place.column]);
  });
  plot.addEventListener("mouseleave", () => showPair(chosen.source, chosen.target));
  plot.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => (pressed = { x: event.clientX, y: event.clientY }), true);
  window.addEventListener("pointerup", (event) => {
    const near = Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) < 5;
    const place = near && under(event);
    if (place) pick({ source: seen.rows[place.row], target: seen.columns[place.column] });
  }, true);
  plot.addEventListener("keydown", byKey);
  plot.on("plotly_relayout", (/** @type {any} */ what) => {
    if (!Object.keys(what).some((key) => key.includes("axis"))) return;
    const { xaxis, yaxis } = plot._fullLayout;
    part = what["xaxis.autorange"] ? null : partOf(yaxis.range, xaxis.range, seen.n, seen.m);
    if (part && (part[1] <= part[0] || part[3] <= part[2])) part = null;
    drawMatrix();
  });
}

function listen() {
  const on = (/** @type {string} */ id, /** @type {() => any} */ make) => byId(id).addEventListener("change", () => { choose(make()); draw(); });
  on("run", () => ({ run: byId("run").value }));
  on("measure", () => ({ measure: byId("measure").value }));
  on("order", () => ({ order: byId("order").value }));
  on("curves", () => ({ curves: byId("curves").value }));
  on("colours", () => ({ colours: byId("colours").value }));
  byId("when").addEventListener("input", () => { choose({ when: byId("when").value }); draw(); });
  byId("first").addEventListener("change", compare);
  byId("second").addEventListener("change", compare);
  byId("play").addEventListener("click", play);
  byId("theme").addEventListener("click", nextTheme);
  window.addEventListener("hashchange", () => { choose(fromHash(location.hash)); draw(); look(); });
  document.querySelectorAll("nav a").forEach((link) => link.addEventListener("click", (event) => {
    const view = (link.getAttribute("href") || "").slice(1);
    if (!byId(view)) return;
    event.preventDefault();
    chosen.view = view;
    remember();
    look();
  }));
  byId("map-plot").on("plotly_hover", (/** @type {any} */ event) => showSpot(event.points[0].customdata));
  byId("map-plot").on("plotly_click", (/** @type {any} */ event) => pick({ source: event.points[0].customdata }));
  byId("time-plot").on("plotly_click", (/** @type {any} */ event) => { choose({ when: event.points[0].pointIndex }); draw(); });
  byId("distance-plot").on("plotly_click", (/** @type {any} */ event) => { const at = event.points[0].customdata; if (at) pick({ source: at[0], target: at[1] }); });
  listenToMatrix();
  const redraw = () => { draw(); compare(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
}

/** @param {number} i */
function showSpot(i) {
  const { sources, match } = run();
  byId("spot").replaceChildren(shownExample(sources, i, ""));
  if (match && match.wrong[i]) byId("spot").append(element("div", "in a wrong cluster", "wrong"));
}

let playing = 0;
function play() {
  const last = panel().steps.length - 1;
  if (playing) {
    clearInterval(playing);
    playing = 0;
  } else {
    if (chosen.when === last) choose({ when: 0 });
    playing = window.setInterval(() => {
      choose({ when: Math.min(last, chosen.when + 1) });
      draw();
      if (chosen.when >= panel().steps.length - 1) play();
    }, 600);
  }
  byId("play").textContent = playing ? "■ Stop" : "▶ Play";
}

const THEMES = ["automatic", "light", "dark"];
function nextTheme() {
  const now = document.documentElement.dataset.theme || "automatic";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  byId("theme").textContent = `Theme: ${next}`;
  draw();
  compare();
}

/** Bring the chosen view before the reader. */
function look() {
  const section = byId(chosen.view);
  if (section && !section.hidden && chosen.view !== "short") section.scrollIntoView();
  document.querySelectorAll("nav a").forEach((link) => link.setAttribute("aria-current", String(link.getAttribute("href") === `#${chosen.view}`)));
}

async function start() {
  data = JSON.parse(await textOf("payload"));
  const script = element("script", await textOf("plotly"));
  document.head.append(script);
  byId("plotly").remove();
  byId("controls").hidden = false;
  chosen.when = panel().matrices.length - 1;
  choose({ order: "class", ...fromHash(location.hash) });
  const all = comparable();
  fill("first", counted(all.map((one) => one.name)), "0");
  fill("second", counted(all.map((one) => one.name)), String(Math.min(1, all.length - 1)));
  for (const id of ["time-plot", "distance-plot", "map-plot"]) await Plotly.newPlot(byId(id), [], layoutOf({}), CONFIG);
  await draw();
  await compare();
  listen();
  look();
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `The drawings could not be made (${error}); the words and numbers are complete without them.`;
});
