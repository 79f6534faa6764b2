// @ts-check
"use strict";
/* The page at work: drawing, listening, starting. */

async function draw() {
  controls();
  remember();
  drawFront();
  await showBehind();
  if (!plotted) return;
  await drawRest();
  showPair(chosen.source, chosen.target);
}

/** Whether the drawing library is there. */
let plotted = false;

/** @param {any} asked */
async function pick(asked) {
  const classes = () => [classOf(run().sources, chosen.source), classOf(run().targets, chosen.target)].join();
  const before = classes();
  choose(asked);
  if (asked.cell === undefined) {
    const both = (asked.source === undefined) === (asked.target === undefined);
    choose({ cell: both ? (chosen.cell === "open" ? "open" : "pair") : classes() === before ? chosen.cell : "" });
  }
  await afterChoice();
}

/** What is chosen is chosen everywhere. */
async function afterChoice() {
  controls();
  remember();
  drawFront();
  await showBehind();
  if (!plotted) return;
  showPair(chosen.source, chosen.target);
  if (chosen.cell === "open") stale.add("matrix");
  else mark();
  for (const id of ["moved", "map", "tokens", ...(chosen.cell === "open" ? ["time", "distance"] : [])]) stale.add(id);
  await drawStale();
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
  on("per", () => ({ per: byId("per").value }));
  on("curves", () => ({ curves: byId("curves").value }));
  on("colours", () => ({ colours: byId("colours").value }));
  byId("when").addEventListener("input", () => { choose({ when: byId("when").value }); draw(); });
  for (const name of ["first", "second", "first_step", "second_step"])
    byId(name).addEventListener("change", () => { choose({ [name]: byId(name).value }); remember(); fillCompare(); compare(); });
  byId("play").addEventListener("click", play);
  byId("theme").addEventListener("click", nextTheme);
  window.addEventListener("hashchange", () => { choose(fromHash(location.hash)); fillCompare(); draw(); compare(); look(); });
  document.querySelectorAll("nav a, .checks").forEach((link) => link.addEventListener("click", (event) => {
    const view = (link.getAttribute("href") || "").slice(1);
    if (!byId(view)) return;
    event.preventDefault();
    chosen.view = view;
    remember();
    look();
  }));
  byId("map-plot").on("plotly_hover", (/** @type {any} */ event) => showSpot(event.points[0].customdata));
  byId("map-plot").on("plotly_click", (/** @type {any} */ event) => spot(event.points[0].customdata));
  byId("time-plot").on("plotly_click", (/** @type {any} */ event) => { choose({ when: event.points[0].pointIndex }); draw(); });
  const dotOf = (/** @type {any} */ { points: [{ customdata: at }] }) => at && dots.find(({ i, j }) => i === at[0] && j === at[1]);
  byId("distance-plot").on("plotly_hover", (/** @type {any} */ event) => { const dot = dotOf(event); if (dot) showNear(dot); });
  byId("distance-plot").on("plotly_click", (/** @type {any} */ event) => { const dot = dotOf(event); if (dot) near(dot); });
  walk("map-plot", () => [chosen.source, run().sources.places.length], spot);
  walk("distance-plot", () => [dots.findIndex(({ i, j }) => i === chosen.source && j === chosen.target), dots.length], (place) => near(dots[place]));
  const nav = /** @type {HTMLElement} */ (document.querySelector("nav"));
  const atEnd = () => nav.classList.toggle("end", nav.scrollLeft + nav.clientWidth >= nav.scrollWidth - 8);
  nav.addEventListener("scroll", atEnd, { passive: true });
  atEnd();
  let waiting = 0;
  window.addEventListener("scroll", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { follow(); drawStale(); }); }, { passive: true });
  listenToTokens();
  listenToMatrix();
  const redraw = () => { drawFront(); drawRest(true).then(compare); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
}

/** @param {number} i */
async function spot(i) {
  showSpot(i);
  await pick({ source: i });
}

/** @param {{x: number, y: number, i: number, j: number}} dot */
async function near(dot) {
  showNear(dot);
  await pick({ source: dot.i, target: dot.j });
}

/** Arrow keys go from dot to dot. @param {string} id @param {() => number[]} where place and number of dots
 * @param {(place: number) => any} show */
function walk(id, where, show) {
  byId(id).addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const move = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 })[event.key];
    if (!move) return;
    const [place, size] = where();
    show((Math.max(place, -1) + move + size) % size);
    event.preventDefault();
  });
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
  drawFront();
  drawRest(true).then(compare);
}

/** Bring the chosen view before the reader. */
function look() {
  const section = byId(chosen.view);
  if (section && !section.hidden) section.scrollIntoView();
  tellView();
}

/** The view follows the reader who scrolls. */
function follow() {
  const sections = [...document.querySelectorAll("main > section[id]:not([hidden])")];
  const top = (/** @type {Element} */ one) => one.getBoundingClientRect().top;
  const bottom = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
  if (bottom && top(byId(chosen.view)) >= 0 && top(byId(chosen.view)) < innerHeight) return;
  const passed = sections.filter((one) => bottom || top(one) < 0.4 * innerHeight);
  const view = (passed[passed.length - 1] || sections[0]).id;
  if (view === chosen.view) return;
  chosen.view = view;
  remember();
  tellView();
}

function tellView() {
  document.querySelectorAll("nav a").forEach((link) => link.setAttribute("aria-current", String(link.getAttribute("href") === `#${chosen.view}`)));
}

async function start() {
  data = JSON.parse(await textOf("payload"));
  byId("controls").hidden = false;
  chosen.measure = firstMeasure(run());
  chosen.when = panel().matrices.length - 1;
  [chosen.first, chosen.second] = firstPair(comparable());
  choose({ order: "class", ...fromHash(location.hash) });
  if (comparable().length < 2 && chosen.first_step < 0) choose({ first_step: 0 });
  fillCompare();
  await draw();
  listenToClasses();
  listenToSearch();
  document.documentElement.dataset.front = "true";
  performance.mark("front");
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const script = element("script", await textOf("plotly"));
  document.head.append(script);
  byId("plotly").remove();
  plotted = true;
  for (const id of ["time-plot", "distance-plot", "map-plot"]) await Plotly.newPlot(byId(id), [], layoutOf({}), CONFIG);
  await drawRest(true);
  showPair(chosen.source, chosen.target);
  await compare();
  listen();
  addTools();
  if (chosen.view === "short") tellView();
  else look();
  performance.mark("ready");
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `The drawings could not be made (${error}); the words and numbers are complete without them.`;
});
