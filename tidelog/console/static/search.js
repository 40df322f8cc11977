// The page that searches a stream. The search ends when its connection is closed.
"use strict";

const KEPT = 1000; // hits on the page

class Search {
  constructor(form) {
    this.form = form;
    this.source = null;
    this.before = 0; // entries that the searches before the one in progress have examined
    this.examined = 0; // by the one in progress
    this.hits = 0;
    this.total = null; // entries of the range
    this.following = ""; // where another search continues
    $("stop").addEventListener("click", () => this.end("stopped"));
    $("continue").addEventListener("click", () => this.start());
    window.addEventListener("pagehide", () => this.source?.close());
    if (new URLSearchParams(location.search).get("words")) this.start();
  }

  start() {
    const asked = new URLSearchParams(new FormData(this.form));
    if (this.following) asked.set("following", this.following);
    this.before += this.examined;
    this.examined = 0;
    $("search-result").hidden = false;
    $("stop").hidden = false;
    $("continue").hidden = true;
    banner("");
    const source = (this.source = new EventSource(`${this.form.dataset.url}?${asked}`));
    const on = (name, handle) => source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    on("step", (step) => this.add(step));
    on("done", (step) => { this.add(step); this.end(step.why); });
    on("problem", (text) => { banner(text); this.end("interrupted"); });
    on("refused", (text) => { banner(text); this.end("refused"); });
    on("ended", () => location.assign("/login"));
    source.onerror = () => { if (this.source === source) this.failed(source.url); };
    this.show("");
  }

  async failed(url) {
    this.end("interrupted");
    if (this.following) return;
    const answer = await fetch(url).catch(() => null); // the reason, which an EventSource does not show
    banner(answer && !answer.ok ? await answer.text() : "The console does not answer.");
    answer?.body?.cancel();
  }

  add(step) {
    [this.examined, this.following, this.at] = [step.examined, step.following, step.at];
    this.total ??= step.total;
    this.hits += step.hits;
    if (step.rows.trim()) htmx.swap($("entries"), step.rows, { swapStyle: "beforeend" });
    while ($("entries").children.length > KEPT) $("entries").firstElementChild.remove();
    this.show("");
  }

  end(why) {
    this.source?.close();
    this.source = null;
    $("stop").hidden = true;
    $("continue").hidden = !this.following;
    this.show(why);
  }

  show(why) {
    const examined = this.before + this.examined, number = (value) => value.toLocaleString("en");
    const of = this.total === null ? "" : ` of ${number(this.total)}`;
    const at = this.at && !why ? `, at ${new Date(this.at).toISOString().slice(0, 19).replace("T", " ")}` : "";
    $("search-state").textContent = `${number(this.hits)} found, ${number(examined)}${of} examined${at}${why ? `; ${why}` : ""}`;
    $("search-progress").hidden = Boolean(why) && why !== "stopped";
    if (this.total) $("search-progress").value = examined / this.total;
    else $("search-progress").removeAttribute("value");
  }
}

document.addEventListener("DOMContentLoaded", () => new Search($("search")));
