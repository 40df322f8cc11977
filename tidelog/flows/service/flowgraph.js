// The graph of a flow as SVG: entities as boxes, channels as edges with their rates. The page of a flow process and the
// console share it. All data is inserted as text, never as markup.
"use strict";
const flowGraphs = (() => {
const SVG = ["svg", "g", "rect", "path", "text", "tspan", "title"];

function make(tag, attributes, ...children) {
  const node = SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else if (value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return node;
}

const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const mark = (node, name, value) => { if (node.getAttribute(name) !== value) node.setAttribute(name, value); };

function press(call) {  // for elements that are only buttons by their role
  return {click: call, keydown: (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    call();
  }};
}

const number = (value) => value.toLocaleString("en");

function short(value) {
  for (const [least, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (value >= least) return Number((value / (unit === "k" ? 1e3 : least)).toPrecision(3)) + unit;
  return Number.isInteger(value) || value >= 9.95 ? number(Math.round(value)) : value.toFixed(1);
}

// Events that failed at an entity since its start.
function failures(entity) {
  const counts = entity.counts;
  return entity.kind === "operator" ? counts.failed || 0 : entity.kind === "source" ? counts.dead || 0
    : (counts.retried || 0) + (counts.rejected || 0);
}

// From left to right, or from the top down on a narrow page. Each entity is one step after the last entity that sends
// to it. An edge over several steps passes through reserved positions, never behind a box.
const canvas = document.createElement("canvas").getContext("2d");
function wide(text, font) {
  canvas.font = font + " system-ui, 'Segoe UI', 'Liberation Sans', sans-serif";
  return canvas.measureText(text).width;
}

// Long names are broken into lines: after _ - . or before a capital, or anywhere in a part that is too long.
const LINES = 4;
function lines(text, width, font) {
  const found = [""];
  for (const piece of text.split(/(?<=[_\-. ])|(?<=[a-z0-9])(?=[A-Z])/)) {
    if (wide(found.at(-1) + piece, font) <= width) { found[found.length - 1] += piece; continue; }
    if (found.at(-1)) found.push("");
    for (const letter of piece) {
      if (found.at(-1) && wide(found.at(-1) + letter, font) > width) found.push("");
      found[found.length - 1] += letter;
    }
  }
  if (found.length <= LINES) return found;
  return [...found.slice(0, LINES - 1), fit(found.slice(LINES - 1).join(""), width, font)];
}

function fit(text, width, font) {
  if (wide(text, font) <= width) return text;
  let least = 0, most = text.length;
  while (most - least > 1) {
    const middle = (least + most) >> 1;
    if (canvas.measureText(text.slice(0, middle) + "…").width <= width) least = middle; else most = middle;
  }
  return text.slice(0, least) + "…";
}

const keyOf = (kind, name) => kind + ":" + name;

function ranked(graph) {
  const nodes = new Map(graph.entities.map((each) => [keyOf(each.kind, each.name),
      {...each, key: keyOf(each.kind, each.name), rank: 0}]));
  const edges = graph.channels.map((each) => ({name: each.name, port: each.port, loose: !each.authoritative,
    a: nodes.get(keyOf(each.from_kind, each.from)), b: nodes.get(keyOf(each.to_kind, each.to))}));
  for (let turn = 0; turn < nodes.size; turn++) {
    let moved = false;
    for (const edge of edges) {
      if (edge.b.rank > edge.a.rank || edge.a.rank >= nodes.size) continue;
      edge.b.rank = edge.a.rank + 1;
      moved = true;
    }
    if (!moved) break;
  }
  for (const node of nodes.values()) {  // a source is directly before its targets
    const next = edges.filter((each) => each.a === node).map((each) => each.b.rank);
    if (next.length && !edges.some((each) => each.b === node)) node.rank = Math.max(0, Math.min(...next) - 1);
  }
  const ranks = [];
  const put = (node) => { (ranks[node.rank] ??= []).push(node); };
  for (const node of nodes.values()) put(node);
  for (const edge of edges) {
    edge.way = [edge.a];
    for (let rank = edge.a.rank + 1; rank < edge.b.rank; rank++) {
      const bend = {bend: true, rank};
      put(bend);
      edge.way.push(bend);
    }
    edge.way.push(edge.b);
    for (let place = 1; place < edge.way.length; place++) {
      (edge.way[place - 1].after ??= []).push(edge.way[place]);
      (edge.way[place].before ??= []).push(edge.way[place - 1]);
    }
  }
  return {nodes: [...nodes.values()], edges, ranks: ranks.filter(Boolean)};
}

function arranged(graph, room) {
  const {nodes, edges, ranks} = ranked(graph);
  const mean = (list, what) => list.reduce((sum, each) => sum + each[what], 0) / list.length;
  ranks.forEach((rank) => rank.forEach((node, place) => { node.place = place; }));
  for (let turn = 0; turn < 8; turn++) {  // place connected entities side by side
    for (const rank of turn % 2 ? [...ranks].reverse() : ranks) {
      const side = turn % 2 ? "after" : "before";
      for (const node of rank) node.want = node[side] ? mean(node[side], "place") : node.place;
      rank.sort((one, other) => one.want - other.want || one.place - other.place);
      rank.forEach((node, place) => { node.place = place; });
    }
  }
  const down = room < 640, steps = ranks.length, pad = 10;
  const most = Math.max(1, ...ranks.map((rank) => rank.filter((each) => !each.bend).length));
  const bends = Math.max(0, ...ranks.map((rank) => rank.filter((each) => each.bend).length));
  const close = steps > 6 ? 58 : 84, beside = down ? 10 : 22, bend = down ? 30 : 34;
  const clamp = (value, least, highest) => Math.max(least, Math.min(highest, value));
  const wideBox = Math.floor(down
    ? clamp((room - 2 * pad - (most - 1) * beside - bends * (bend + beside)) / most, 84, 220)
    : clamp((room - 2 * pad - (steps - 1) * close) / steps, steps > 6 ? 104 : 124, 190));
  const gap = down ? 56 : steps > 1 ? clamp((room - 2 * pad - steps * wideBox) / (steps - 1), close, 150) : close;
  const slim = wideBox < 120, left = slim ? 13 : 16, inner = wideBox - left - (slim ? 4 : 8);
  for (const node of nodes) {
    const operator = node.kind === "operator", title = operator ? node.type : node.name;
    node.titles = lines(title, inner, slim ? "600 12px" : "600 13px");
    node.subs = lines(operator ? node.name : node.type, inner, "11.5px");
  }
  const high = 30 + 16 * Math.max(2, ...nodes.map((each) => each.titles.length + each.subs.length));
  const across = (node) => node.bend ? bend : down ? wideBox : high;
  for (const rank of ranks) {
    let sum = 0;
    for (const node of rank) {
      node.c = sum + across(node) / 2;
      sum += across(node) + beside;
    }
  }
  for (let turn = 0; turn < 24; turn++) {  // move each to the middle of its neighbors, if there is room
    for (const rank of turn % 2 ? [...ranks].reverse() : ranks) {
      const joined = (node) => [...(node.before || []), ...(node.after || [])];
      const wish = rank.map((node) => joined(node).length ? mean(joined(node), "c") : node.c);
      rank.forEach((node, place) => {
        const last = rank[place - 1];
        node.c = last ? Math.max(wish[place], last.c + (across(last) + across(node)) / 2 + beside) : wish[place];
      });
      const off = wish.reduce((sum, each, place) => sum + each - rank[place].c, 0) / rank.length;
      for (const node of rank) node.c += off;
    }
  }
  const every = ranks.flat();
  const low = Math.min(...every.map((each) => each.c - across(each) / 2)) - pad - (bends && !down ? 8 : 0);
  for (const node of every) {
    node.c -= low;
    node.s = pad + node.rank * ((down ? high : wideBox) + gap);  // start position along the direction of flow
  }
  const long = pad * 2 + steps * (down ? high : wideBox) + (steps - 1) * gap;
  const broad = Math.max(...every.map((each) => each.c + across(each) / 2)) + pad;
  for (const node of nodes) Object.assign(node, {w: wideBox, h: high, x: down ? node.c - wideBox / 2 : node.s,
      y: down ? node.s : node.c - high / 2});
  route(edges, down, down ? high : wideBox, down ? wideBox : high);
  return {nodes, edges, down, width: down ? broad : long, height: down ? long : broad};
}

function route(edges, down, deep, span) {
  const spread = (node, side, edge) => {  // position on its side
    const all = edges.filter((each) => each[side] === node);
    const other = (each) => side === "a" ? each.way[1].c : each.way.at(-2).c;
    all.sort((one, two) => other(one) - other(two));
    return node.c - span / 2 + span * (all.indexOf(edge) + 1) / (all.length + 1);
  };
  for (const edge of edges) {
    const points = edge.way.flatMap((node, place) => {  // (along, across)
      const first = place === 0, last = place === edge.way.length - 1;
      return first ? [[node.s + deep, spread(node, "a", edge)]] : last ? [[node.s, spread(node, "b", edge)]]
          : [[node.s, node.c], [node.s + deep, node.c]];
    });
    const show = ([along, across]) => down ? `${across.toFixed(1)},${along.toFixed(1)}`
        : `${along.toFixed(1)},${across.toFixed(1)}`;
    let d = "M" + show(points[0]);
    for (let place = 1; place < points.length; place++) {
      const [one, two] = [points[place - 1], points[place]], middle = (one[0] + two[0]) / 2;
      d += place % 2 ? ` C${show([middle, one[1]])} ${show([middle, two[1]])} ${show(two)}` : ` L${show(two)}`;
    }
    const [end, to] = points.at(-1), bent = edge.way.length > 2,
        half = Math.floor((edge.way.length - 2 - 1) / 2) * 2 + 1;
    const outs = edges.filter((each) => each.a === edge.a).length,
        ins = edges.filter((each) => each.b === edge.b).length;
    const share = outs > ins ? .58 : outs < ins ? .42 : .5, from = points[0];  // if it is the only one
    const on = (one, other, share) => one + (other - one) * share * share * (3 - 2 * share);
    const middle = bent ? [(points[half][0] + points[half + 1][0]) / 2, points[half][1]]
        : [from[0] + (end - from[0]) * (3 * share * (1 - share) / 2 + share ** 3), on(from[1], to, share)];
    Object.assign(edge, {d, tip: `M${show([end - 6, to - 4])} L${show([end, to])} L${show([end - 6, to + 4])}`,
      x: down ? middle[1] : middle[0], y: down ? middle[0] : middle[1]});
  }
}

// A graph in an element. ``show`` draws it, again if its shape or the width of the page has changed. Without ``tap`` and
// ``open``, which are called with the name of a channel and with an entity, it is only an image.
class FlowGraph {
  constructor(element, {tap = null, open = null} = {}) {
    Object.assign(this, {element, tap, open, shape: "", parts: null});
  }

  // rates: events per second by channel, null if unknown. failing: keys of entities at which events failed recently.
  // tapped, part: the channel and the entity that are chosen.
  show({graph, rates, connectors, where, stored, failing, tapped = null, part = null}) {
    const room = this.element.clientWidth - 12;
    const shape = JSON.stringify([room, graph.entities.map((each) => [each.kind, each.name, each.type]),
        graph.channels.map((each) => [each.name, each.authoritative])]);
    if (shape !== this.shape) { this.shape = shape; this.build(arranged(graph, room), room); }
    for (const each of graph.channels)
      this.edge(this.parts.edges.get(each.name), each, rates[each.name] ?? null, tapped === each.name);
    for (const each of graph.entities) {
      const chosen = Boolean(part && part.kind === each.kind && part.name === each.name);
      this.node(this.parts.nodes.get(keyOf(each.kind, each.name)), each,
          connectors.find((one) => one.alias === each.name), where, stored, failing, chosen);
    }
  }

  build(plan, room) {
    const slim = plan.nodes.some((each) => each.w < 120), left = slim ? 13 : 16,
        inner = (each) => each.w - left - (slim ? 4 : 8);
    const scale = Math.min(1, Math.max(plan.down ? .55 : .75, room / plan.width));
    const svg = make("svg", {class: "flow" + (slim ? " slim" : ""), width: Math.floor(plan.width * scale),
        height: Math.ceil(plan.height * scale),
      viewBox: `0 0 ${plan.width.toFixed(1)} ${plan.height.toFixed(1)}`, role: "group",
          "aria-label": "The flow as a graph"});
    const edges = new Map(), nodes = new Map();
    for (const each of plan.edges) {
      const loose = each.loose ? " loose" : "";
      const drawn = make("g", {class: "edge", "data-channel": each.name,
          ...(this.tap ? {tabindex: 0, role: "button", "aria-pressed": "false",
              on: press(() => this.tap(each.name))} : {})},
        make("title", {}, each.name), make("path", {class: "wide", d: each.d}),
            make("path", {class: "line" + loose, d: each.d}),
        make("path", {class: "tip", d: each.tip}), make("text",
            {class: "rate", x: each.x.toFixed(1), y: (each.y - 5).toFixed(1)}),
        make("text", {class: "queue", x: each.x.toFixed(1), y: (each.y + 15).toFixed(1)}));
      edges.set(each.name, drawn);
      svg.append(drawn);
    }
    for (const each of plan.nodes) {
      const rows = (texts, from) => texts.map((text, place) => make("tspan", {x: left, y: from + 16 * place}, text));
      const below = 20 + 16 * each.titles.length, about = `${each.name}: ${each.type}, ${each.kind}`;
      const drawn = make("g", {class: "node " + each.kind,
          transform: `translate(${each.x.toFixed(1)},${each.y.toFixed(1)})`, "data-entity": each.name,
        "data-kind": each.kind,
          ...(this.open ? {tabindex: 0, role: "button", on: press(() => this.open(each))} : {role: "img"})},
        make("title", {}, about), make("rect", {class: "body", width: each.w, height: each.h, rx: 8}),
        make("rect", {class: "mark", x: 5, y: 9, width: 3.5, height: each.h - 18, rx: 1.75}),
        make("text", {class: "title"}, rows(each.titles, 20)), make("text", {class: "sub"}, rows(each.subs, below)),
        make("text", {class: "more", x: left, y: below + 16 * each.subs.length}));
      drawn.dataset.width = inner(each);
      drawn.dataset.about = about;
      nodes.set(each.key, drawn);
      svg.append(drawn);
    }
    this.parts = {edges, nodes};
    const focus = document.activeElement, again = this.element.contains(focus) && {...focus.dataset};
    this.element.replaceChildren(svg);
    if (again) [...svg.querySelectorAll("[tabindex]")].find((each) => each.dataset.channel === again.channel
        && each.dataset.entity === again.entity && each.dataset.kind === again.kind)?.focus();
  }

  edge(drawn, found, rate, chosen) {
    const full = found.capacity > 0 && found.batches >= found.capacity;
    const [title, , line, , label, queue] = drawn.children;
    mark(drawn, "class", "edge" + (rate > 0 ? " moves" : "") + (full ? " full" : "") + (chosen ? " chosen" : ""));
    if (this.tap) mark(drawn, "aria-pressed", String(chosen));
    mark(line, "stroke-width", (1.4 + Math.min(3, Math.log10(1 + (rate || 0)) * .5)).toFixed(1));
    write(label, (found.port === "out" ? "" : found.port + " ") + (rate === null ? "…" : short(rate) + "/s"));
    write(queue, found.waiting ? short(found.waiting) + (full ? " full" : " wait") : "");
    write(title, `${this.tap ? "Tap " : ""}${found.name}. ${number(found.events)} events so far, ${number(found.waiting)}`
      + " wait"
      + ` in ${found.batches} of ${found.capacity} batches`
      + (found.dropped ? `, ${number(found.dropped)} dropped.` : "."));
  }

  node(drawn, found, connector, where, kept, failing, chosen) {
    const about = drawn.lastElementChild, inside = found.kind !== "source" && where[found.name] || 0,
        counts = found.counts;
    let how = "", more = [];
    if (found.kind !== "operator" && connector && connector.status !== "running") {
      how = connector.status === "paused" ? "waits" : ["drained", "stopped", "draining"].includes(connector.status)
          ? "" : "broken";
      more = [connector.status === "initializing" ? "not connected" : connector.status];
    } else if (found.kind !== "operator" && connector && connector.connectivity !== "connected") {
      how = "broken";
      more = ["not connected"];
    } else {
      const bad = failures(found);
      if (failing.has(keyOf(found.kind, found.name))) how = "fails";  // in the last seconds
      const word = found.kind === "source" ? " given up" : " failed";
      const stored = found.kind === "source" && kept[found.name];
      const text = [inside ? short(inside) + " inside" : "", stored ? short(stored) + " stored" : "",
        bad ? short(bad) + word : ""].filter(Boolean);
      more = text.length ? text : found.kind === "sink" && counts.ok ? [short(counts.ok) + " ok"] : [];
    }
    mark(drawn, "class", `node ${found.kind}${how ? " " + how : ""}${chosen ? " chosen" : ""}`);
    const full = more.join(", ");
    if (about.dataset.full === full) return;
    about.dataset.full = full;
    write(drawn.firstElementChild, drawn.dataset.about + (full ? ". " + full : ""));
    if (!this.open) mark(drawn, "aria-label", drawn.firstElementChild.textContent);
    while (more.length > 1 && wide(more.join(", "), "11.5px") > Number(drawn.dataset.width)) more.shift();
    write(about, fit(more.join(", "), Number(drawn.dataset.width), "11.5px"));
  }
}

return {FlowGraph, make, write, mark, number, short, keyOf, failures};
})();
