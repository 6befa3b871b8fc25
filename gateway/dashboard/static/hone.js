// The dashboard's own script: the menu at phone width, times beside the clock of whoever reads, and the form token for
// requests that htmx sends. Everything works without it but the menu, which then stays open.
"use strict";

document.addEventListener("click", (event) => {
  const button = event.target.closest(".menu-button");
  if (!button) return;
  const isOpen = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isOpen));
});

document.addEventListener("htmx:configRequest", (event) => {
  const token = document.querySelector("input[name=csrf]");
  if (token && event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = token.value;
});
