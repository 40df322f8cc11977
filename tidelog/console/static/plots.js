// The plots of the overview. The server has the history; live samples are added at the end.
"use strict";

const PLOTS = [
  { title: "Commands", unit: "/s", series: [["commands", ""]] },
  { title: "Entries appended", unit: "/s", series: [["appended", ""]] },
  { title: "Network", unit: "B/s", series: [["in", "in"], ["out", "out"]] },
  { title: "Clients", unit: "", series: [["clients", ""]] },
  { title: "Memory", unit: "B", series: [["memory", "data"], ["rss", "RSS"]] },
  { title: "Disk", unit: "B", series: [["disk", ""]] },
  { title: "WAL sync", unit: "µs", series: [["sync", ""]] },
  { title: "Pending messages", unit: "", series: [["pending", ""]] },
];
const HEIGHT = 132; // px
const MOST = 2000; // points of a plot in the page

function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  const binary = unit.startsWith("B"), base = binary ? 1024 : 1000;
  const prefixes = binary ? ["", "Ki", "Mi", "Gi", "Ti"] : ["", "k", "M", "G", "T"];
  let step = 0;
  while (Math.abs(value) >= base && step < prefixes.length - 1) { value /= base; step += 1; }
  const digits = value !== 0 && Math.abs(value) < 10 && !Number.isInteger(value) ? 1 : 0;
  return `${value.toFixed(digits)}${prefixes[step] || unit ? " " : ""}${prefixes[step]}${unit}`;
}

class Plots {
  constructor(box) {
    this.box = box;
    this.span = "15m";
    this.plots = [];
    this.columns = { time: [] };
    this.loading = 0;
    new ResizeObserver(() => this.resize()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    document.addEventListener("theme", () => this.draw());
    document.querySelector("[data-live]").addEventListener("live:sample", (event) => this.add(event.detail));
    for (const button of document.querySelectorAll("[data-span]")) {
      button.addEventListener("click", () => this.choose(button));
    }
    this.load();
  }

  choose(chosen) {
    this.span = chosen.dataset.span;
    for (const each of document.querySelectorAll("[data-span]")) {
      each.setAttribute("aria-pressed", String(each === chosen));
    }
    this.load();
  }

  async load() {
    const number = (this.loading += 1);
    let found;
    try {
      const answer = await fetch(`${this.box.dataset.history}?span=${this.span}`);
      if (!answer.ok) throw new Error(await answer.text());
      found = await answer.json();
    } catch (error) {
      banner(`The history can't be read: ${error.message}`);
      return;
    }
    if (number !== this.loading) return;
    const notice = $("plots-notice"), texts = [];
    if (found.problem) texts.push(`The plots begin now, because the history can't be read: ${found.problem}`);
    else if (found.notice) texts.push(`The plots are not recorded. ${found.notice}`);
    notice.textContent = texts.join(" ");
    notice.hidden = !texts.length;
    this.columns = found.columns;
    this.draw();
  }

  add(sample) {
    const length = this.columns.time.length;
    if (length && sample.time <= this.columns.time[length - 1]) return;
    const names = new Set([...Object.keys(this.columns), ...Object.keys(sample)]);
    for (const name of names) {
      (this.columns[name] ??= Array(length).fill(null)).push(sample[name] ?? null);
      if (this.columns[name].length > MOST) this.columns[name].shift();
    }
    const missing = PLOTS.some((plot) => this.has(plot) && !this.plots.some((each) => each.plot === plot));
    if (missing) this.draw();
    else for (const each of this.plots) this.update(each);
  }

  has(plot) {
    return plot.series.some(([name]) => name in this.columns);
  }

  data(plot) {
    const none = () => Array(this.columns.time.length).fill(null);
    return [this.columns.time, ...plot.series.map(([name]) => this.columns[name] ?? none())];
  }

  update(each) {
    each.chart.setData(this.data(each.plot), false);
    each.chart.setScale("x", this.range());
    this.name(each);
  }

  name(each) {
    const texts = each.plot.series.map(([name, label], index) => {
      const values = this.columns[name] ?? [], value = values.findLast((found) => found !== null);
      const text = document.createElement("span");
      text.className = `series s${index + 1}`;
      text.textContent = `${label} ${shown(value, each.plot.unit)}`.trim();
      return text;
    });
    each.output.replaceChildren(...texts.flatMap((text, index) => (index ? [" · ", text] : [text])));
    each.figure.setAttribute("aria-label", `${each.plot.title}: ${each.output.textContent}`);
  }

  range() {
    const [, count, unit] = this.span.match(/(\d+)(\w)/), now = Date.now() / 1000;
    const last = this.columns.time.at(-1) ?? now; // the clock of the server can be another one
    const end = Math.max(last, Math.abs(now - last) < 60 ? now : last);
    return { min: end - count * { m: 60, h: 3600 }[unit], max: end };
  }

  draw() {
    for (const each of this.plots) each.chart.destroy();
    this.plots = [];
    this.box.replaceChildren();
    const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
    for (const plot of PLOTS.filter((each) => this.has(each))) {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption");
      const output = document.createElement("output"), place = document.createElement("div");
      figure.className = "card plot";
      figure.setAttribute("role", "img");
      caption.append(plot.title, output);
      figure.append(caption, place);
      this.box.append(figure);
      const axis = { stroke: color("--muted"), font: `11px ${style.fontFamily}`, ticks: { show: false } };
      const chart = new uPlot({
        width: place.clientWidth, height: HEIGHT, cursor: { drag: { x: false, y: false }, points: { size: 6 } },
        legend: { show: false }, padding: [10, 8, 0, 0],
        scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.15] } },
        axes: [
          { ...axis, grid: { show: false }, size: 24, space: 70,
            values: (_, all) => all.map((at) => new Date(1000 * at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })) },
          { ...axis, grid: { stroke: color("--plot-grid"), width: 1 }, size: 54, space: 34,
            values: (_, all) => all.map((value) => shown(value, plot.unit)) },
        ],
        series: [{}, ...plot.series.map(([, label], index) => ({
          label, stroke: color(`--plot-${index + 1}`), width: 1.5, points: { show: false },
          fill: index ? undefined : color("--plot-fill"),
        }))],
        hooks: { setCursor: [(made) => this.point(made, plot, output)] },
      }, this.data(plot), place);
      const each = { plot, figure, output, place, chart };
      this.plots.push(each);
      chart.setScale("x", this.range());
      this.name(each);
    }
  }

  // Show the values under the cursor in place of the newest ones.
  point(chart, plot, output) {
    const each = this.plots.find((found) => found.chart === chart), index = chart.cursor.idx;
    if (!each) return;
    this.name(each);
    if (index === null || index === undefined || chart.cursor.left < 0) return;
    const time = document.createElement("span");
    time.textContent = `${new Date(1000 * this.columns.time[index]).toLocaleTimeString([], { hour12: false })} `;
    output.replaceChildren(time, ...plot.series.map(([name, label], number) => {
      const text = document.createElement("span");
      text.className = `series s${number + 1}`;
      text.textContent = ` ${label} ${shown(this.columns[name]?.[index], plot.unit)}`;
      return text;
    }));
  }

  resize() {
    for (const each of this.plots) each.chart.setSize({ width: each.place.clientWidth, height: HEIGHT });
  }
}

document.addEventListener("DOMContentLoaded", () => new Plots($("plots")));
