// Draws the figures that the console sends: a small chart for each measure, a line for each node. A node that did not
// say a figure has a gap there. Nothing is drawn for a time without figures.
"use strict";

const WIDTH = 400, HEIGHT = 120, LEFT = 46, BOTTOM = 16, TOP = 6, POINTS_MAX = 450, STALE_MS = 10000;
const SVG = "http://www.w3.org/2000/svg";
const points = [];
const nodes = [];
let heardAt = 0;

function make(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function plain(number) {
  if (number === undefined) return "–";
  if (number >= 100 || Number.isInteger(number)) return Math.round(number).toLocaleString("en");
  return number.toPrecision(2);
}

function ceiling(highest) {
  if (highest <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= highest);
}

function draw(chart) {
  const measure = chart.dataset.measure, unit = chart.dataset.unit, svg = chart.querySelector("svg");
  const values = points.flatMap((point) => Object.values(point.nodes).map((told) => told[measure]));
  const known = values.filter((value) => value !== undefined);
  const top = ceiling(Math.max(0, ...known));
  const first = points[0].at, last = Math.max(points[points.length - 1].at, first + 30);
  const x = (at) => LEFT + (WIDTH - LEFT - 4) * (at - first) / (last - first);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top;
  const parts = [
    make("line", { class: "axis", x1: LEFT, x2: WIDTH - 4, y1: y(0), y2: y(0) }),
    make("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: y(top), y2: y(top) }),
    make("text", { class: "tick", x: LEFT - 4, y: y(top) + 8, "text-anchor": "end" }, plain(top)),
    make("text", { class: "tick", x: LEFT - 4, y: y(0), "text-anchor": "end" }, "0"),
    make("text", { class: "tick", x: LEFT, y: HEIGHT - 3 }, new Date(first * 1000).toLocaleTimeString()),
    make("text", { class: "tick", x: WIDTH - 4, y: HEIGHT - 3, "text-anchor": "end" }, new Date(last * 1000).toLocaleTimeString()),
  ];
  nodes.forEach((node, place) => {
    let path = "", before = 0;
    for (const point of points) {
      const value = (point.nodes[node] || {})[measure];
      if (value === undefined) { before = 0; continue; }
      path += `${before && point.at - before < 10 ? "L" : "M"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
      before = point.at;
    }
    if (path) parts.push(make("path", { class: `line${place % 8}`, d: path }));
  });
  svg.replaceChildren(...parts);
  const latest = points[points.length - 1].nodes;
  const said = nodes.map((node) => `${node} ${plain((latest[node] || {})[measure])}`).join(", ");
  svg.setAttribute("aria-label", `${chart.querySelector("h2").textContent.trim()}; now ${said || "not known"} ${unit}`);
}

function table() {
  const latest = points[points.length - 1].nodes;
  const rows = nodes.map((node) => {
    const row = document.createElement("tr"), head = document.createElement("th");
    head.scope = "row";
    head.textContent = node;
    row.append(head);
    for (const chart of document.querySelectorAll(".chart")) {
      const cell = document.createElement("td");
      cell.className = "n";
      cell.textContent = plain((latest[node] || {})[chart.dataset.measure]);
      row.append(cell);
    }
    return row;
  });
  document.querySelector("#table tbody").replaceChildren(...rows);
}

function legend() {
  document.getElementById("legend").replaceChildren(...nodes.map((node, place) => {
    const item = document.createElement("li"), mark = make("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" });
    mark.append(make("path", { class: `line${place % 8}`, d: "M0 5L20 5" }));
    item.append(mark, ` ${node}`);
    return item;
  }));
}

function take(fresh) {
  for (const point of fresh) {
    points.push(point);
    for (const node of Object.keys(point.nodes)) if (!nodes.includes(node)) nodes.push(node);
  }
  points.splice(0, points.length - POINTS_MAX);
  if (!points.length) return;
  heardAt = Date.now();
  legend();
  for (const chart of document.querySelectorAll(".chart")) draw(chart);
  table();
  tell();
}

function tell() {
  const line = document.getElementById("asof");
  if (refused) line.textContent = "Stale: this console knows this browser no more; open the address that it printed when it began.";
  line.classList.toggle("stale", refused);
  if (refused || !points.length) return;
  const latest = points[points.length - 1], at = new Date(latest.at * 1000).toLocaleTimeString();
  const stale = Date.now() - heardAt > STALE_MS;
  const away = nodes.filter((node) => !(node in latest.nodes));
  let text = `As of ${at}.`;
  if (!nodes.length) text = `At ${at} no node answered, and none has before.`;
  else if (away.length) text += ` No answer now: ${away.join(", ")}.`;
  if (stale) text = `Stale: this console does not answer, its last figures are of ${at}.`;
  line.classList.toggle("stale", stale || away.length > 0);
  if (line.textContent !== text) line.textContent = text;
}

let events = null, refused = false;

function connect() {
  events = new EventSource("/rates/events");
  events.addEventListener("history", (event) => { points.length = 0; take(JSON.parse(event.data)); });
  events.addEventListener("point", (event) => take([JSON.parse(event.data)]));
  events.addEventListener("error", () => { refused = events.readyState === EventSource.CLOSED; tell(); });
}

// A browser opens six connections to the console, of all its tabs together: one that nobody sees gives its own back.
// What it missed comes as the history when it is seen again.
document.addEventListener("visibilitychange", () => {
  if (events) events.close();
  events = null;
  if (!document.hidden) connect();
});
if (!document.hidden) connect();
setInterval(tell, 1000);
