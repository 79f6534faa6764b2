// @ts-check
"use strict";
/* The drawings by Plotly. Shapes and dashes tell apart what colours cannot. */

/** @type {any} */
var Plotly;

const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "star", "triangle-down", "pentagon", "hexagram"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage", "sendDataToCloud"] };

/** What the style sheet says now, for drawings. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const of = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  return { paper: of("paper"), ink: of("ink"), grid: of("grid"), soft: of("soft"), card: of("card") };
}

/** @param {any} more */
function layoutOf(more) {
  const { paper, ink, grid, card } = theme();
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true };
  return {
    paper_bgcolor: paper,
    plot_bgcolor: paper,
    font: { color: ink, size: 13, family: "system-ui, sans-serif" },
    margin: { l: 60, r: 15, t: 30, b: 45 },
    hoverlabel: { bgcolor: card, font: { color: ink } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme().soft, activecolor: ink },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...more,
    xaxis: { ...axis, ...more.xaxis },
    yaxis: { ...axis, ...more.yaxis },
  };
}

/** A line with its band. @param {number[]} x @param {any} curve @param {number} i */
function banded(x, curve, i) {
  const line = { color: colourOf(i), dash: DASHES[Math.floor(i / 10) % DASHES.length], width: curve.wide ? 4 : 2 };
  const shared = { x, legendgroup: curve.name, hoverinfo: "skip", mode: "lines", line: { width: 0 }, showlegend: false };
  const band = curve.low
    ? [
        { ...shared, y: curve.low },
        { ...shared, y: curve.high, fill: "tonexty", fillcolor: `${colourOf(i)}26` },
      ]
    : [];
  const marker = { symbol: SYMBOLS[i % SYMBOLS.length], size: 6 };
  const middle = { x, y: curve.median, name: plain(curve.name), legendgroup: curve.name, mode: "lines+markers", line, marker };
  return [...band, middle];
}

/** Curves of one source class, within and between classes, or how many times as far. @param {Panel} one @param {string} which */
function curvesOf({ pairs, front }, which) {
  const source = pairs.classes.indexOf(which);
  if (which === TIMES && front.curve) return [{ name: TIMES, median: front.curve.times, low: front.curve.low, high: front.curve.high, wide: true }];
  if (source < 0 || !pairs.median)
    return [
      { name: "same class", median: pairs.within, low: pairs.within_low, high: pairs.within_high, wide: true },
      { name: "other classes", median: pairs.between, low: pairs.between_low, high: pairs.between_high, wide: false },
    ];
  const pick = (/** @type {any} */ cube, /** @type {number} */ b) => cube.map((/** @type {any} */ at) => at[source][b]);
  const chosenTarget = pairs.classes.indexOf(classOf(run().targets, chosen.target));
  return pairs.classes.map((/** @type {string} */ name, /** @type {number} */ b) => ({
    name: `target ${name}`,
    median: pick(pairs.median, b),
    ...(b === source || b === chosenTarget ? { low: pick(pairs.low, b), high: pick(pairs.high, b) } : {}),
    wide: b === source,
  }));
}

/** Where the steps lie: to scale, or on a symmetric logarithm where most would crowd at the start.
 * @param {number[]} steps @returns {{x: number[], ticks: {at: number, text: string}[], axis: any}} */
function timesOf(steps) {
  const crowded = steps.length > 4 && steps[steps.length >> 1] < 0.25 * steps[steps.length - 1];
  const gaps = steps.slice(1).map((step, i) => step - steps[i]).filter((gap) => gap > 0);
  const unit = gaps.length ? Math.min(...gaps) : 1;
  const place = (/** @type {number} */ step) => (crowded ? Math.sign(step) * Math.log10(1 + Math.abs(step) / unit) : step);
  const x = steps.map(place);
  const [low, high] = [x[0], x[x.length - 1]];
  /** @type {{at: number, text: string}[]} */
  const ticks = [];
  let before = -Infinity;
  for (const [i, at] of x.entries()) {
    const end = i === x.length - 1;
    if (i > 0 && !end && (at - before < 0.08 * (high - low) || high - at < 0.08 * (high - low))) continue;
    ticks.push({ at, text: String(steps[i]) });
    before = at;
  }
  const shown = { tickmode: "array", tickvals: ticks.map(({ at }) => at), ticktext: ticks.map(({ text }) => text) };
  return { x, ticks, axis: { ...shown, title: { text: crowded ? "training step (symmetric log)" : "training step" } } };
}

/** What the curves are. @param {Run} one @param {string} which */
function timeWords(one, which) {
  if (one.numbers.some(({ name }) => OF_FEATURES + name === which)) return "The line is a measure of the network's features.";
  if (which === TIMES) return "The line is how many times as far as other classes a step moves its own class: 1 where it moves all alike. The band is the 95 % interval, and the shaded steps are where it changed.";
  return (which === "" ? "Lines are medians over all pairs of one class and of different classes; bands hold the middle half of the pairs."
    : "Lines are medians over all pairs of two classes; the bands of the own class and of the chosen target hold the middle half of the pairs.");
}

/** Percent with up to three digits, as Plotly takes it. */
const PERCENT = ".3~p";

/** What an axis of a measure says. @param {Panel} one */
const titleOf = ({ kind, title }) => (kind === "ratio" ? `${title}, % of the source's own` : title);

/** @param {Run} one @param {Panel} shown @param {string} which @param {number} when */
function drawTime(one, shown, which, when) {
  const { x, axis } = timesOf(shown.steps);
  const at = x[when];
  const { curve } = shown.front;
  const mark = which === TIMES && curve && (curve.change || curve.steepest);
  const edge = (/** @type {number} */ step) => placeOfStep(shown.steps, step);
  const shapes = [{ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: theme().ink, width: 1.5, dash: "dot" } },
    ...(mark ? [{ type: "rect", x0: edge(mark[0]), x1: edge(mark[1]), yref: "paper", y0: 0, y1: 1, line: { width: 0 }, fillcolor: "rgba(138, 83, 0, 0.2)" }] : [])];
  const number = one.numbers.find(({ name }) => OF_FEATURES + name === which);
  const percent = !number && which !== TIMES && shown.kind === "ratio";
  const curves = number ? [{ name: number.name, median: number.values, wide: true }] : curvesOf(shown, which);
  const traces = curves.flatMap((/** @type {any} */ curve, /** @type {number} */ i) => banded(x, curve, i).map((trace) => ({ ...trace, text: shown.steps.map((step) => `step ${step}`), hovertemplate: "hovertemplate" in trace ? trace.hovertemplate : `%{text}: %{y:${percent ? PERCENT : ".3g"}}` })));
  const title = number ? number.name : which === TIMES ? TIMES : titleOf(shown);
  const layout = layoutOf({ shapes, hovermode: "closest", xaxis: axis, yaxis: { title: { text: plain(title) }, ...(percent ? { tickformat: PERCENT } : {}) } });
  byId("time-words").textContent = timeWords(one, which);
  return Plotly.react("time-plot", traces, layout, CONFIG);
}

/** Medians in ten bins of equal counts. @param {{x: number, y: number}[]} points */
function binned(points) {
  const sorted = points.filter((p) => Number.isFinite(p.y)).sort((a, b) => a.x - b.x);
  const bins = Math.min(10, Math.floor(sorted.length / 20));
  return Array.from({ length: bins }, (_, k) => {
    const part = sorted.slice(Math.floor((k * sorted.length) / bins), Math.floor(((k + 1) * sorted.length) / bins));
    const ys = part.map((p) => p.y).sort((a, b) => a - b);
    return { x: part[part.length >> 1].x, y: ys[ys.length >> 1] };
  });
}

/** The pairs of the distance plot, from near to far. @type {{x: number, y: number, i: number, j: number}[]} */
let dots = [];
/** What they are of. */
let dotsOf = { title: "", sources: /** @type {number[]} */ ([]), targets: /** @type {number[]} */ ([]) };

/** @param {Run} one @param {Panel} shown @param {Float32Array} values an exact matrix */
function drawDistance(one, shown, values) {
  const width = one.targets.places.length;
  const { rows, columns, distances } = one.scatter;
  const [from, to] = [classOf(one.sources, chosen.source), classOf(one.targets, chosen.target)];
  /** @type {any} */
  const groups = { "same class": [], "other classes": [], pairs: [], [`${from} → ${to}`]: [] };
  dots = rows.map((/** @type {number} */ i, /** @type {number} */ k) => ({ x: distances[k], y: values[i * width + columns[k]], i, j: columns[k] }));
  dots.sort((a, b) => a.x - b.x);
  dotsOf = { title: shown.title, sources: one.sources.places, targets: one.targets.places };
  for (const dot of dots) {
    const [a, b] = [classOf(one.sources, dot.i), classOf(one.targets, dot.j)];
    const chosenPair = chosen.cell === "open" && a === from && b === to;
    groups[a === null || b === null ? "pairs" : chosenPair ? `${from} → ${to}` : a === b ? "same class" : "other classes"].push(dot);
  }
  const log = shown.scale.log;
  const traces = Object.entries(groups).filter(([, points]) => points.length).flatMap(([name, points], g) => {
    const line = binned(points);
    const of = (/** @type {any[]} */ list, /** @type {string} */ key) => list.map((p) => (key === "y" && log && !(p.y > 0) ? null : p[key]));
    return [
      { type: "scatter", mode: "markers", name: plain(name), x: of(points, "x"), y: of(points, "y"), hovertemplate: `distance %{x:.3g}<br>${plain(shown.title)} %{y:${shown.kind === "ratio" ? PERCENT : ".3g"}}<extra></extra>`,
        marker: { color: colourOf([0, 1, 3, 2][g]), symbol: SYMBOLS[g], size: 5, opacity: 0.45 }, customdata: points.map((/** @type {any} */ p) => [p.i, p.j]) },
      { type: "scatter", mode: "lines", name: plain(`${name}, median`), x: of(line, "x"), y: of(line, "y"), hoverinfo: "skip",
        line: { color: theme().ink, width: 3, dash: DASHES[g] } },
    ];
  });
  traces.sort((a, b) => Number(a.mode === "lines") - Number(b.mode === "lines"));
  const [low, high] = endsOf(shown.scale);
  const margin = 0.1 * (high - low);
  return Plotly.react("distance-plot", traces, layoutOf({ hovermode: "closest", xaxis: { title: { text: "Euclidean distance" } },
    yaxis: { title: { text: plain(titleOf(shown)) }, type: log ? "log" : "linear", ...(log ? { dtick: 1, tickformat: PERCENT } : {}), range: [low - margin, high + margin] } }), CONFIG);
}

/** With up to so many examples the map shows their pictures. */
const PICTURES = 200;

/** @param {Run} one @param {any} places @param {string} by @param {number} source @param {Float32Array} values */
function drawMap(one, places, by, source, values) {
  const { points } = places;
  const side = one.sources;
  const of = by === "cluster" ? side.cluster : side.class;
  const names = (by === "cluster" ? side.clusters : side.classes) || ["examples"];
  const all = side.places.map((_, i) => i);
  const trace = (/** @type {number[]} */ which, /** @type {any} */ more) => ({ type: "scatter", mode: "markers", x: which.map((i) => points[i][0]),
    y: which.map((i) => points[i][1]), customdata: which, hoverinfo: "none", ...more });
  const near = (/** @type {number} */ i) => values[source * side.places.length + i];
  const { scale } = panel();
  const narrow = byId("map-plot").clientWidth < 500;
  const [dot, pictured] = narrow ? [6, 12] : [9, 26];
  const alike = { name: "similarity to the chosen one", marker: { size: narrow ? 7 : 11, symbol: "circle", color: all.map((i) => drawn(scale, near(i))), colorscale: stopsOf(scale), cmin: endsOf(scale)[0], cmax: endsOf(scale)[1],
    colorbar: { thickness: 10, ...scaleTicks(scale) }, line: { color: theme().ink, width: 0.5 } } };
  const kept = side.examples;
  const pictures = by !== "similarity" && kept && all.length <= PICTURES ? all.filter((i) => PICTURE.test(kept[i])) : [];
  const faded = (/** @type {number} */ g) => chosen.cell === "open" && of && g !== of[chosen.source] && g !== of[chosen.target];
  const traces = by === "similarity" ? [trace(all, alike)] : names.map((name, g) => trace(all.filter((i) => !of || of[i] === g), { name: plain((by === "cluster" ? "cluster " : "") + name),
    marker: { color: colourOf(g), symbol: pictures.length ? "square" : SYMBOLS[g % SYMBOLS.length], size: pictures.length ? pictured : dot, opacity: faded(g) ? 0.15 : 0.85 } }));
  if (one.match)
    traces.push(trace(all.filter((i) => one.match.wrong[i]), { name: "in a wrong cluster", marker: { color: theme().ink, symbol: "circle-open", size: narrow ? 12 : 16, line: { width: 2 } } }));
  traces.push(trace([source], { name: "chosen source", marker: { color: theme().ink, symbol: "cross-open", size: narrow ? 14 : 18, line: { width: 2 } } }));
  const axis = { showticklabels: false, zeroline: false };
  const spread = (/** @type {number} */ k) => Math.max(...points.map((/** @type {number[]} */ p) => p[k])) - Math.min(...points.map((/** @type {number[]} */ p) => p[k])) || 1;
  const size = 0.035 * Math.max(spread(0), spread(1));
  const images = pictures.map((i) => ({ source: kept && kept[i], x: points[i][0], y: points[i][1], xref: "x", yref: "y", sizex: size, sizey: size, xanchor: "center", yanchor: "middle", layer: "above",
    opacity: of && faded(of[i]) ? 0.2 : 0.8 }));
  const labels = names.length > 30 || !of ? [] : names.map((name, g) => {
    const own = all.filter((i) => of[i] === g);
    return { x: medianOf(own.map((i) => points[i][0])), y: medianOf(own.map((i) => points[i][1])), text: `<b>${plain(clipped(name, 14))}</b>`, showarrow: false, bgcolor: theme().paper, opacity: 0.9, bordercolor: colourOf(g), borderwidth: 2, font: { size: 12 } };
  });
  return Plotly.react("map-plot", traces, layoutOf({ hovermode: "closest", xaxis: axis, yaxis: { ...axis, scaleanchor: "x" }, margin: { l: 15, r: 15, t: 15, b: 15 },
    images, annotations: labels, legend: { orientation: "h", y: -0.02 } }), CONFIG);
}

/** How far boxes have to move up or down so that no two overlap. @param {{left: number, top: number, right: number, bottom: number}[]} boxes
 * @param {number} [gap] pixels between them @returns {number[]} */
function movesApart(boxes, gap = 2) {
  const moves = boxes.map(() => 0);
  const order = boxes.map((_, i) => i).sort((i, j) => boxes[i].top - boxes[j].top);
  for (let again = true, pass = 0; again && pass < 500; pass++) {
    again = false;
    for (const [a, i] of order.entries())
      for (const j of order.slice(a + 1)) {
        const [one, other] = [boxes[i], boxes[j]];
        if (one.left >= other.right + gap || other.left >= one.right + gap) continue;
        const over = one.bottom + moves[i] + gap - (other.top + moves[j]);
        if (over <= 0.01) continue;
        moves[i] -= over / 2;
        moves[j] += over / 2;
        again = true;
      }
    order.sort((i, j) => boxes[i].top + moves[i] - boxes[j].top - moves[j]);
  }
  return moves;
}

/** The labels of classes that coincide, moved apart, each with a line to where it belongs. @param {any} plot */
async function spreadLabels(plot) {
  const labels = plot.layout.annotations || [];
  const boxes = [...plot.querySelectorAll(".annotation-text-g rect.bg")].map((one) => one.getBoundingClientRect());
  if (boxes.length !== labels.length) return;
  const moves = movesApart(boxes);
  if (moves.every((move) => Math.abs(move) < 1)) return;
  await Plotly.relayout(plot, { annotations: labels.map((/** @type {any} */ label, /** @type {number} */ i) => (Math.abs(moves[i]) < 1 ? label
    : { ...label, showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: label.bordercolor, ax: 0, ay: moves[i], xanchor: "center", yanchor: "middle" })) });
}

/** Two maps, and their difference where they are of one measure.
 * @param {any} first @param {any} second matrices of numbers or null @param {string[]|undefined} names @param {Panel[]} of @param {boolean} alike */
function drawCompare(first, second, names, of, alike) {
  const difference = second.map((/** @type {any[]} */ row, /** @type {number} */ i) => row.map((value, j) => (value === null || first[i][j] === null ? null : value - first[i][j])));
  const maps = alike ? [first, second, difference] : [first, second];
  const titles = ["first", "second", "second − first"];
  const narrow = byId("compare-plot").clientWidth < 640;
  const wide = 1 / maps.length;
  const most = (/** @type {any[]} */ lists) => upperOf(lists.flat(2).map((/** @type {any} */ value) => Math.abs(value)));
  const signed = (/** @type {any[]} */ lists) => lists.flat(2).some((/** @type {any} */ value) => value < 0);
  /** @type {any} */
  const layout = layoutOf({ height: narrow ? 320 * maps.length : 380, margin: { l: 55, r: 20, t: 30, b: 50 } });
  const traces = maps.map((z, i) => {
    const from = i === 2 ? [difference] : alike ? [first, second] : [z];
    const [k, start] = [i === 0 ? "" : String(i + 1), narrow ? 1 - (i + 1) * wide : i * wide];
    const [x, y] = narrow ? [[0, 0.8], [start + 0.3 * wide, start + 0.95 * wide]] : [[start, start + 0.72 * wide], [0, 1]];
    const axis = { type: names ? "category" : "linear", showticklabels: Boolean(names), automargin: true };
    layout[`xaxis${k}`] = { ...axis, tickangle: names && names.some((name) => name.length > 3) ? -90 : 0, domain: x, anchor: `y${k}`, title: { text: `target (${titles[i]})` } };
    layout[`yaxis${k}`] = { ...axis, domain: y, anchor: `x${k}`, autorange: "reversed", showticklabels: i === 0 || narrow, title: { text: i === 0 || narrow ? "source" : "" } };
    const top = most(from);
    const scale = signed(from) || i === 2 ? { zmin: -top, zmax: top, colorscale: stopsOf({ log: false, low: -1, high: 1, beyond: 0 }) } : { zmin: 0, zmax: top, colorscale: stopsOf({ log: false, low: 0, high: 1, beyond: 0 }) };
    return { type: "heatmap", z, ...(names ? { x: names.map((name) => plain(clipped(name, 14))), y: names.map((name) => plain(clipped(name, 14))) } : {}), xaxis: `x${k}`, yaxis: `y${k}`, ...scale,
      colorbar: { thickness: 10, title: { text: plain(i === 2 ? "second − first" : of[i].title), side: "right" }, x: x[1] + 0.01, y: (y[0] + y[1]) / 2, len: y[1] - y[0], tickformat: of[i % 2].kind === "ratio" ? PERCENT : "" },
      hovertemplate: `${names ? "source %{y}, target %{x}<br>" : ""}%{z:${of[i % 2].kind === "ratio" ? PERCENT : ".3g"}}<extra></extra>` };
  });
  return Plotly.react("compare-plot", traces, layout, CONFIG);
}
