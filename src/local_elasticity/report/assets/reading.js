// @ts-check
"use strict";
/* Reading what the page carries, and keeping what the reader has chosen in the address. */

/** @typedef {{places: number[], classes: string[]|null, class: number[]|null, clusters: string[]|null,
 *             cluster: number[]|null, examples: string[]|null}} Side */
/** @typedef {{block: number, exact: boolean, shape?: [number, number]}} Stored */
/** @typedef {{measure: string, title: string, kind: string, steps: number[], matrices: Stored[],
 *             scale: Scale, own: number[]|null, pairs: any, front: any, places: any, correlations: any,
 *             listed: {sources: Side, helps: [number, number][][], harms: [number, number][][]}|null}} Panel */
/** @typedef {{name: string, kind: string, square: boolean, sources: Side, targets: Side, panels: Panel[],
 *             numbers: {name: string, values: number[]}[], state: any, scatter: any, match: any,
 *             marked: Marked[]}} Run */
/** @typedef {{view: string, run: number, measure: number, when: number, order: string, source: number, target: number,
 *             curves: string, colours: string, first: number, second: number, first_step: number,
 *             second_step: number, per: string, cell: string, marked: number}} Chosen */

/** @param {string} text gzip in base64 @returns {Promise<ArrayBuffer>} */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** @param {string} id @returns {Promise<string>} */
async function textOf(id) {
  return new TextDecoder().decode(await unpacked(byId(id).textContent || ""));
}

/** @type {Map<number, Promise<Float32Array>>} */
const blocks = new Map();

/** @param {number} block @returns {Promise<Float32Array>} */
function numbers(block) {
  const there = blocks.get(block);
  if (there) return there;
  const read = unpacked(byId(`block-${block}`).textContent || "").then((data) => new Float32Array(data));
  blocks.set(block, read);
  return read;
}

/** @param {string} id @returns {any} */
function byId(id) {
  return document.getElementById(id);
}

/** The address as a choice: #view?name=value&…, whatever stands there. @param {string} hash */
function fromHash(hash) {
  const [view, query] = hash.replace(/^#/, "").split("?");
  return { view, ...Object.fromEntries(new URLSearchParams(query || "")) };
}

/** @param {Chosen} chosen */
function toHash(chosen) {
  const { view, ...rest } = chosen;
  return `#${view}?${new URLSearchParams(Object.entries(rest).map(([name, value]) => [name, String(value)]))}`;
}

/** A whole number from 0 below `size`, or the fallback. @param {any} text @param {number} size @param {number} other */
function within(text, size, other) {
  const value = Number(text);
  return text !== undefined && Number.isInteger(value) && value >= 0 && value < size ? value : other;
}

/** Text that Plotly shows as it is: it would otherwise read tags. @param {any} text */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Three digits; very small and very large numbers with a power of ten. @param {number|null|undefined} value */
function digits(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e5)) return withMinus(String(Number(value.toPrecision(3))));
  const [number, power] = value.toExponential(2).split("e");
  const raised = [...String(Number(power))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)])).join("");
  return withMinus(`${Number(number)} × 10${raised}`);
}

/** A number with the sign that typesetters take. @param {string} text */
const withMinus = (text) => text.replace(/^-/, "−");

/** An element with text and classes; text is never read as HTML.
 * @param {string} tag @param {string} [words] @param {string} [kind] */
function element(tag, words, kind) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (kind) made.className = kind;
  return made;
}

const PICTURE = /^data:image\/(png|webp);base64,[A-Za-z0-9+/]+=*$/;

/** What is kept of an example: a picture, a small drawing of a vector, or its text.
 * @param {Side} side @param {number} i @returns {HTMLElement|SVGElement} */
function exampleOf(side, i) {
  const kept = side.examples && side.examples[i];
  if (!kept) return element("span", "no picture kept", "text");
  if (PICTURE.test(kept)) {
    const picture = /** @type {HTMLImageElement} */ (element("img", undefined, "picture"));
    picture.src = kept;
    picture.alt = nameOf(side, i);
    picture.addEventListener("error", () => picture.replaceWith(element("span", kept, "text")));
    return picture;
  }
  return vectorOf(kept) || element("span", kept, "text");
}

/** Bars, where the text is a list of numbers. @param {string} kept @returns {SVGElement|null} */
function vectorOf(kept) {
  if (!/^\[[-+0-9.eE, ]+\]$/.test(kept)) return null;
  /** @type {number[]} */
  let values;
  try {
    values = JSON.parse(kept);
  } catch (_) {
    return null;
  }
  const top = Math.max(...values.map(Math.abs)) || 1;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 -1.05 ${values.length} 2.1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "vector");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", values.map(digits).join(", "));
  values.forEach((value, i) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = Math.abs(value) / top;
    for (const [name, number] of Object.entries({ x: i + 0.1, y: value > 0 ? -height : 0, width: 0.8, height }))
      bar.setAttribute(name, String(number));
    svg.append(bar);
  });
  return svg;
}

/** @param {Side} side @param {number} i */
function classOf(side, i) {
  return side.classes && side.class ? side.classes[side.class[i]] : null;
}

/** @param {Side} side @param {number} i */
function clusterOf(side, i) {
  return side.clusters && side.cluster ? side.clusters[side.cluster[i]] : null;
}

/** @param {Side} side @param {number} i */
function nameOf(side, i) {
  const kind = classOf(side, i);
  return kind === null ? `#${side.places[i]}` : `${kind} · #${side.places[i]}`;
}
