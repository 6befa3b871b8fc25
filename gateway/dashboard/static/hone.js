// The dashboard's own script: the menu at phone width, copying a new key, times by the clock of whoever reads, and how
// live parts of pages ask. Pages can be read and forms be sent without it.
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

// A part that asks for itself anew waits while nobody sees it, and while somebody is in it: his place would be lost.
document.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.detail.elt;
  if (!part.matches("[hx-trigger^=every]")) return;
  if (document.hidden || part.contains(document.activeElement)) event.preventDefault();
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

document.addEventListener("htmx:configRequest", (event) => {
  const token = document.querySelector("input[name=csrf]");
  if (token && event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = token.value;
});
