// Shows the changes that the console sends, newest first, a bounded number of them. All that a document holds goes into
// the page as text.
"use strict";

const ROWS_MAX = 500;
const form = document.getElementById("filter"), rows = document.querySelector("#changes tbody");
const pause = document.getElementById("pause"), begin = document.getElementById("begin");
const state = document.getElementById("state"), counts = document.getElementById("counts");
let events = null, paused = false, seen = 0, matched = 0, shown = 0, silent = 0;

function tell(text, bad = false) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("bad", bad);
}

function count() {
  const number = (value) => value.toLocaleString("en");
  let text = `${number(seen)} changes seen, ${number(matched)} of them wanted, ${number(shown)} shown`;
  if (matched > shown) text += `; ${number(matched - shown)} came too fast, or while it was paused`;
  counts.textContent = `${text}. The table keeps the last ${ROWS_MAX}.`;
}

function add(change) {
  const row = document.createElement("tr");
  for (const name of ["time", "vbucket", "seqno", "kind", "collection", "key", "value"]) {
    const cell = document.createElement(name === "key" ? "th" : "td");
    if (name === "key") {
      const link = document.createElement("a");
      link.href = `/documents?${new URLSearchParams(change.document)}`;
      link.textContent = change.key;
      cell.scope = "row";
      cell.append(link);
    } else {
      cell.textContent = change[name];
    }
    row.append(cell);
  }
  row.className = change.kind;
  return row;
}

function take(told) {
  seen += told.seen;
  matched += told.matched;
  if (!paused) {
    shown += told.rows.length;
    rows.prepend(...told.rows.reverse().map(add));
    while (rows.childElementCount > ROWS_MAX) rows.lastElementChild.remove();
  }
  if (told.notice) tell(told.notice, !told.notice.startsWith("Connected"));
  else if (++silent === 1) tell("Running: changes appear as they become durable.");
  count();
}

function stop(why) {
  if (events) events.close();
  events = null;
  begin.textContent = "Begin";
  pause.disabled = true;
  tell(why, true);
}

function start() {
  if (events) events.close();
  seen = matched = shown = silent = 0;
  rows.replaceChildren();
  events = new EventSource(`/tail/events?${new URLSearchParams(new FormData(form))}`);
  events.addEventListener("changes", (event) => take(JSON.parse(event.data)));
  events.addEventListener("end", (event) => stop(`It ended: ${JSON.parse(event.data).why}`));
  events.addEventListener("error", () => {
    silent = 0;
    if (events.readyState === EventSource.CLOSED) {
      // It was refused, which the browser does not try again: the console is another one by now.
      stop("This console knows this browser no more: open the address that it printed when it began.");
      return;
    }
    tell("This console does not answer; the browser tries again. Changes until then are not shown.", true);
  });
  begin.textContent = "Begin anew";
  pause.disabled = false;
  setPaused(false);
  tell("Connecting…");
  count();
}

function setPaused(value) {
  paused = value;
  pause.setAttribute("aria-pressed", String(value));
  pause.textContent = value ? "Go on" : "Pause";
}

form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
pause.addEventListener("click", () => setPaused(!paused));
document.getElementById("empty").addEventListener("click", () => rows.replaceChildren());
if (new URLSearchParams(location.search).has("begin")) start();
