// The dashboard's own script: the menu at phone width, copying a new key, times by the clock of whoever reads, how live
// parts of pages ask, and what is said when nobody answers. Pages can be read and forms be sent without it.
"use strict";

document.addEventListener("click", (event) => {
  const button = event.target.closest(".menu-button");
  if (!button) return;
  const isOpen = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isOpen));
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const field = document.getElementById(button.dataset.copy);
  field.select();
  navigator.clipboard.writeText(field.value).then(
    () => { document.getElementById("announce").textContent = "Copied"; button.textContent = "Copied"; },
    () => { document.getElementById("announce").textContent = "Press Ctrl+C to copy"; },
  );
});

// A part that asks for itself anew waits while nobody sees it, and while the keyboard is in it: its place would be lost.
const isLive = (part) => part.matches("[hx-trigger^=every]");
document.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.detail.elt;
  if (isLive(part) && (document.hidden || part.querySelector(":focus-visible"))) event.preventDefault();
});
document.addEventListener("htmx:beforeSend", (event) => {
  if (isLive(event.detail.elt)) event.detail.xhr.timeout = 10_000;
});

// What has not changed stays as it is, and is not read out again; what somebody has unfolded stays so.
const shown = new WeakMap();
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, serverResponse } = event.detail;
  if (!event.detail.shouldSwap || !isLive(target)) return;
  if (shown.get(target)?.response === serverResponse) event.detail.shouldSwap = false;
  const unfolded = [...target.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
  shown.set(target, { response: serverResponse, unfolded });
});
document.addEventListener("htmx:afterSwap", (event) => {
  const known = shown.get(event.detail.target);  // none where a page comes back out of the history
  if (!known) return;
  for (const one of event.detail.target.querySelectorAll("details > summary")) {
    if (known.unfolded.includes(one.textContent)) one.parentElement.open = true;
  }
});

// A page must not look alive when it is not: what was refused or not answered stands on top of it until an answer comes.
let answered = new Date();
function notice(text) {
  const place = document.getElementById("notice");
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}
function unanswered() {
  notice(`The gateway does not answer. What is shown here is of ${answered.toLocaleTimeString()}.`);
}
document.addEventListener("htmx:sendError", unanswered);
document.addEventListener("htmx:timeout", unanswered);
document.addEventListener("htmx:responseError", (event) => {
  const page = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
  const told = [...page.querySelectorAll("h1, #why")].map((one) => one.textContent.trim());
  notice(told.join(": ") || `The gateway answered with error ${event.detail.xhr.status}.`);
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (!event.detail.successful) return;
  answered = new Date();
  notice("");
});

// Times stand in UTC; pointed at, each tells itself by the reader's own clock.
function tellTimes() {
  for (const time of document.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = at.toLocaleString();
  }
}
document.addEventListener("DOMContentLoaded", tellTimes);
document.addEventListener("htmx:afterSettle", tellTimes);

// An address says what was chosen, and nothing of what was not.
document.addEventListener("htmx:configRequest", (event) => {
  if (!event.detail.elt.matches(".filters")) return;
  for (const [name, value] of [...event.detail.formData]) if (value === "") event.detail.formData.delete(name);
});

document.addEventListener("htmx:configRequest", (event) => {
  const token = document.querySelector("input[name=csrf]");
  if (token && event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = token.value;
});
