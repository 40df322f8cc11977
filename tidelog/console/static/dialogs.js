// A part with data-opens="ID" opens the dialog with this ID when it receives its content.
"use strict";

document.addEventListener("htmx:afterSwap", (event) => {
  const dialog = document.getElementById(event.target.dataset?.opens ?? "");
  if (dialog && !dialog.open) dialog.showModal();
});
