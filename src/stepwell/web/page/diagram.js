// Draws a flow: states in layers from the start, long edges bent around the layers between.
import { svg } from "./dom.js";

const HEIGHT = 38, TALL = 52, GAP = 26, LAYER = 54, WIDE_LAYER = 46, EDGE = 14;
// A flow with more layers is laid out in lines from left to right, as a text, if it does not fit into one.
const LONG = 12;
const pen = document.createElement("canvas").getContext("2d");

function short(name) {
  return name.length > 26 ? `${name.slice(0, 25)}…` : name;
}

export function formatDuration(seconds) {
  if (seconds >= 86400) return `${+(seconds / 86400).toFixed(1)} d`;
  if (seconds >= 3600) return `${+(seconds / 3600).toFixed(1)} h`;
  if (seconds >= 120) return `${+(seconds / 60).toFixed(1)} min`;
  return `${+Number(seconds).toFixed(1)} s`;
}

function edgesOf(flow, path) {
  const edges = flow.edges.map(([from, to, label]) => ({ from, to, label, kind: "move" }));
  for (const [from, timeout] of Object.entries(flow.timeouts)) {
    if (timeout.to !== null) edges.push({ from, to: timeout.to, kind: "timeout" });
  }
  for (let at = 1; at < path.length; at++) {
    const [from, to] = [path[at - 1], path[at]];
    const known = edges.filter((edge) => edge.from === from && edge.to === to);
    if (!known.length && from !== to) edges.push({ from, to, kind: "jump", taken: 1 });
    for (const edge of known) edge.taken = (edge.taken ?? 0) + 1;
  }
  return edges;
}

function layered(names, edges, start) {
  // Edges of a cycle that lead back are reversed for the layout.
  const out = new Map(names.map((name) => [name, []]));
  for (const edge of edges) if (edge.from !== edge.to) out.get(edge.from).push(edge);
  const colour = new Map();
  const order = [];
  const visit = (name) => {
    colour.set(name, "open");
    for (const edge of out.get(name)) {
      if (colour.get(edge.to) === "open") edge.back = true;
      else if (!colour.has(edge.to)) visit(edge.to);
    }
    colour.set(name, "done");
    order.unshift(name);
  };
  for (const name of [...(start ? [start] : []), ...names]) if (!colour.has(name)) visit(name);
  const rank = new Map(names.map((name) => [name, 0]));
  for (const name of order) {
    for (const edge of out.get(name)) if (!edge.back) rank.set(edge.to, Math.max(rank.get(edge.to), rank.get(name) + 1));
    for (const other of order) for (const edge of out.get(other)) if (edge.back && edge.to === name) rank.set(other, Math.max(rank.get(other), rank.get(name) + 1));
  }
  return rank;
}

function ordered(names, edges, rank) {
  const nodes = new Map(names.map((name) => [name, { name, rank: rank.get(name), next: [], prev: [] }]));
  let dummies = 0;
  for (const edge of edges) {
    if (edge.from === edge.to) continue;
    const [low, high] = rank.get(edge.from) <= rank.get(edge.to) ? [edge.from, edge.to] : [edge.to, edge.from];
    edge.flipped = low !== edge.from;
    let last = nodes.get(low);
    edge.chain = [last];
    for (let at = rank.get(low) + 1; at < rank.get(high); at++) {
      const dummy = { name: `\n${dummies++}`, rank: at, next: [], prev: [], dummy: true };
      nodes.set(dummy.name, dummy);
      last.next.push(dummy);
      dummy.prev.push(last);
      edge.chain.push(dummy);
      last = dummy;
    }
    const end = nodes.get(high);
    last.next.push(end);
    end.prev.push(last);
    edge.chain.push(end);
  }
  const layers = [];
  for (const node of nodes.values()) (layers[node.rank] ??= []).push(node);
  const middle = (list) => list.reduce((sum, node) => sum + node.at, 0) / list.length;
  for (const layer of layers) layer.forEach((node, at) => { node.at = at; });
  for (let sweep = 0; sweep < 6; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      const score = new Map(layer.map((node) => {
        const near = down ? node.prev : node.next;
        return [node, near.length ? middle(near) : node.at];
      }));
      layer.sort((one, two) => score.get(one) - score.get(two));
      layer.forEach((node, at) => { node.at = at; });
    }
  }
  return layers;
}

function placed(layers, sideways, sizes, wide) {
  // "along" runs from layer to layer, "across" within one.
  const size = (node) => (node.dummy ? { along: 0, across: EDGE }
    : sideways ? { along: sizes.get(node.name).width, across: sizes.get(node.name).height }
      : { along: sizes.get(node.name).height, across: sizes.get(node.name).width });
  let along = 0;
  for (const layer of layers) {
    const thick = Math.max(...layer.map((node) => size(node).along), HEIGHT / 2);
    let across = 0;
    for (const node of layer) {
      node.along = along + thick / 2;
      node.half = size(node).across / 2;
      node.thick = size(node).along / 2;
      node.across = across + node.half;
      across += 2 * node.half + GAP;
    }
    const shift = (across - GAP) / 2;
    for (const node of layer) node.across -= shift;
    along += thick + (sideways ? wide : LAYER);
  }
  for (let round = 0; round < 8; round++) {
    for (const layer of round % 2 ? layers : [...layers].reverse()) {
      for (const node of layer) {
        const near = round % 2 ? node.prev : node.next;
        if (near.length) node.across = near.reduce((sum, each) => sum + each.across, 0) / near.length;
      }
      for (let at = 1; at < layer.length; at++) {
        const [before, node] = [layer[at - 1], layer[at]];
        node.across = Math.max(node.across, before.across + before.half + node.half + GAP);
      }
    }
  }
  const every = layers.flat();
  const low = Math.min(...every.map((node) => node.across - node.half));
  for (const node of every) node.across -= low;
  return { along: along - (sideways ? wide : LAYER), across: Math.max(...every.map((node) => node.across + node.half)) };
}

// Moves the layers into lines that are as wide as there is room; returns the size.
function wrap(layers, width) {
  const lines = [[]];
  let from = 0, end = 0;
  for (const layer of layers) {
    const left = Math.min(...layer.map((node) => node.along - node.thick)), right = Math.max(...layer.map((node) => node.along + node.thick));
    if (lines.at(-1).length && right - from > width) { lines.push([]); from = left; }
    for (const node of layer) { node.along += EDGE - from; node.line = lines.length - 1; }
    end = Math.max(end, right - from);
    lines.at(-1).push(...layer);
  }
  let top = 0;
  for (const line of lines) {
    const low = Math.min(...line.map((node) => node.across - node.half)), high = Math.max(...line.map((node) => node.across + node.half));
    for (const node of line) { node.across += top - low; node.below = top + high - low + GAP; }
    top += high - low + 2 * GAP;
  }
  return { along: end + 2 * EDGE, across: top - 2 * GAP };
}

// The path of an edge whose nodes may be on two lines: there it goes around the end of one to the begin of the other.
function wrapped(chain, points, shift) {
  let text = `M${points[0].map((each) => each.toFixed(1)).join(",")}`;
  for (let index = 1; index < points.length; index++) {
    const [[x1, y1], [x2, y2]] = [points[index - 1], points[index]], mid = (x1 + x2) / 2, y = chain[index - 1].below + shift;
    text += chain[index - 1].line === chain[index].line ? ` C${mid.toFixed(1)},${y1.toFixed(1)} ${mid.toFixed(1)},${y2.toFixed(1)} ${x2.toFixed(1)},${y2.toFixed(1)}`
      : ` h${EDGE} V${y.toFixed(1)} H${(x2 - EDGE).toFixed(1)} V${y2.toFixed(1)} H${x2.toFixed(1)}`;
  }
  return text;
}

// Returns points of a curve, those near its middle first, for its label.
function pointsOn(points, chain) {
  const found = [];
  for (const part of [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8]) {
    const far = part * (points.length - 1), at = Math.min(Math.floor(far), points.length - 2), t = far - at;
    // Between two lines.
    if (chain[at].line !== chain[at + 1].line) continue;
    const [[a0, c0], [a1, c1]] = [points[at], points[at + 1]], mid = (a0 + a1) / 2, u = 1 - t;
    found.push([u * u * u * a0 + 3 * u * t * mid + t * t * t * a1, (u * u * u + 3 * u * u * t) * c0 + (3 * u * t * t + t * t * t) * c1]);
  }
  return found.length ? found : [[points[0][0] + EDGE, chain[0].below]];
}

function overlap(one, two) {
  return Math.abs(one.x - two.x) * 2 < one.width + two.width && Math.abs(one.y - two.y) * 2 < one.height + two.height;
}

function curve(points, sideways) {
  const at = ([along, across]) => (sideways ? `${along.toFixed(1)},${across.toFixed(1)}` : `${across.toFixed(1)},${along.toFixed(1)}`);
  let text = `M${at(points[0])}`;
  for (let index = 1; index < points.length; index++) {
    const [one, two] = [points[index - 1], points[index]];
    const mid = (one[0] + two[0]) / 2;
    text += ` C${at([mid, one[1]])} ${at([mid, two[1]])} ${at(two)}`;
  }
  return text;
}

// "notes" are texts below the names of states, "links" are addresses behind states, and "marks" are their classes: late or bad.
// The edges along "path" are marked, with how often they were taken.
export function drawFlow(flow, { current = null, path = [], ended = false, width, notes = {}, links = {}, marks = {}, label = null }) {
  const names = [...flow.states];
  for (const name of [...path, ...(current ? [current] : [])]) if (!names.includes(name)) names.push(name);
  const wide = (text, font) => { pen.font = font; return text ? Math.ceil(pen.measureText(text).width) : 0; };
  const sizes = new Map(names.map((name) => [name, {
    width: Math.max(flow.timeouts[name] || notes[name] ? 104 : 64, wide(short(name), "500 14px Inter, system-ui, sans-serif") + 34, wide(notes[name], "11px Inter, system-ui, sans-serif") + 26),
    height: flow.timeouts[name] || notes[name] ? TALL : HEIGHT,
  }]));
  const START = "\nstart";
  const edges = edgesOf(flow, path);
  if (flow.start) {
    sizes.set(START, { width: 14, height: 14 });
    edges.push({ from: START, to: flow.start, kind: "move", taken: path[0] === flow.start });
  }
  const every = flow.start ? [START, ...names] : names;
  const textOf = (edge) => [edge.label ? short(edge.label) : "", edge.taken > 1 ? `×${edge.taken}` : ""].filter(Boolean).join(" ");
  const gap = Math.max(0, ...edges.map((edge) => (textOf(edge) ? wide(textOf(edge), "500 14px Inter, system-ui, sans-serif") : 0)));
  const lay = (sideways) => {
    for (const edge of edges) { edge.back = false; edge.flipped = false; edge.chain = null; }
    const rank = layered(every, edges, flow.start ? START : null);
    const layers = ordered(every, edges, rank);
    return { layers, sideways, ...placed(layers, sideways, sizes, Math.max(WIDE_LAYER, gap + 26)) };
  };
  let plan = lay(true);
  const isLong = plan.along > width - 24 && plan.layers.length > LONG;
  if (isLong) Object.assign(plan, wrap(plan.layers, width - 24 - 2 * EDGE));
  else if (plan.along > width - 24) plan = lay(false);
  const { sideways } = plan;
  const loops = edges.some((edge) => edge.from === edge.to);
  const pad = 10, room = loops ? 26 : 0;
  const total = sideways ? [plan.along + 2 * pad, plan.across + 2 * pad + room] : [plan.across + 2 * pad + room, plan.along + 2 * pad];
  const nodes = new Map(plan.layers.flat().map((node) => [node.name, node]));
  const groups = new Map();
  for (const edge of edges) {
    if (!edge.chain) continue;
    const pair = [edge.from, edge.to].sort().join("\n");
    if (!groups.has(pair)) groups.set(pair, []);
    groups.get(pair).push(edge);
  }
  const drawing = svg("svg", {
    viewBox: `${-pad} ${-pad - (sideways ? room : 0)} ${total[0]} ${total[1]}`, width: total[0], height: total[1], role: Object.keys(links).length ? "group" : "img",
    "aria-label": label ?? `${flow.name}: ${current ? `now in ${current}` : ended ? "ended" : "not started"}${path.length > 1 ? `, after ${path.slice(0, -1).join(", ")}` : ""}`,
  });
  const marker = (id) => svg("marker", { id, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse", class: id },
    svg("path", { d: "M0,0 L10,5 L0,10 z" }));
  drawing.append(svg("defs", {}, marker("arrow"), marker("arrow-taken")));
  const line = (edge, d, isBack = false) => drawing.append(svg("path", {
    d, class: `edge ${edge.kind}${edge.taken ? " taken" : ""}`, [isBack ? "marker-start" : "marker-end"]: `url(#${edge.taken ? "arrow-taken" : "arrow"})`,
    "data-edge": `${edge.from.trim()}>${edge.to}`,
  }));
  const labels = [];
  let turns = 0;
  // The places of nodes and labels.
  const taken = names.map((name) => {
    const node = nodes.get(name), [x, y] = sideways ? [node.along, node.across] : [node.across, node.along];
    return { x, y, ...sizes.get(name) };
  });
  for (const group of groups.values()) {
    group.forEach((edge, index) => {
      const thin = Math.min(edge.chain[0].half, edge.chain[edge.chain.length - 1].half);
      const offset = (index - (group.length - 1) / 2) * Math.min(20, (2 * thin - 14) / Math.max(1, group.length - 1));
      const points = edge.chain.map((node) => [node.along, node.across + (node.dummy ? 0 : offset)]);
      points[0][0] += edge.chain[0].thick;
      points[points.length - 1][0] -= edge.chain[edge.chain.length - 1].thick;
      if (isLong) {
        // Edges between the same lines are beside each other.
        line(edge, wrapped(edge.chain, points, 4 * (turns++ % 4) - 6), edge.flipped);
      } else {
        if (edge.flipped) points.reverse();
        line(edge, curve(points, sideways));
      }
      if (textOf(edge)) {
        // Where no node and no other label is, as near to the middle as possible.
        const spots = pointsOn(points, edge.chain).map(([along, across]) => ({ x: sideways ? along : across, y: sideways ? across : along, width: wide(textOf(edge), "500 12px Inter, system-ui, sans-serif") + 6, height: 15 }));
        const box = spots.find((each) => !taken.some((other) => overlap(each, other))) ?? spots[0];
        taken.push(box);
        const label = svg("text", { x: box.x.toFixed(1), y: box.y.toFixed(1), class: `action${edge.taken ? " taken" : ""}` });
        label.textContent = textOf(edge);
        labels.push(label);
      }
    });
  }
  const spot = (node) => (sideways ? [node.along, node.across] : [node.across, node.along]);
  for (const edge of edges.filter((each) => each.from === each.to)) {
    const node = nodes.get(edge.from), [x, y] = spot(node), { width: wide, height } = sizes.get(edge.from);
    line(edge, sideways ? `M${x - 12},${y - height / 2} C${x - 16},${y - height / 2 - 26} ${x + 16},${y - height / 2 - 26} ${x + 12},${y - height / 2}`
      : `M${x + wide / 2},${y - 9} C${x + wide / 2 + 28},${y - 14} ${x + wide / 2 + 28},${y + 14} ${x + wide / 2},${y + 9}`);
  }
  if (flow.start) {
    const [x, y] = spot(nodes.get(START));
    drawing.append(svg("circle", { cx: x, cy: y, r: 6, class: `start${path.length ? " taken" : ""}` }));
  }
  for (const name of names) {
    const [x, y] = spot(nodes.get(name)), { width: wide, height } = sizes.get(name), timeout = flow.timeouts[name], note = notes[name];
    const kind = ["state", name === current ? "current" : "", path.includes(name) ? "visited" : "", flow.ends.includes(name) ? "last" : "", marks[name] ?? ""];
    const text = svg("text", { x, y: timeout || note ? y - 7 : y, class: "name" });
    text.textContent = short(name);
    const tip = svg("title");
    tip.textContent = timeout ? `${name}: after ${formatDuration(timeout.seconds)} ${timeout.to ?? "on_timeout"}` : name;
    const group = svg("g", { class: kind.filter(Boolean).join(" "), "data-state": name }, tip,
      svg("rect", { x: x - wide / 2, y: y - height / 2, width: wide, height, rx: 10 }));
    if (flow.ends.includes(name)) group.append(svg("rect", { x: x - wide / 2 + 3.5, y: y - height / 2 + 3.5, width: wide - 7, height: height - 7, rx: 7, class: "inner" }));
    group.append(text);
    if (timeout || note) {
      const more = svg("text", { x, y: y + 12, class: "more" });
      more.textContent = note ?? `at most ${formatDuration(timeout.seconds)}`;
      group.append(more);
    }
    drawing.append(links[name] ? svg("a", { href: links[name] }, group) : group);
  }
  drawing.append(...labels);
  return drawing;
}
