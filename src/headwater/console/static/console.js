// Keeps the parts of a page that say data-live="SECONDS" up to date, by fetching the page again. What a reader has the
// focus in is not replaced under his hands; what he has to hear of is said in the status line, once for each change.
"use strict";

const lost = document.getElementById("lost");
const news = document.getElementById("news");
const held = document.getElementById("held");
const busy = new Set();
let answeredAt = new Date(), shownAt = answeredAt;

// A moment as every page, the log and the commands tell it: UTC, RFC 3339.
function moment(at) {
  return `${new Date(at).toISOString().slice(0, 19)}Z`;
}

function tellLost(why) {
  lost.textContent = `This console does not answer (${why}). What stands here is of ${moment(answeredAt)}.`;
  lost.hidden = false;
}

function isHeld(part) {
  return part.contains(document.activeElement) || !document.getSelection().isCollapsed;
}

function place(part, fresh) {
  const open = new Set(Array.from(part.querySelectorAll("details[open][id]"), (each) => each.id));
  const scrolled = Array.from(part.querySelectorAll(".wide"), (each) => each.scrollLeft);
  part.replaceChildren(...fresh.childNodes);
  for (const each of part.querySelectorAll("details[id]")) each.open = open.has(each.id);
  part.querySelectorAll(".wide").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
}

// Nodes that do not answer make a page slower than its interval: it is not asked for again until it came. Otherwise the
// requests would take all six connections of the browser, and an older answer could come behind a newer one.
async function refresh(part) {
  if (document.hidden || busy.has(part)) return;
  busy.add(part);
  try {
    await fetchAnew(part);
  } finally {
    busy.delete(part);
  }
}

async function fetchAnew(part) {
  let answer;
  try {
    answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store", redirect: "error" });
  } catch {
    tellLost("it was ended, or the way to it is cut");
    return;
  }
  if (answer.status === 401) {
    tellLost("it knows this browser no more: open the address that it printed when it began");
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById(part.id);
  if (!fresh) {
    const told = page.querySelector("[role=alert]:not([hidden])");
    tellLost(told ? told.textContent.trim() : `status ${answer.status}`);
    return;
  }
  answeredAt = new Date();
  lost.hidden = true;
  const before = part.dataset.news;
  part.dataset.news = fresh.dataset.news || "";
  // Under the hands of a reader nothing is replaced; that it is older than it could be has to be seen.
  held.hidden = !isHeld(part);
  if (held.hidden) {
    place(part, fresh);
    shownAt = answeredAt;
  } else {
    held.textContent = `Kept as it was at ${moment(shownAt)} while the focus or a selection is in it.`;
  }
  if (before !== undefined && before !== part.dataset.news) news.textContent = `Now: ${part.dataset.news}`;
}

for (const part of document.querySelectorAll("[data-live]")) {
  setInterval(() => refresh(part), 1000 * Number(part.dataset.live));
}
for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", (event) => {
    if (!window.confirm(form.dataset.confirm)) event.preventDefault();
  });
}
