// @ts-check
// The choice among the releases that lie beside this one; ../versions.js lists them.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  /** @type {string[]} */
  const releases = Reflect.get(window, "RELEASES") ?? [];
  const choice = /** @type {HTMLSelectElement | null} */ (document.querySelector("select.release"));
  if (!choice) return;
  const here = choice.value;
  for (const release of releases.filter((name) => name !== here)) choice.add(new Option(release, release));
  choice.addEventListener("change", () => {
    const root = document.documentElement.dataset.content_root ?? "./";
    location.href = `${root}../${choice.value}/index.html`;
  });
});
