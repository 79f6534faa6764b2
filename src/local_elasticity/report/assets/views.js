// @ts-check
"use strict";
/* The views of what is chosen. */

/** What the matrix shows now, with its scale. @param {Stored} stored @param {Float32Array} values @param {number} width */
function viewed(stored, values, width) {
  if (chosen.per !== "target") return { shown: values, scale: panel().scale, title: panel().title };
  const ratio = panel().kind === "ratio";
  const shown = byTarget(values, width, stored.exact && run().square, ratio);
  const every = Math.max(1, Math.floor(shown.length / 20000));
  return { shown, scale: relativeScale(Array.from(shown).filter((_, k) => k % every === 0), ratio), title: `${panel().title} ${ratio ? "÷" : "−"} its target's usual value` };
}

async function drawMatrix() {
  const { sources, targets } = run();
  const stored = panel().matrices[chosen.when];
  const values = await numbers(stored.block);
  const [n, m] = [sources.places.length, targets.places.length];
  const order = stored.exact ? chosen.order : sources.classes ? "class" : "as given";
  const [rows, columns] = [orderOf(sources, order), orderOf(targets, order)];
  const view = part || [0, n, 0, m];
  seen = { values, stored, rows, columns, n, m, order };
  const { shown, scale, title } = viewed(stored, values, stored.exact ? m : /** @type {any} */ (stored.shape)[1]);
  let trace;
  if (stored.exact) {
    const { z, dy, dx } = windowOf(shown, m, rows, columns, view, CELLS);
    trace = { z, y0: view[0] + (dy - 1) / 2, dy, x0: view[2] + (dx - 1) / 2, dx };
  } else {
    const [parts, across] = /** @type {[number, number]} */ (stored.shape);
    const z = Array.from({ length: parts }, (_, i) => Array.from(shown.slice(i * across, (i + 1) * across), (v) => (Number.isFinite(v) ? v : null)));
    trace = { z, y0: n / parts / 2 - 0.5, dy: n / parts, x0: m / across / 2 - 0.5, dx: m / across };
  }
  noteMatrix(stored, trace, scale);
  trace.z = trace.z.map((row) => row.map((value) => drawn(scale, value)));
  const [low, high] = endsOf(scale);
  const [ty, tx] = [ticksOf(groupsOf(sources, order, rows)), ticksOf(groupsOf(targets, order, columns))];
  const line = (/** @type {any} */ place) => ({ type: "line", line: { color: "#ffffff", width: 1 }, ...place });
  const shapes = [...ty.edges.map((y) => line({ y0: y, y1: y, x0: -0.5, x1: m - 0.5 })), ...tx.edges.map((x) => line({ x0: x, x1: x, y0: -0.5, y1: n - 0.5 })), ...chosenBlock(order, rows, columns)];
  const axis = (/** @type {any} */ ticks, /** @type {string} */ title, /** @type {number[]} */ range) => ({ title: { text: title }, range, showgrid: false, zeroline: false,
    ...(ticks.tickvals.length ? { tickmode: "array", tickvals: ticks.tickvals, ticktext: ticks.ticktext } : {}) });
  const plot = byId("matrix-plot");
  const narrow = (plot.clientWidth - 230) / Math.max(1, tx.tickvals.length) < 8 * tx.longest;
  const size = (/** @type {any} */ ticks, /** @type {number} */ room) => ({ tickfont: { size: Math.max(5, Math.min(12, Math.floor((0.75 * room) / Math.max(1, ticks.tickvals.length)))) } });
  const layout = layoutOf({ shapes, margin: { l: 55, r: 5, t: 25, b: 45 }, hovermode: false,
    yaxis: { ...axis(ty, "source (stepped on)", [view[1] - 0.5, view[0] - 0.5]), ...size(ty, plot.clientHeight - 150) },
    xaxis: { ...axis(tx, "target (prediction read)", [view[2] - 0.5, view[3] - 0.5]), ...size(tx, plot.clientWidth - 230), tickangle: narrow ? -90 : 0 } });
  layout.plot_bgcolor = UNKNOWN;
  const heat = { type: "heatmap", ...trace, zmin: low, zmax: high, colorscale: stopsOf(scale), hoverinfo: "skip",
    colorbar: { thickness: 12, len: 0.9, title: { text: plain(title), side: "right" }, ...scaleTicks(scale) } };
  await Plotly.react("matrix-plot", [heat], layout, CONFIG);
  mark();
}

/** A frame around the pairs of the chosen classes. @param {string} order @param {number[]} rows @param {number[]} columns */
function chosenBlock(order, rows, columns) {
  if (chosen.cell !== "open" || order !== "class") return [];
  const { sources, targets } = run();
  const find = (/** @type {Side} */ side, /** @type {number[]} */ places, /** @type {number} */ one) => groupsOf(side, "class", places).find(({ name }) => name === classOf(side, one));
  const [row, column] = [find(sources, rows, chosen.source), find(targets, columns, chosen.target)];
  if (!row || !column) return [];
  return [{ type: "rect", x0: column.start - 0.5, x1: column.end - 0.5, y0: row.start - 0.5, y1: row.end - 0.5, line: { color: "#d55e00", width: 3 } }];
}

/** @param {Stored} stored @param {any} trace @param {Scale} scale */
function noteMatrix(stored, trace, scale) {
  const block = `${Math.ceil(trace.dy)} × ${Math.ceil(trace.dx)}`;
  const { matrices, steps } = panel();
  const exact = matrices.map((one, k) => (one.exact ? steps[k] : null)).filter((step) => step !== null);
  const beyond = scale.beyond > 0 ? ` ${(100 * scale.beyond).toFixed(0) === "0" ? "Under 1" : (100 * scale.beyond).toFixed(0)} % of the pairs lie beyond the ends of the colours (≤, ≥).` : "";
  const whole = stored.exact && trace.dy === 1 && trace.dx === 1;
  byId("matrix-note").hidden = whole && !beyond;
  byId("matrix-note").textContent = (whole ? "Every pair is exact." : stored.exact
    ? `Each dot is the median of ${block} pairs; zoom in to see single ones. What you point at is exact.`
    : `At this step the page keeps medians of about ${block} pairs in the order of classes. Single pairs are kept at ${exact.length > 1 ? "steps" : "step"} ${exact.join(", ")}.`) + beyond;
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
  const marks = marksOf(source, target);
  const text = two.querySelector(":scope > div:last-child > .text");
  if (marks && text) text.replaceChildren(markedText(marks));
  const words = element("div");
  if (seen.stored.exact) {
    const value = seen.values[source * seen.m + target];
    const [back, ratio, itself] = [seen.values[target * seen.m + source], panel().kind === "ratio", square && source === target];
    const none = itself && panel().kind === "change" ? "left out" : "unresolved";
    words.append(element("div", Number.isFinite(value) ? amount(value) : none, "big"));
    words.append(element("div", `${panel().title}, ${itself ? "an example with itself" : `source to target${ratio ? ": how far the target moves, in percent of how far the source itself does" : ""}`}`));
    if (square && !itself) words.append(element("div", `the other way round ${amount(back)}`));
    const own = panel().own;
    if (own) words.append(element("div", `the source itself moved ${digits(own[source])}`));
  } else {
    const [parts, across] = seen.stored.shape;
    const value = seen.values[blockOf(seen.rows.indexOf(source), seen.n, parts) * across + blockOf(seen.columns.indexOf(target), seen.m, across)];
    words.append(element("div", amount(value), "big"), element("div", "median over the block of pairs around this one"));
  }
  byId("pair").replaceChildren(two, words);
}

/** @param {{target: number, value: number}[]} list @param {string} title */
function gallery(list, title) {
  const { targets, square } = run();
  const items = list.map(({ target, value }) => {
    const item = element("li");
    const button = element("button");
    button.append(exampleOf(targets, target), element("div", amount(value)), element("div", nameOf(targets, target)));
    button.addEventListener("click", () => pick(square ? { source: target } : { target }));
    item.append(button);
    return item;
  });
  const listed = element("ul", undefined, "examples");
  listed.append(...items);
  return [element("h4", title), listed];
}

/** What the two ends of a list are called, by the kind of quantity. */
function endWords() {
  const { kind } = panel();
  if (kind === "loss") return { first: "harms these most: their loss rises", last: "helps these most: their loss falls" };
  if (kind === "change") return { first: "rises most, or falls least, for", last: "and falls most, or rises least, for" };
  if (kind === "signed") return { first: "has its largest values with", last: "and its smallest with" };
  return { first: `moves these most${kind === "ratio" ? ", in percent of its own change" : ""}`, last: "and these least" };
}

async function showMoved() {
  const place = exactPlace();
  const values = await numbers(panel().matrices[place].block);
  const { sources, targets, square } = run();
  const width = targets.places.length;
  const order = ranked(values, width, chosen.source, square);
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
  const words = endWords();
  const lists = [...gallery(order.slice(0, top), `${words.first}${when}`), ...gallery(order.slice(-top).reverse(), words.last)];
  if (panel().kind === "loss") {
    const { side, helps, harms } = await influences();
    const title = element("h3", `The target ${nameOf(targets, chosen.target)} is`);
    lists.push(title, ...influenceList(side, helps, "helped most by a step on"), ...influenceList(side, harms, "harmed most by a step on"));
  }
  box.replaceChildren(head, itself, ...lists);
  oneTabStop(box, ".examples button");
}

/** The sources of a target, from largest to smallest. @param {Float32Array} values @param {number} width @param {number} target @param {boolean} square */
function rankedSources(values, width, target, square) {
  const found = [];
  for (let source = 0; source * width < values.length; source++) {
    const value = values[source * width + target];
    if (Number.isFinite(value) && !(square && target === source)) found.push({ target: source, value });
  }
  return found.sort((a, b) => b.value - a.value);
}

/** The views below the first screen; those out of sight are drawn once they come into view. */
const VIEWS = /** @type {Record<string, () => any>} */ ({
  matrix: () => drawMatrix(),
  moved: () => showMoved(),
  tokens: () => drawTokens(),
  time: () => (byId("time").hidden ? null : drawTime(run(), panel(), byId("curves").value, chosen.when)),
  distance: () => (run().scatter ? distance() : null),
  map: () => (placesNow() ? map() : null),
});
/** @type {Set<string>} */
const stale = new Set();

/** @param {string} id */
function inSight(id) {
  const box = byId(id).getBoundingClientRect();
  return box.bottom > -200 && box.top < innerHeight + 200;
}

/** Draw the views in sight, or all. @param {boolean} [all] */
async function drawRest(all) {
  for (const id of Object.keys(VIEWS)) stale.add(id);
  await drawStale(all);
}

/** @param {boolean} [all] */
async function drawStale(all) {
  for (const id of [...stale])
    if (all || id === "matrix" || inSight(id)) {
      stale.delete(id);
      await VIEWS[id]();
    }
}

async function distance() {
  const place = exactPlace();
  const rho = panel().correlations[place];
  const when = panel().steps.length > 1 ? ` All values are at step ${panel().steps[place]}${place === chosen.when ? "" : ", the nearest that is kept exactly"}.` : "";
  await drawDistance(run(), panel(), await numbers(panel().matrices[place].block));
  const { scale } = panel();
  const beyond = dots.some(({ y }) => y > scale.high * 1.2 || y < scale.low / 1.2) ? " A few extreme pairs lie beyond the plot; zoom out to see them." : "";
  const strength = rho === null ? "" : Math.abs(rho) < 0.2 ? "hardly related" : Math.abs(rho) < 0.5 ? "somewhat related" : "clearly related";
  byId("distance-words").textContent = (rho === null ? "Distance and similarity cannot be correlated here."
    : `Rank correlation of distance and ${panel().title} over all pairs: ${digits(rho)}, ${strength}. Where the two medians differ at equal distance, distance alone does not explain the values.`) + beyond + when;
}

async function map() {
  const { match } = run();
  const place = exactPlace();
  const share = Math.round(100 * placesNow().share);
  const when = panel().steps.length > 1 ? ` at step ${panel().steps[place]}${place === chosen.when ? "" : ", the nearest that is kept exactly"}` : "";
  byId("map-words").textContent = `Examples that react similarly to steps are close together${when}. These are the two main directions of the ${panel().title} matrix; they explain ${share} % of it.`
    + (match ? ` Clusters agree with the classes for ${(100 * match.accuracy).toFixed(1)} % of the examples; circles mark the others.` : "");
  await drawMap(run(), placesNow(), byId("colours").value, chosen.source, await numbers(panel().matrices[place].block));
  await spreadLabels(byId("map-plot"));
}

/** @param {number} i */
function showSpot(i) {
  const { sources, match } = run();
  byId("spot").replaceChildren(shownExample(sources, i, ""));
  if (match && match.wrong[i]) byId("spot").append(element("div", "in a wrong cluster", "wrong"));
}

/** A pair of the distance plot. @param {{x: number, y: number, i: number, j: number}} dot */
function showNear({ x, y, i, j }) {
  const { sources, targets } = run();
  const two = element("div", undefined, "two");
  two.append(shownExample(sources, i, "source"), shownExample(targets, j, "target"));
  byId("near").replaceChildren(two, element("div", `distance ${digits(x)}, ${panel().title} ${amount(y)}`));
}
