// @ts-check
"use strict";
/* The matrix: an overview of block medians, exact once zoomed in. */

const CELLS = 220;

/** The order of the examples along a side. @param {Side} side @param {string} by @returns {number[]} */
function orderOf(side, by) {
  const all = side.places.map((_, i) => i);
  const first = by === "cluster" ? side.cluster : by === "class" ? side.class : null;
  const second = by === "cluster" ? side.class : side.cluster;
  if (!first) return all;
  return all.sort((a, b) => first[a] - first[b] || (second ? second[a] - second[b] : 0) || a - b);
}

/** Where groups begin and end in an order, with their names.
 * @param {Side} side @param {string} by @param {number[]} order */
function groupsOf(side, by, order) {
  const of = by === "cluster" ? side.cluster : by === "class" ? side.class : null;
  const names = by === "cluster" ? side.clusters : side.classes;
  if (!of || !names) return textsOf(side, order);
  /** @type {{name: string, start: number, end: number}[]} */
  const groups = [];
  order.forEach((i, place) => {
    const name = (by === "cluster" ? "cluster " : "") + names[of[i]];
    const last = groups[groups.length - 1];
    if (last && last.name === name) last.end = place + 1;
    else groups.push({ name, start: place, end: place + 1 });
  });
  return groups;
}

/** Up to so many texts have names beside the matrix. */
const TEXTS_NAMED = 20;

/** A group for each text, where there are few and no classes. @param {Side} side @param {number[]} order */
function textsOf(side, order) {
  const { examples, classes } = side;
  if (classes || !examples || order.length > TEXTS_NAMED || examples.some((one) => !one || PICTURE.test(one) || vectorOf(one))) return [];
  return order.map((i, place) => ({ name: examples[i], start: place, end: place + 1 }));
}

/** Medians of the known numbers in at most `cells` blocks a side of rows [r0, r1) and columns [c0, c1) of an ordered matrix.
 * @param {Float32Array} values @param {number} width @param {number[]} rows @param {number[]} columns
 * @param {number[]} part [r0, r1, c0, c1] @param {number} cells
 * @returns {{z: (number|null)[][], dy: number, dx: number}} */
function windowOf(values, width, rows, columns, part, cells) {
  const [r0, r1, c0, c1] = part;
  const dy = Math.ceil((r1 - r0) / cells);
  const dx = Math.ceil((c1 - c0) / cells);
  const z = [];
  const few = new Float32Array(dy * dx);
  for (let r = r0; r < r1; r += dy) {
    const line = [];
    for (let c = c0; c < c1; c += dx) {
      let count = 0;
      for (let i = r; i < Math.min(r + dy, r1); i++)
        for (let j = c; j < Math.min(c + dx, c1); j++) {
          const value = values[rows[i] * width + columns[j]];
          if (!Number.isFinite(value)) continue;
          let at = count++;
          for (; at > 0 && few[at - 1] > value; at--) few[at] = few[at - 1];
          few[at] = value;
        }
      line.push(count ? (few[(count - 1) >> 1] + few[count >> 1]) / 2 : null);
    }
    z.push(line);
  }
  return { z, dy, dx };
}

/** The part of a matrix that axis ranges show, rounded outwards. @param {number[]} y @param {number[]} x
 * @param {number} n @param {number} m @returns {number[]} */
function partOf(y, x, n, m) {
  const clip = (/** @type {number} */ value, /** @type {number} */ size) => Math.max(0, Math.min(size, value));
  const [top, bottom] = [Math.min(...y), Math.max(...y)];
  const [left, right] = [Math.min(...x), Math.max(...x)];
  return [clip(Math.floor(top + 0.5), n), clip(Math.ceil(bottom + 0.5), n), clip(Math.floor(left + 0.5), m),
    clip(Math.ceil(right + 0.5), m)];
}

/** The targets of a source from most to least moved; itself and unresolved ones left out.
 * @param {Float32Array} values @param {number} width @param {number} source @param {boolean} square */
function ranked(values, width, source, square) {
  /** @type {{target: number, value: number}[]} */
  const found = [];
  for (let target = 0; target < width; target++) {
    const value = values[source * width + target];
    if (Number.isFinite(value) && !(square && target === source)) found.push({ target, value });
  }
  return found.sort((a, b) => b.value - a.value);
}

/** Pearson's correlation of two lists. @param {number[]} a @param {number[]} b */
function correlation(a, b) {
  const mean = (/** @type {number[]} */ list) => list.reduce((sum, value) => sum + value, 0) / list.length;
  const [ma, mb] = [mean(a), mean(b)];
  let [ab, aa, bb] = [0, 0, 0];
  a.forEach((value, i) => {
    ab += (value - ma) * (b[i] - mb);
    aa += (value - ma) ** 2;
    bb += (b[i] - mb) ** 2;
  });
  return ab / Math.sqrt(aa * bb);
}

/** Places in rising order; equal values share the mean of theirs. @param {number[]} list */
function ranksOf(list) {
  const ranks = new Array(list.length);
  const order = list.map((_, i) => i).sort((i, j) => list[i] - list[j]);
  for (let start = 0, end; start < order.length; start = end) {
    end = start + 1;
    while (end < order.length && list[order[end]] === list[order[start]]) end++;
    for (let k = start; k < end; k++) ranks[order[k]] = (start + end - 1) / 2;
  }
  return ranks;
}

/** At most about 20,000 pairs, evenly taken, that two matrices know; the diagonal left out where there is one.
 * @param {Float32Array} a @param {Float32Array} b @param {number} width @param {boolean} square */
function knownPairs(a, b, width, square) {
  const every = Math.max(1, Math.floor(a.length / 20000));
  /** @type {number[][]} */
  const [x, y] = [[], []];
  for (let i = 0; i < a.length; i += every) {
    if (square && Math.floor(i / width) === i % width) continue;
    if (Number.isFinite(a[i]) && Number.isFinite(b[i])) {
      x.push(a[i]);
      y.push(b[i]);
    }
  }
  return { x, y };
}

/** The rank correlation of two matrices. @param {Float32Array} a @param {Float32Array} b @param {number} width @param {boolean} square */
function agreementOf(a, b, width, square) {
  const { x, y } = knownPairs(a, b, width, square);
  return correlation(ranksOf(x), ranksOf(y));
}

/** The median difference, the second less the first, over the pairs that `agreementOf` takes.
 * @param {Float32Array} a @param {Float32Array} b @param {number} width @param {boolean} square */
function differenceOf(a, b, width, square) {
  const { x, y } = knownPairs(a, b, width, square);
  return medianOf(x.map((value, k) => y[k] - value));
}

/** What all but two in a hundred numbers stay below; 1 where there are none or only zeros. @param {number[]} list */
function upperOf(list) {
  const known = list.filter(Number.isFinite).sort((a, b) => a - b);
  return (known.length < 50 ? known[known.length - 1] : known[Math.floor(0.98 * known.length)]) || 1;
}

/** The block of a coarse matrix that holds a place. @param {number} place @param {number} size @param {number} parts */
function blockOf(place, size, parts) {
  let block = Math.min(parts - 1, Math.floor((place * parts) / size));
  while (block + 1 < parts && Math.floor(((block + 1) * size) / parts) <= place) block++;
  return block;
}

/** Ticks and lines between groups. @param {{name: string, start: number, end: number}[]} groups */
function ticksOf(groups) {
  const few = groups.length <= 40 ? groups : [];
  return {
    tickvals: few.map((group) => (group.start + group.end - 1) / 2),
    ticktext: few.map((group) => plain(clipped(group.name, 14))),
    longest: Math.max(0, ...few.map((group) => Math.min(14, group.name.length))),
    edges: few.slice(1).map((group) => group.start - 0.5),
  };
}

/** Every column in units of its median over the sources, an example with itself aside; less it where there are signs.
 * @param {Float32Array} values @param {number} width @param {boolean} square @param {boolean} ratio */
function byTarget(values, width, square, ratio) {
  const [height, made] = [values.length / width, new Float32Array(values.length)];
  for (let j = 0; j < width; j++) {
    const column = [];
    for (let i = 0; i < height; i++) {
      const value = values[i * width + j];
      if (Number.isFinite(value) && !(square && i === j)) column.push(value);
    }
    const sorted = Float32Array.from(column).sort();
    const middle = sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : NaN;
    for (let i = 0; i < height; i++) made[i * width + j] = ratio ? (middle > 0 ? values[i * width + j] / middle : NaN) : values[i * width + j] - middle;
  }
  return made;
}
