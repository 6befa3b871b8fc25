// The dashboard's own script: the menu at phone width, times beside the clock of whoever reads, and the form token for
// requests that htmx sends. Everything works without it but the menu, which then stays open.
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

document.addEventListener("htmx:configRequest", (event) => {
  const token = document.querySelector("input[name=csrf]");
  if (token && event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = token.value;
});
