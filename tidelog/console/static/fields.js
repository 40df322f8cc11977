// A button with data-adds="ID" adds an empty copy of the last field in the element with this ID.
"use strict";

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-adds]");
  if (!button) return;
  const fields = document.getElementById(button.dataset.adds);
  const added = fields.lastElementChild.cloneNode(true);
  for (const each of added.querySelectorAll("input:not([type=hidden]), textarea")) each.value = "";
  fields.append(added);
  added.querySelector("input").focus();
});
