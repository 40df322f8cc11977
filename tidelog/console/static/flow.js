// The page of a flow: draws its graph, at first from data-graph, then from the events of the page. Rates are those
// between two statuses that the process has written.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const element = document.getElementById("flow"), box = document.getElementById("graph");
  const picture = new flowGraphs.FlowGraph(box);
  let now = JSON.parse(element.dataset.graph), before = null;

  const failures = (status) => new Map(status.graph.entities.map((each) =>
    [flowGraphs.keyOf(each.kind, each.name), flowGraphs.failures(each)]));

  function draw() {
    document.getElementById("graph-notice").hidden = Boolean(now);
    if (!now) return;
    const rates = {}, failing = new Set();
    if (before && now.at > before.at) {
      const events = new Map(before.graph.channels.map((each) => [each.name, each.events]));
      for (const each of now.graph.channels) {
        const then = events.get(each.name);
        rates[each.name] = then === undefined || then > each.events ? null
          : (each.events - then) * 1000 / (now.at - before.at);
      }
      const known = failures(before);
      for (const [key, count] of failures(now)) if (count > (known.get(key) ?? count)) failing.add(key);
    }
    picture.show({ ...now, rates, failing });
  }

  element.addEventListener("live:graph", ({ detail }) => {
    if (now && detail && detail.at > now.at) before = now;
    now = detail;
    draw();
  });
  let width = 0;
  new ResizeObserver(() => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    draw();
  }).observe(box);
  draw();
});
