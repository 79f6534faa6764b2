// @ts-check
"use strict";
/* The views of what is chosen. */

/** Blocks a side of two matrices that are compared. */
const BLOCKS = 60;

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
  if (!byId("time").hidden) tasks.push(drawTime(run(), panel(), byId("curves").value, chosen.when));
  if (run().scatter) tasks.push(distance());
  if (panel().places) tasks.push(map());
  await Promise.all(tasks);
}

async function distance() {
  const place = exactPlace();
  const rho = run().scatter.correlations[chosen.measure];
  const when = panel().steps.length > 1 ? ` The plot is at step ${panel().steps[place]}, the correlation at the last.` : "";
  const [low, high] = heightOf(panel());
  await drawDistance(run(), panel(), await numbers(panel().matrices[place].block));
  const beyond = dots.some(({ y }) => y > high || y < low) ? " A few extreme pairs lie beyond the plot; zoom out to see them." : "";
  const strength = rho === null ? "" : Math.abs(rho) < 0.2 ? "hardly related" : Math.abs(rho) < 0.5 ? "somewhat related" : "clearly related";
  byId("distance-words").textContent = (rho === null ? "Distance and similarity cannot be correlated here."
    : `Rank correlation of distance and ${panel().measure} over all pairs: ${digits(rho)}, ${strength}. At equal distance, the gap between the two groups is what the network has learned beyond distance.`) + beyond + when;
}

async function map() {
  const { match } = run();
  const share = Math.round(100 * panel().places.share);
  byId("map-words").textContent = `Examples that a step moves alike lie close together. These are the two main directions of the ${panel().measure} matrix; they hold ${share} % of it.`
    + (match ? ` Clusters agree with the classes for ${(100 * match.accuracy).toFixed(1)} % of the examples; circles mark the others.` : "");
  await drawMap(run(), panel(), byId("colours").value, chosen.source);
}

/** Every measure of every run. */
function comparable() {
  return data.runs.flatMap((one) => one.panels.map((p) => ({ name: `${one.name}, ${p.measure}`, run: one, panel: p })));
}

/** The first pair worth comparing: one measure of two runs, or else two measures of one. @param {any[]} all */
function firstPair(all) {
  for (let i = 0; i < all.length; i++)
    for (let j = i + 1; j < all.length; j++)
      if (all[i].run !== all[j].run && all[i].panel.measure === all[j].panel.measure) return [i, j];
  return [0, Math.min(1, all.length - 1)];
}

/** Whether two runs have the same places, and so perhaps the same examples. @param {Run} a @param {Run} b */
function sameExamples(a, b) {
  const same = (/** @type {Side} */ one, /** @type {Side} */ other) => String(one.places) === String(other.places) && (!one.examples || !other.examples || String(one.examples) === String(other.examples));
  return same(a.sources, b.sources) && same(a.targets, b.targets);
}

/** Class pairs of two panels, or all pairs in blocks where classes are none or many; null where they cannot be laid side
 * by side. @param {any} a @param {any} b @param {boolean} same @param {Float32Array[]} values */
function mapsOf(a, b, same, values) {
  const [first, second] = [a.panel.pairs, b.panel.pairs];
  if (first && first.median && second && second.median && String(first.classes) === String(second.classes))
    return { maps: [first, second].map(({ median }) => median[median.length - 1]), names: first.classes };
  if (!same) return null;
  const [rows, columns] = [orderOf(a.run.sources, "class"), orderOf(a.run.targets, "class")];
  return { maps: values.map((one) => windowOf(one, columns.length, rows, columns, [0, rows.length, 0, columns.length], BLOCKS).z), names: undefined };
}

async function compare() {
  const all = comparable();
  if (all.length < 2) return;
  const [a, b] = [all[chosen.first], all[chosen.second]];
  const last = (/** @type {any[]} */ list) => list[list.length - 1];
  const tell = (/** @type {any} */ { name, panel: { pairs } }) => pairs ? `${name}: same class ${digits(last(pairs.within))}, other classes ${digits(last(pairs.between))}, ratio ${digits(last(pairs.ratio))}. ` : "";
  const values = await Promise.all([a, b].map(({ panel: { matrices } }) => numbers(last(matrices).block)));
  const [same, alike] = [sameExamples(a.run, b.run), a.panel.measure === b.panel.measure];
  const [width, square] = [a.run.targets.places.length, a.run.square];
  const found = mapsOf(a, b, same, values);
  const together = same ? `Pair by pair, if these are the same examples, their rank correlation is ${digits(agreementOf(values[0], values[1], width, square))}.`
    + (alike ? ` The mean over pairs of second − first is ${digits(differenceOf(values[0], values[1], width, square))}.` : "") : "";
  byId("compare-words").textContent = tell(a) + tell(b) + together + (alike ? "" : " These are different measures: each has a scale of its own, and no difference is drawn.")
    + (found ? (found.names ? "" : " Dots are means over blocks of pairs.") : " Their examples and classes differ, so they cannot be laid side by side.");
  byId("compare-plot").hidden = !found;
  if (found) await drawCompare(found.maps[0], found.maps[1], found.names, alike);
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
  byId("near").replaceChildren(two, element("div", `distance ${digits(x)}, ${panel().measure} ${digits(y)}`));
}
