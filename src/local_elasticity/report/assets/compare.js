// @ts-check
"use strict";
/* Two runs, measures or steps side by side. */

/** Blocks a side of two matrices that are compared. */
const BLOCKS = 60;

/** Every measure of every run. */
function comparable() {
  return data.runs.flatMap((one) => one.panels.map((p) => ({ name: `${one.name}, ${p.title}`, label: data.runs.length > 1 ? `${p.title}: ${one.name}` : p.title, run: one, panel: p })));
}

/** The first pair worth comparing: one measure of two runs, or else two measures of one. @param {any[]} all */
function firstPair(all) {
  const before = all.findIndex((one) => one.run.kind === "comparison");
  if (before >= 0) return [before, before + 1];
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

/** Class pairs of two panels at two times, or all pairs in blocks where classes are none or many; null where they cannot
 * be laid side by side. @param {any} a @param {any} b @param {boolean} same @param {Float32Array[]} values @param {number[]} when */
function mapsOf(a, b, same, values, when) {
  const [first, second] = [a.panel.pairs, b.panel.pairs];
  if (first && first.median && second && second.median && String(first.classes) === String(second.classes))
    return { maps: [first, second].map(({ median }, k) => median[when[k]]), names: first.classes };
  if (!same || values.length < 2) return null;
  const [rows, columns] = [orderOf(a.run.sources, "class"), orderOf(a.run.targets, "class")];
  return { maps: values.map((one) => windowOf(one, columns.length, rows, columns, [0, rows.length, 0, columns.length], BLOCKS).z), names: undefined };
}

/** The chosen time of one side; the last unless it was chosen. @param {any} one @param {number} step */
const timeOf = (one, step) => (step < 0 ? one.panel.matrices.length - 1 : step);

/** A difference of two ratios in percentage points. @param {number|null} value @param {Panel} one */
const differenceWords = (value, one) => (one.kind === "ratio" && value !== null ? `${digits(Number((100 * value).toPrecision(2)))} percentage points` : digits(value));

async function compare() {
  const all = comparable();
  if (byId("compare").hidden) return;
  const two = [all[chosen.first], all[chosen.second]];
  const [a, b] = two;
  const when = [timeOf(a, chosen.first_step), timeOf(b, chosen.second_step)];
  const tell = (/** @type {any} */ { name, panel: shown }, /** @type {number} */ k) => {
    const { pairs, steps, front } = shown;
    if (!pairs) return "";
    const { curve, brief } = front;
    const found = curve ? [curve.times, curve.low, curve.high].map((list) => list[when[k]]) : brief.times;
    const times = found && found[0] !== null ? `, ${timesWords(found[0], found[1], found[2])} as far` : "";
    return `${name}${steps.length > 1 ? ` at step ${steps[when[k]]}` : ""}: same class ${amount(pairs.within[when[k]], shown)}, other classes ${amount(pairs.between[when[k]], shown)}${times}. `;
  };
  const stored = two.map(({ panel: { matrices } }, k) => matrices[when[k]]);
  const exact = stored.every((one) => one.exact);
  const values = exact ? await Promise.all(stored.map(({ block }) => numbers(block))) : [];
  const [same, alike] = [sameExamples(a.run, b.run), a.panel.measure === b.panel.measure];
  const [width, square] = [a.run.targets.places.length, a.run.square];
  const found = mapsOf(a, b, same, values, when);
  const together = !same ? "" : exact ? `Pair by pair${a.run === b.run ? "" : ", if these are the same examples"}, their rank correlation is ${digits(agreementOf(values[0], values[1], width, square))}.`
    + (alike ? ` The median over pairs of second − first is ${differenceWords(differenceOf(values[0], values[1], width, square), a.panel)}.` : "") : "Single pairs are not kept at one of these steps, so no correlation is given.";
  byId("compare-words").textContent = two.map(tell).join("") + together + (alike ? "" : ` These are different measures: no difference is drawn${found ? ", and each has a colour scale of its own, so that one colour means two numbers" : ""}.`)
    + (found ? (found.names ? "" : " Dots are medians over blocks of pairs.") : " They cannot be drawn side by side.");
  byId("compare-plot").hidden = !found;
  if (found) await drawCompare(found.maps[0], found.maps[1], found.names, [a.panel, b.panel], alike);
}

/** What can be compared, and at which steps. */
function fillCompare() {
  const all = comparable();
  for (const name of /** @type {("first"|"second")[]} */ (["first", "second"])) {
    const { steps } = all[chosen[name]].panel;
    const id = /** @type {"first_step"|"second_step"} */ (`${name}_step`);
    fill(name, counted(all.map((one) => one.label)), String(chosen[name]));
    fill(id, counted(steps.map(String)), String(timeOf(all[chosen[name]], chosen[id])));
    /** @type {HTMLElement} */ (byId(id).parentElement).hidden = steps.length < 2;
  }
}
