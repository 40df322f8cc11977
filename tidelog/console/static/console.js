// What all pages share: live parts by server-sent events, the theme, keys, and the CSRF token of htmx.
"use strict";

const $ = (id) => document.getElementById(id);
const csrf = document.querySelector('meta[name="csrf-token"]')?.content;

document.addEventListener("htmx:configRequest", (event) => { event.detail.headers["X-CSRF-Token"] = csrf; });
document.addEventListener("htmx:beforeSwap", (event) => {
  // Errors of the console are parts of pages, too. They are shown in the place of the result.
  if (event.detail.xhr.getResponseHeader("Content-Type")?.startsWith("text/html")) event.detail.shouldSwap = true;
});
document.addEventListener("htmx:sendError", () => banner("The console does not answer."));
document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) banner(""); });

function banner(text) {
  $("banner").textContent = text;
  $("banner").hidden = !text;
}

// -- live parts ----------------------------------------------------------------------------------------------------
// An element with data-live="URL" subscribes to the events of that URL: "parts" has the new HTML of elements, by the name
// after "part-". Other events are dispatched on the element as "live:NAME". A hidden page has no connection, since
// browsers limit the connections to a host to six.
class LiveParts {
  constructor(element) {
    this.element = element;
    this.source = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
    window.addEventListener("pagehide", () => this.stop());
    this.start();
  }

  start() {
    if (this.source || document.hidden) return;
    const source = (this.source = new EventSource(this.element.dataset.live));
    source.onerror = () => {
      this.show("lost", "reconnecting");
      if (source.readyState === EventSource.CLOSED && this.source === source) {
        this.source = null;
        setTimeout(() => this.start(), 3000);
      }
    };
    const on = (name, handle) => source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    on("parts", (parts) => {
      banner("");
      this.show("live", "live");
      for (const [name, html] of Object.entries(parts)) this.replace($(`part-${name}`), html);
    });
    on("problem", (text) => { banner(text); this.show("lost", "server does not answer"); });
    on("ended", () => { this.stop(); location.assign("/login"); });
    for (const name of (this.element.dataset.events || "sample").split(" ")) {
      on(name, (detail) => this.element.dispatchEvent(new CustomEvent(`live:${name}`, { detail })));
    }
  }

  stop() {
    this.source?.close();
    this.source = null;
  }

  replace(element, html) {
    if (!element || element.contains(document.activeElement) && document.activeElement.matches("input, button")) return;
    const scrolled = element.querySelector(".scroll")?.scrollLeft;
    const open = [...element.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key);
    htmx.swap(element, html, { swapStyle: "innerHTML" });
    for (const key of open) element.querySelector(`details[data-key="${CSS.escape(key)}"]`)?.setAttribute("open", "");
    if (scrolled) element.querySelector(".scroll").scrollLeft = scrolled;
  }

  show(state, text) {
    if ($("live").dataset.state === state && $("live").textContent === text) return;
    $("live").dataset.state = state;
    $("live").textContent = text;
  }
}

// -- theme ---------------------------------------------------------------------------------------------------------
const THEMES = ["auto", "light", "dark"];

function setTheme(name) {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `tidelog_console_theme=${name}; Path=/; Max-Age=31536000; SameSite=Strict${secure}`;
  document.documentElement.dataset.theme = name;
  $("theme-name").textContent = name;
  $("theme").setAttribute("aria-label", `Color theme: ${name}`);
  document.dispatchEvent(new CustomEvent("theme"));
}

// -- keys ----------------------------------------------------------------------------------------------------------
let before = "";
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const last = before;
  before = event.key;
  if (event.key === "?") $("keys").showModal();
  else if (event.key === "/" && document.querySelector("main input[type=search]")) {
    event.preventDefault();
    document.querySelector("main input[type=search]").focus();
  } else if (last !== "g" && "np".includes(event.key)) {
    document.querySelector(`main a[rel=${event.key === "n" ? "next" : "prev"}]`)?.click();
  } else if (last === "g") document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
});

// -- buttons -------------------------------------------------------------------------------------------------------
// data-values hides the values of entries or shows them again, data-dialog="ID" opens a dialog, data-close closes the dialog around it, data-copy="ID" copies the text of an element,
// and data-open="ID" opens the address data-target with the value of a field at its end.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const { dialog, copy, open, target } = button.dataset;
  if (dialog) $(dialog).showModal();
  if ("close" in button.dataset) button.closest("dialog").close();
  if ("values" in button.dataset) {
    const hidden = button.getAttribute("aria-pressed") === "true";
    document.cookie = `tidelog_console_values=${hidden ? "shown" : "hidden"}; Path=/; SameSite=Strict`;
    location.reload();
  }
  if (open && $(open).value) location.assign(target + encodeURIComponent($(open).value));
  if (copy) {
    try {
      await navigator.clipboard.writeText($(copy).textContent);
      button.textContent = "Copied";
    } catch { // no permission, or not a secure context
      getSelection().selectAllChildren($(copy));
      button.textContent = "Selected";
    }
  }
});

document.addEventListener("DOMContentLoaded", () => {
  $("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  });
  $("help").addEventListener("click", () => $("keys").showModal());
  for (const element of document.querySelectorAll("[data-live]")) new LiveParts(element);
});
