// Gives the figures that the console sends to uPlot: a small chart for each measure, a line for each node. A node that
// did not say a figure has a gap there. Nothing is drawn for a time without figures. Times are UTC, as on every page.
"use strict";

const HEIGHT = 150, POINTS_MAX = 450, STALE_MS = 10000, GAP_SECONDS = 10, COLOURS = 8;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const points = [];
const nodes = [];
const plots = new Map();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let heardAt = 0;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function plain(number) {
  if (number === undefined || number === null) return "–";
  if (number >= 100 || Number.isInteger(number)) return Math.round(number).toLocaleString("en");
  return number.toPrecision(2);
}

function utc(seconds) {
  return new Date(seconds * 1000).toISOString().slice(11, 19);
}

// A column for the times and one for each node, as uPlot takes them: null is a gap. Where no point came for a while
// there is a gap as well, for all nodes.
function columns(measure) {
  const found = [[], ...nodes.map(() => [])];
  let before = 0;
  for (const point of points) {
    if (before && point.at - before >= GAP_SECONDS) {
      found[0].push(before + GAP_SECONDS / 2);
      nodes.forEach((_, place) => found[place + 1].push(null));
    }
    found[0].push(point.at);
    nodes.forEach((node, place) => found[place + 1].push((point.nodes[node] || {})[measure] ?? null));
    before = point.at;
  }
  return found;
}

function plot(chart) {
  const axis = {
    stroke: colour("--quiet"), font: "11px system-ui, sans-serif", grid: { stroke: colour("--panel") },
    ticks: { stroke: colour("--line") },
  };
  const lines = nodes.map((node, place) => ({
    label: node, stroke: colour(`--c${place % COLOURS}`), width: 1.8, dash: DASHES[place % DASHES.length],
    points: { show: false },
  }));
  const options = {
    width: chart.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { show: false }, pxAlign: 0,
    scales: {
      x: { time: true, range: (u, low, high) => [low, Math.max(high, low + 30)] },
      y: { range: (u, low, high) => [0, high > 0 ? uPlot.rangeNum(0, high, 0.1, true)[1] : 1] },
    },
    series: [{}, ...lines],
    axes: [
      { ...axis, size: 28, space: 90, values: (u, splits) => splits.map(utc) },
      { ...axis, size: 56, values: (u, splits) => splits.map(plain) },
    ],
  };
  return new uPlot(options, columns(chart.dataset.measure), chart.querySelector(".plot"));
}

function draw(chart) {
  const measure = chart.dataset.measure, unit = chart.dataset.unit, drawn = plots.get(chart);
  if (drawn && drawn.series.length === nodes.length + 1) {
    drawn.setData(columns(measure));
  } else {
    if (drawn) drawn.destroy();
    plots.set(chart, plot(chart));
  }
  const latest = points[points.length - 1].nodes;
  const said = nodes.map((node) => `${node} ${plain((latest[node] || {})[measure])}`).join(", ");
  chart.querySelector(".plot").setAttribute(
    "aria-label", `${chart.querySelector("h2").textContent.trim()}; now ${said || "not known"} ${unit}`);
}

function drawAnew() {
  for (const [chart, drawn] of plots) {
    drawn.destroy();
    plots.delete(chart);
  }
  if (points.length) for (const chart of document.querySelectorAll(".chart")) draw(chart);
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
    const item = document.createElement("li"), mark = document.createElement("span");
    mark.className = `mark line${place % COLOURS}`;
    mark.setAttribute("aria-hidden", "true");
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
  const latest = points[points.length - 1], at = moment(latest.at * 1000);
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
dark.addEventListener("change", drawAnew);
window.addEventListener("resize", () => {
  for (const [chart, drawn] of plots) drawn.setSize({ width: chart.clientWidth, height: HEIGHT });
});
