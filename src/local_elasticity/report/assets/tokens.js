// @ts-check
"use strict";
/* Texts with a mark on each token: how a step on the source changed its log-probability. */

/** @typedef {{source: number, target: number, tokens: string[], changes: (number|null)[]}} Marked */

/** Red where a token became more likely, blue where less. */
const [LESS_LIKELY, MORE_LIKELY] = ["#2166ac", "#b2182b"];
/** Tokens that the sentence names. */
const TOKENS_NAMED = 3;

/** The ground of a token. @param {string} still that where nothing changed @param {number} change @param {number} top the largest */
const tint = (still, change, top) => mixed(still, change < 0 ? LESS_LIKELY : MORE_LIKELY, Math.min(1, Math.abs(change) / top));

/** With a sign. @param {number} value */
const signed = (value) => (value > 0 ? "+" : "") + digits(value);

/** @param {Marked} one */
const largestChange = (one) => Math.max(...one.changes.map((change) => Math.abs(change || 0))) || 1;

/** What a token is called: white space would not be seen. @param {string} token */
const visible = (token) => (token.trim() ? token.trim() : token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅");

/** What is said of one token. @param {Marked} one @param {number} t */
function tokenWords(one, t) {
  const change = one.changes[t];
  return change === null ? `“${visible(one.tokens[t])}”: not predicted, or hidden by rounding`
    : `“${visible(one.tokens[t])}”: log-probability ${signed(change)}, ${digits(Number(Math.exp(change).toPrecision(3)))} times as likely`;
}

/** The target's text with its marks. @param {Marked} one */
function markedText(one) {
  const box = element("div", undefined, "marked-text");
  const [top, still] = [largestChange(one), theme().card];
  one.tokens.forEach((token, t) => {
    const change = one.changes[t];
    const made = element("span", token.trim() || !token ? token : visible(token) + (token.includes("\n") ? "\n" : ""), "token");
    made.title = tokenWords(one, t);
    if (change !== null) {
      const ground = tint(still, change, top);
      Object.assign(made.style, { background: ground, color: inkOn(ground), borderBottom: `2px ${change < 0 ? "dotted" : "solid"} ${change < 0 ? LESS_LIKELY : MORE_LIKELY}` });
    }
    box.append(made);
    if (!/\s$/.test(token) && !/^\s/.test(one.tokens[t + 1] || " ")) box.append(document.createElement("wbr"));
  });
  return box;
}

/** Where an example of a pair is on the page; −1 where it was not drawn. @param {Side} side @param {number} place */
const placeOn = (side, place) => side.places.indexOf(place);

/** The marks of a pair of the page, where it was measured. @param {number} source @param {number} target */
const marksOf = (source, target) => run().marked.find((one) => one.source === run().sources.places[source] && one.target === run().targets.places[target]);

/** @param {Side} side @param {number} place */
const nameAt = (side, place) => (placeOn(side, place) < 0 ? `#${place}` : nameOf(side, placeOn(side, place)));

/** The sentence of a pair: whether the text became more or less likely, and by which tokens. @param {Marked} one */
function markedWords(one) {
  const known = one.changes.map((change, t) => ({ change, t })).filter(({ change }) => change !== null);
  if (!known.length) return "No token of this text is predicted and resolved.";
  const total = known.reduce((sum, { change }) => sum + Number(change), 0);
  const strongest = [...known].sort((a, b) => Math.abs(Number(b.change)) - Math.abs(Number(a.change))).slice(0, TOKENS_NAMED);
  const named = strongest.map(({ change, t }) => `“${visible(one.tokens[t])}” ${signed(Number(change))}`).join(", ");
  return `One step on ${nameAt(run().sources, one.source)} makes the text of ${nameAt(run().targets, one.target)} ${total < 0 ? "less" : "more"} likely: its log-probability changes by ${signed(total)} over ${known.length} ${known.length === 1 ? "token" : "tokens"}. Largest changes: ${named}.`;
}

function drawTokens() {
  const { marked, sources, targets } = run();
  if (!marked.length) return;
  const one = marked[chosen.marked];
  fill("marked", counted(marked.map(({ source, target, tokens }) => `${nameAt(sources, source)} → ${nameAt(targets, target)}: ${clipped(tokens.join("").trim(), 40)}`)), String(chosen.marked));
  const [from, to, at] = [element("div"), element("div"), placeOn(sources, one.source)];
  from.append(element("h3", `Step on ${nameAt(sources, one.source)}`));
  if (at >= 0 && sources.examples) from.append(exampleOf(sources, at));
  const text = markedText(one);
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", `Tokens of ${nameAt(targets, one.target)}; arrow keys go from token to token`);
  to.append(element("h3", `Read at ${nameAt(targets, one.target)}`), text, markLegend(largestChange(one)));
  byId("marked-pair").replaceChildren(from, to);
  byId("marked-words").textContent = markedWords(one);
  byId("token-words").textContent = "";
  text.querySelectorAll(".token").forEach((token, t) => {
    const say = () => (byId("token-words").textContent = tokenWords(one, t));
    token.addEventListener("focus", say);
    token.addEventListener("mouseenter", say);
  });
  oneTabStop(text, ".token");
}

/** The scale of the marks of one pair. @param {number} top */
function markLegend(top) {
  const strip = /** @type {HTMLCanvasElement} */ (element("canvas"));
  [strip.width, strip.height] = [121, 1];
  const [pen, still] = [strip.getContext("2d"), theme().card];
  for (let x = 0; pen && x < 121; x++) {
    pen.fillStyle = tint(still, (top * (x - 60)) / 60, top);
    pen.fillRect(x, 0, 1, 1);
  }
  const legend = element("div", undefined, "scale");
  legend.append(element("span", `less likely ${signed(-top)}`), strip, element("span", `${signed(top)} more likely`),
    element("span", "change of the log-probability; dotted line: less, solid: more; no line: not predicted, or hidden by rounding"));
  return legend;
}

/** The marked pair that was chosen in the list, everywhere. */
function listenToTokens() {
  byId("marked").addEventListener("change", () => {
    choose({ marked: byId("marked").value });
    const { source, target } = run().marked[chosen.marked];
    const [i, j] = [placeOn(run().sources, source), placeOn(run().targets, target)];
    drawTokens();
    pick(i >= 0 && j >= 0 ? { source: i, target: j } : {});
  });
}

function tokenRows() {
  return [["source", "target", "place", "token", "change"], ...run().marked.flatMap(({ source, target, tokens, changes }) => tokens.map((token, t) => [source, target, t, token, changes[t]]))];
}
