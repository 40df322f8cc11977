// A checkbox with data-all="NAME" selects all checkboxes with this name, or none.
"use strict";

document.addEventListener("change", (event) => {
  const named = (name) => [...document.querySelectorAll(`input[type=checkbox][name="${CSS.escape(name)}"]`)];
  const { all } = event.target.dataset;
  if (all) for (const each of named(all)) each.checked = event.target.checked;
  const head = document.querySelector(`[data-all="${CSS.escape(event.target.name)}"]`);
  if (!head) return;
  const states = named(event.target.name).map((each) => each.checked);
  head.checked = states.every(Boolean);
  head.indeterminate = !head.checked && states.some(Boolean);
});
