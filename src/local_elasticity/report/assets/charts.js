// @ts-check
"use strict";
/* The other drawings. Colours are Okabe and Ito's; shapes and dashes tell apart what colours cannot. */

/** @type {any} */
var Plotly;

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "star", "triangle-down", "pentagon", "hexagram"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage", "sendDataToCloud"] };

/** @param {number} i */
const colourOf = (i) => COLOURS[i % COLOURS.length];

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
  const line = { color: colourOf(i), dash: DASHES[Math.floor(i / COLOURS.length) % DASHES.length], width: curve.wide ? 4 : 2 };
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

/** Curves of one source class, or within and between classes. @param {any} pairs @param {string} which */
function curvesOf(pairs, which) {
  const source = pairs.classes.indexOf(which);
  if (which === RATIO) return [{ name: RATIO, median: pairs.ratio, wide: true }];
  if (source < 0 || !pairs.median)
    return [
      { name: "same class", median: pairs.within, low: pairs.within_low, high: pairs.within_high, wide: true },
      { name: "other classes", median: pairs.between, low: pairs.between_low, high: pairs.between_high, wide: false },
    ];
  const pick = (/** @type {any} */ cube, /** @type {number} */ b) => cube.map((/** @type {any} */ at) => at[source][b]);
  return pairs.classes.map((/** @type {string} */ name, /** @type {number} */ b) => ({
    name: `target ${name}`,
    median: pick(pairs.median, b),
    low: pick(pairs.low, b),
    high: pick(pairs.high, b),
    wide: b === source,
  }));
}

/** Where the steps lie: as they are, or one after another where most would crowd at the start. @param {number[]} steps */
function timesOf(steps) {
  const crowded = steps.length > 4 && steps[steps.length >> 1] < 0.25 * steps[steps.length - 1];
  const every = Math.ceil(steps.length / 16);
  const shown = steps.map((_, i) => i).filter((i) => i % every === 0 || i === steps.length - 1);
  const ticks = { tickmode: "array", tickvals: shown, ticktext: shown.map((i) => String(steps[i])) };
  return crowded
    ? { x: steps.map((_, i) => i), axis: { ...ticks, title: { text: "training step (not to scale)" } } }
    : { x: steps, axis: { title: { text: "training step" } } };
}

/** What the curves are. @param {Run} run @param {string} which */
function timeWords(run, which) {
  if (run.numbers.some(({ name }) => OF_FEATURES + name === which)) return "The line is a measure of the network's features.";
  if (which === RATIO) return "The line is how far other classes move, as a share of how far the same class does: 1 where a step moves all alike, 0 where it moves its own class alone.";
  return (which === "" ? "Lines are medians over the pairs of two classes, averaged over equal and over different classes; bands are their quartiles, averaged alike."
    : "Lines are medians over all pairs of two classes; bands hold the middle half of the pairs.");
}

/** @param {Run} run @param {Panel} panel @param {string} which @param {number} when */
function drawTime(run, panel, which, when) {
  const { x, axis } = timesOf(panel.steps);
  const at = x[when];
  const shapes = [{ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: theme().ink, width: 1.5, dash: "dot" } }];
  const number = run.numbers.find(({ name }) => OF_FEATURES + name === which);
  const curves = number ? [{ name: number.name, median: number.values, wide: true }] : curvesOf(panel.pairs, which);
  const traces = curves.flatMap((/** @type {any} */ curve, /** @type {number} */ i) => banded(x, curve, i));
  const layout = layoutOf({ shapes, hovermode: "x unified", xaxis: axis,
    yaxis: { title: { text: plain(number ? number.name : which === RATIO ? "ratio" : panel.measure) }, ...(which === RATIO ? { rangemode: "tozero" } : {}) } });
  byId("time-words").textContent = timeWords(run, which);
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

/** What of the similarities the distance plot shows. @param {Panel} panel */
const heightOf = ({ range: [low, high] }) => [low * 1.5 - 0.03 * high, high * 1.5];

/** @param {Run} run @param {Panel} panel @param {Float32Array} values an exact matrix */
function drawDistance(run, panel, values) {
  const width = run.targets.places.length;
  const { rows, columns, distances } = run.scatter;
  /** @type {any} */
  const groups = { "same class": [], "other classes": [], pairs: [] };
  dots = rows.map((/** @type {number} */ i, /** @type {number} */ k) => ({ x: distances[k], y: values[i * width + columns[k]], i, j: columns[k] }));
  dots.sort((a, b) => a.x - b.x);
  for (const dot of dots) {
    const [a, b] = [classOf(run.sources, dot.i), classOf(run.targets, dot.j)];
    groups[a === null || b === null ? "pairs" : a === b ? "same class" : "other classes"].push(dot);
  }
  const traces = Object.entries(groups).filter(([, points]) => points.length).flatMap(([name, points], g) => {
    const line = binned(points);
    const of = (/** @type {any[]} */ list, /** @type {string} */ key) => list.map((p) => p[key]);
    return [
      { type: "scatter", mode: "markers", name, x: of(points, "x"), y: of(points, "y"), hovertemplate: "distance %{x:.3g}<br>similarity %{y:.3g}<extra></extra>",
        marker: { color: colourOf(g), symbol: SYMBOLS[g], size: 5, opacity: 0.45 }, customdata: points.map((/** @type {any} */ p) => [p.i, p.j]) },
      { type: "scatter", mode: "lines", name: `${name}, median`, x: of(line, "x"), y: of(line, "y"), hoverinfo: "skip",
        line: { color: theme().ink, width: 3, dash: DASHES[g] } },
    ];
  });
  traces.sort((a, b) => Number(a.mode === "lines") - Number(b.mode === "lines"));
  return Plotly.react("distance-plot", traces, layoutOf({ hovermode: "closest", xaxis: { title: { text: "Euclidean distance between the two examples" } },
    yaxis: { title: { text: plain(panel.measure) }, range: heightOf(panel) } }), CONFIG);
}

/** @param {Run} run @param {Panel} panel @param {string} by @param {number} source */
function drawMap(run, panel, by, source) {
  const { points } = panel.places;
  const side = run.sources;
  const of = by === "cluster" ? side.cluster : side.class;
  const names = (by === "cluster" ? side.clusters : side.classes) || ["examples"];
  const all = side.places.map((_, i) => i);
  const trace = (/** @type {number[]} */ which, /** @type {any} */ more) => ({ type: "scatter", mode: "markers", x: which.map((i) => points[i][0]),
    y: which.map((i) => points[i][1]), customdata: which, hoverinfo: "none", ...more });
  const traces = names.map((name, g) => trace(all.filter((i) => !of || of[i] === g), { name: plain((by === "cluster" ? "cluster " : "") + name),
    marker: { color: colourOf(g), symbol: SYMBOLS[g % SYMBOLS.length], size: 9, opacity: 0.85 } }));
  if (run.match)
    traces.push(trace(all.filter((i) => run.match.wrong[i]), { name: "in a wrong cluster", marker: { color: theme().ink, symbol: "circle-open", size: 16, line: { width: 2 } } }));
  traces.push(trace([source], { name: "chosen source", marker: { color: theme().ink, symbol: "cross-open", size: 18, line: { width: 2 } } }));
  const axis = { showticklabels: false, zeroline: false };
  return Plotly.react("map-plot", traces, layoutOf({ hovermode: "closest", xaxis: axis, yaxis: { ...axis, scaleanchor: "x" }, margin: { l: 15, r: 15, t: 15, b: 15 },
    legend: { orientation: "h", y: -0.02 } }), CONFIG);
}

/** Two maps, and their difference where they are of one measure.
 * @param {any} first @param {any} second matrices of numbers or null @param {string[]|undefined} names @param {boolean} alike */
function drawCompare(first, second, names, alike) {
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
    const [x, y] = narrow ? [[0, 0.85], [start + 0.3 * wide, start + 0.95 * wide]] : [[start, start + 0.72 * wide], [0, 1]];
    const axis = { type: names ? "category" : "linear", showticklabels: Boolean(names), automargin: true };
    layout[`xaxis${k}`] = { ...axis, domain: x, anchor: `y${k}`, title: { text: `target (${titles[i]})` } };
    layout[`yaxis${k}`] = { ...axis, domain: y, anchor: `x${k}`, autorange: "reversed", title: { text: i === 0 || narrow ? "source" : "" } };
    const top = most(from);
    const scale = signed(from) || i === 2 ? { zmin: -top, zmax: top, colorscale: DIVERGING } : { zmin: 0, zmax: top, colorscale: "Viridis" };
    return { type: "heatmap", z, ...(names ? { x: names.map(plain), y: names.map(plain) } : {}), xaxis: `x${k}`, yaxis: `y${k}`, ...scale,
      colorbar: { thickness: 10, x: x[1] + 0.01, y: (y[0] + y[1]) / 2, len: y[1] - y[0] },
      hovertemplate: `${names ? "source %{y}, target %{x}<br>" : ""}%{z:.3g}<extra></extra>` };
  });
  return Plotly.react("compare-plot", traces, layout, CONFIG);
}

const DIVERGING = [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]];
