// @ts-check
"use strict";
/* Colours: ten for classes, on white and on black, and scales for numbers. Each two of the ten differ by at least 30 in
 * CIELAB, also as people with deuteranopia see them. */

const ON_WHITE = ["#004890", "#f0c000", "#c04800", "#60a8f0", "#484818", "#f0a8d8", "#60d878", "#a80078", "#4860f0", "#0000f0"];
const ON_BLACK = ["#48c0f0", "#f0f000", "#f06018", "#6078f0", "#486000", "#f0d8f0", "#c04878", "#f0d890", "#006090", "#4830f0"];
const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
/** From as far as the source itself to further. */
const FURTHER = ["#fde725", "#fb9f3a", "#e8602d", "#b5183a", "#7a0f3f"];
const BOTH_SIGNS = ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"];
const UNKNOWN = "#9a9a9a";

/** `both` is where a scale that is logarithmic on both sides of 0 begins.
 * @typedef {{log: boolean, percent?: boolean, low: number, high: number, beyond: number, anchor?: boolean, both?: number}} Scale */

/** The ten colours on the page's ground. */
const tenColours = () => (luminance(theme().paper) > 0.2 ? ON_WHITE : ON_BLACK);

/** @param {number} i */
const colourOf = (i) => tenColours()[i % 10];

/** Where a value lies on a scale, in the units that are drawn: logarithms for ratios, the ends for what lies beyond.
 * @param {Scale} scale @param {number|null} value */
function drawn(scale, value) {
  if (value === null || !Number.isFinite(value)) return null;
  const inside = Math.max(scale.low, Math.min(scale.high, value));
  if (scale.both) return Math.sign(inside) * Math.log10(Math.max(1, Math.abs(inside) / scale.both));
  return scale.log ? Math.log10(Math.max(inside, scale.low)) : inside;
}

/** The ends in the units that are drawn. @param {Scale} scale @returns {[number, number]} */
const endsOf = (scale) => (scale.both ? [drawn(scale, scale.low) || 0, drawn(scale, scale.high) || 0] : scale.log ? [Math.log10(scale.low), Math.log10(scale.high)] : [scale.low, scale.high]);

/** Stops for Plotly, from 0 to 1. A ratio has its anchor at 1: below it is Viridis, above it another hue.
 * @param {Scale} scale @returns {[number, string][]} */
function stopsOf(scale) {
  const even = (/** @type {string[]} */ list, /** @type {number} */ from, /** @type {number} */ to) => list.map((colour, i) => /** @type {[number, string]} */ ([from + ((to - from) * i) / (list.length - 1), colour]));
  if (scale.anchor) return even(BOTH_SIGNS, 0, 1);
  if (!scale.log) return even(scale.low < 0 ? BOTH_SIGNS : VIRIDIS, 0, 1);
  const [low, high] = endsOf(scale);
  const one = Math.min(1, -low / (high - low));
  return one >= 0.999 ? even(VIRIDIS, 0, 1) : [...even(VIRIDIS, 0, one), ...even(FURTHER, one, 1).slice(1)];
}

/** A colour on the way from one to another. @param {string} from @param {string} to @param {number} share */
function mixed(from, to, share) {
  const parts = [1, 3, 5].map((k) => {
    const [a, b] = [parseInt(from.slice(k, k + 2), 16), parseInt(to.slice(k, k + 2), 16)];
    return Math.round(a + (b - a) * share).toString(16).padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

/** The colour of a value. @param {Scale} scale @param {number|null} value */
function shade(scale, value) {
  const at = drawn(scale, value);
  if (at === null) return UNKNOWN;
  const [low, high] = endsOf(scale);
  const share = high > low ? (at - low) / (high - low) : 1;
  const stops = stopsOf(scale);
  const next = Math.max(1, stops.findIndex(([place]) => place >= share - 1e-9));
  const [[from, first], [to, second]] = [stops[next - 1], stops[next]];
  return mixed(first, second, to > from ? Math.max(0, Math.min(1, (share - from) / (to - from))) : 0);
}

/** How light a colour is, from 0 to 1. @param {string} colour */
function luminance(colour) {
  const linear = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16) / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

/** Black or white, whichever stands out. @param {string} colour */
const inkOn = (colour) => (luminance(colour) > 0.179 ? "#000000" : "#ffffff");

/** Ticks of a scale; its ends say that more lies beyond. @param {Scale} scale */
function scaleTicks(scale) {
  const [low, high] = endsOf(scale);
  /** @type {number[]} */
  const inner = [];
  if (scale.log) {
    for (let p = Math.ceil(low); p <= Math.floor(high); p++) inner.push(p);
    if (!inner.includes(0) && low < 0 && high > 0) inner.push(0);
  } else inner.push(...(low < 0 ? [0] : [high / 2]));
  const span = high - low;
  const kept = inner.filter((p) => p - low > 0.08 * span && high - p > 0.08 * span);
  const words = (/** @type {number} */ p) => (scale.percent ? percentOf(10 ** p) : digits(scale.log ? 10 ** p : p));
  const ends = scale.beyond > 0 ? [`≤ ${words(low)}`, `≥ ${words(high)}`] : [words(low), words(high)];
  if (!scale.log && low === 0) ends[0] = "0";
  return { tickmode: "array", tickvals: [low, ...kept, high], ticktext: [ends[0], ...kept.map(words), ends[1]] };
}
