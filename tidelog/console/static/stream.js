// The page of a stream: the plot of entries over time, following, dialogs, and the form that appends an entry.
"use strict";

const SHOWN = 500; // entries on the page while it follows the stream

// -- entries over time ---------------------------------------------------------------------------------------------
class Density {
  constructor(box) {
    this.box = box;
    this.chart = null;
    for (const button of document.querySelectorAll("[data-density]")) {
      button.addEventListener("click", () => this.choose(button));
    }
    new ResizeObserver(() => this.chart?.setSize({ width: box.clientWidth, height: 110 })).observe(box);
    document.addEventListener("theme", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.load(0);
  }

  choose(chosen) {
    for (const each of document.querySelectorAll("[data-density]")) {
      each.setAttribute("aria-pressed", String(each === chosen));
    }
    this.load(chosen.dataset.density);
  }

  async load(span) {
    const answer = await fetch(`${this.box.dataset.url}&span=${span}`).catch(() => null);
    if (!answer?.ok) {
      banner(answer ? await answer.text() : "The console does not answer.");
      return;
    }
    this.found = await answer.json();
    this.draw();
  }

  draw() {
    this.chart?.destroy();
    this.box.replaceChildren();
    const { times, counts } = this.found ?? { times: [], counts: [] };
    if (times.length < 2) return;
    const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--muted"), font: `11px ${style.fontFamily}`, ticks: { show: false } };
    const step = times[1] - times[0], long = times.at(-1) - times[0] > 36 * 3600e3;
    const text = (at) => new Date(1000 * at).toISOString().slice(...(long ? [5, 16] : step < 2000 ? [11, 19] : [11, 16])).replace("T", " ");
    this.chart = new uPlot({
      width: this.box.clientWidth, height: 110, legend: { show: false }, padding: [8, 8, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1)] }, x: { range: [times[0] / 1000, (times.at(-1) + step) / 1000] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: long ? 110 : 80, values: (_, all) => all.map(text) },
        { ...axis, grid: { stroke: color("--plot-grid"), width: 1 }, size: 54, space: 30,
          values: (_, all) => all.map((value) => (Number.isInteger(value) ? value.toLocaleString("en") : "")) },
      ],
      series: [{}, { fill: color("--plot-1"), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.85], align: 1 }) }],
      hooks: { setCursor: [(made) => this.point(made)] },
    }, [times.map((at) => at / 1000), counts], this.box);
    this.step = step;
    const total = counts.reduce((sum, count) => sum + count, 0);
    this.box.setAttribute("aria-label", `${total.toLocaleString("en")} entries from ${text(times[0] / 1000)} to ${text((times.at(-1) + step) / 1000)}`);
    this.chart.over.addEventListener("click", () => {
      const index = this.chart.posToIdx(this.chart.cursor.left), at = times[Math.max(0, index)];
      if (at !== undefined) location.assign(this.box.dataset.open + (at + step - 1));
    });
  }

  point(chart) {
    const index = chart.cursor.idx;
    if (index === null || index === undefined) return;
    const { times, counts } = this.found;
    chart.over.title = `${counts[index].toLocaleString("en")} entries at ${new Date(times[index]).toISOString().slice(0, 19).replace("T", " ")}`;
  }
}

// -- following -----------------------------------------------------------------------------------------------------
class Follower {
  constructor(button) {
    this.button = button;
    this.body = $("entries");
    this.skipped = 0;
    button.addEventListener("click", () => (this.source ? this.stop() : this.start()));
    window.addEventListener("pagehide", () => this.source?.close());
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.source?.close();
      else if (this.source) this.open();
    });
  }

  start() {
    if (location.search.match(/[?&](at|before|after)=/)) {
      location.assign(`${this.button.dataset.page}#follow`);
      return;
    }
    this.open();
    this.button.textContent = "Pause";
    this.button.setAttribute("aria-pressed", "true");
    $("live").hidden = false;
  }

  stop() {
    this.source.close();
    this.source = null;
    this.button.textContent = "Follow";
    this.button.setAttribute("aria-pressed", "false");
    this.show("", "paused");
  }

  open() {
    this.source?.close();
    const source = (this.source = new EventSource(`${this.button.dataset.url}&after=${this.body.dataset.last}`));
    this.show("", "connecting");
    for (const name of ["entries", "idle"]) {
      source.addEventListener(name, (event) => {
        banner("");
        this.show("live", "live");
        if (name === "entries") this.add(JSON.parse(event.data));
      });
    }
    source.addEventListener("ended", () => location.assign("/login"));
    for (const name of ["problem", "refused"]) {
      source.addEventListener(name, (event) => {
        banner(JSON.parse(event.data));
        if (name === "refused") this.stop();
      });
    }
    source.onerror = () => { if (this.source === source) this.reopen(source); };
  }

  reopen(source) {
    // A new connection begins after the newest entry of the page, not where the first one began.
    source.close();
    this.show("lost", "reconnecting");
    setTimeout(() => { if (this.source === source) this.open(); }, 2000);
  }

  add({ rows, skipped, last }) {
    htmx.swap(this.body, rows, { swapStyle: "afterbegin" });
    while (this.body.children.length > SHOWN) this.body.lastElementChild.remove();
    this.body.dataset.last = last;
    this.skipped += skipped;
    $("skipped").hidden = !this.skipped;
    $("skipped").textContent = `${this.skipped.toLocaleString("en")} entries arrived faster than the page shows them and were left out.`;
    $("position").textContent = `the newest ${this.body.children.length}`;
  }

  show(state, text) {
    $("live").dataset.state = state;
    $("live").textContent = text;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  if ($("density")) new Density($("density"));
  const follower = new Follower($("follow"));
  if (location.hash === "#follow") follower.start();
  $("add-field").addEventListener("click", () => {
    const added = $("append-fields").firstElementChild.cloneNode(true);
    for (const each of added.querySelectorAll("input, textarea")) each.value = "";
    $("append-fields").append(added);
    added.querySelector("input").focus();
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id === "entry-body" && !$("entry").open) $("entry").showModal();
  });
});
