// @ts-check
"use strict";
/* What the reader has chosen, and the controls that say so. */

/** @type {{runs: Run[]}} */
let data;
/** Before the names of curves that are measures of features. */
const OF_FEATURES = "features: ";
/** The curve of how local learning is. */
const TIMES = "times as far as other classes";
const PER = ["source", "target"];
/** What is chosen in the class matrix: a cell with its pairs, a cell, or a row. */
const CHOSEN = ["open", "pair", "row"];
/** @type {Chosen} */
const chosen = { view: "short", run: 0, measure: 0, when: 0, order: "class", source: 0, target: 0, curves: "", colours: "class", first: 0, second: 0, first_step: -1, second_step: -1, per: "source", cell: "", marked: 0 };
/** The part of the matrix in view: [r0, r1, c0, c1]. @type {number[]|null} */
let part = null;
/** What the matrix shows now. @type {any} */
let seen = null;
const TOP = 10;

const run = () => data.runs[chosen.run];
const panel = () => run().panels[chosen.measure];

/** The exact matrix that is nearest to the chosen time. */
function exactPlace() {
  const { matrices } = panel();
  const exact = matrices.map((_, place) => place).filter((place) => matrices[place].exact);
  return exact.sort((a, b) => Math.abs(a - chosen.when) - Math.abs(b - chosen.when) || b - a)[0];
}

/** The map at the exact matrix nearest to the chosen time. */
const placesNow = () => panel().places && panel().places[exactPlace()];

/** The measure that a run opens with: what changed, where two models are compared. @param {Run} one */
const firstMeasure = (one) => (one.kind === "comparison" ? one.panels.length - 1 : 0);

/** @param {any} asked */
function choose(asked) {
  const r = within(asked.run, data.runs.length, chosen.run);
  const changed = r !== chosen.run;
  chosen.run = r;
  const measure = within(asked.measure, run().panels.length, changed ? firstMeasure(run()) : chosen.measure);
  const last = run().panels[measure].matrices.length - 1;
  const again = changed || measure !== chosen.measure;
  chosen.measure = measure;
  chosen.when = within(asked.when, last + 1, again ? last : Math.min(chosen.when, last));
  const orders = ordersOf(run());
  chosen.order = orders.includes(asked.order) ? asked.order : changed || !orders.includes(chosen.order) ? orders[0] : chosen.order;
  chosen.source = within(asked.source, run().sources.places.length, changed ? 0 : chosen.source);
  chosen.target = within(asked.target, run().targets.places.length, changed ? 0 : chosen.target);
  if (asked.curves !== undefined) chosen.curves = String(asked.curves);
  chosen.colours = ["class", "cluster", "similarity"].includes(asked.colours) ? asked.colours : chosen.colours;
  chosen.first = within(asked.first, comparable().length, chosen.first);
  chosen.second = within(asked.second, comparable().length, chosen.second);
  chosen.first_step = within(asked.first_step, stepsOf(chosen.first), Math.min(chosen.first_step, stepsOf(chosen.first) - 1));
  chosen.second_step = within(asked.second_step, stepsOf(chosen.second), Math.min(chosen.second_step, stepsOf(chosen.second) - 1));
  if (PER.includes(asked.per)) chosen.per = asked.per;
  if (changed) chosen.cell = "";
  const marks = run().marked.findIndex((one) => one.source === run().sources.places[chosen.source] && one.target === run().targets.places[chosen.target]);
  chosen.marked = within(asked.marked, run().marked.length, marks >= 0 && asked.marked === undefined ? marks : changed ? 0 : chosen.marked);
  if (asked.cell !== undefined) chosen.cell = CHOSEN.includes(asked.cell) ? asked.cell : "";
  if (asked.view && byId(asked.view)) chosen.view = asked.view;
  if (changed) part = null;
}

/** How many times something that can be compared has. @param {number} which */
const stepsOf = (which) => comparable()[which].panel.matrices.length;

/** @param {Run} one */
function ordersOf(one) {
  const orders = [];
  if (one.sources.clusters) orders.push("cluster");
  if (one.sources.classes) orders.push("class");
  return [...orders.reverse(), "as given"];
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
  fill("measure", counted(run().panels.map((one) => one.title)), String(chosen.measure));
  byId("run-label").hidden = data.runs.length < 2;
  byId("measure-label").hidden = run().panels.length < 2;
  fill("per", [["source", "values"], ["target", "relative to the target's usual value"]], chosen.per);
  fill("order", ordersOf(run()).map((order) => [order, order]), chosen.order);
  const steps = panel().steps;
  const several = steps.length > 1;
  const needs = { time: several, distance: Boolean(run().scatter), map: Boolean(placesNow()), compare: comparable().length > 1 || several, tokens: run().marked.length > 0 };
  for (const [name, there] of Object.entries(needs))
    document.querySelectorAll(`[data-needs="${name}"]`).forEach((one) => (/** @type {HTMLElement} */ (one).hidden = !there));
  byId("time").hidden = !several || !panel().pairs;
  byId("when").max = String(Math.max(0, steps.length - 1));
  byId("when").value = String(chosen.when);
  byId("when").setAttribute("aria-valuetext", several ? `step ${steps[chosen.when]}` : "");
  byId("step").textContent = several ? String(steps[chosen.when]) : "";
  const classes = panel().pairs && panel().pairs.median ? panel().pairs.classes : [];
  const features = run().numbers.map(({ name }) => [OF_FEATURES + name, `${name} of features`]);
  const curves = [["", "within and between classes"], ...(panel().front.curve ? [[TIMES, TIMES]] : []), ...classes.map((/** @type {string} */ name) => [name, `a step on class ${name}`]), ...features];
  fill("curves", curves, curves.some(([key]) => key === chosen.curves) ? chosen.curves : "");
  const side = run().sources;
  const colours = /** @type {[string, string][]} */ ([["class", "class"], ["cluster", "cluster"], ["similarity", "similarity to the chosen example"]].filter(([key]) => (key === "class" ? side.classes : key === "cluster" ? side.clusters : true)));
  fill("colours", colours, (colours.find(([key]) => key === chosen.colours) || colours[0] || [""])[0]);
  const which = `${run().name}, ${panel().title}, ordered by ${chosen.order}${several ? `, training step ${steps[chosen.when]}` : ""}`;
  document.querySelectorAll(".which").forEach((one) => (one.textContent = which));
  document.querySelectorAll("#words .card").forEach((one) => one.classList.toggle("current", Number(/** @type {HTMLElement} */ (one).dataset.run) === chosen.run));
}
